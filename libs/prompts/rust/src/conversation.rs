//! A conversation as templates take it: as vLLM prepares one, and as the frontend's `ChatTemplate` does in Python.

use std::rc::Rc;

use crate::body::{self, Chat, Prompt, Route};
use crate::template::{Budget, Dict, LocalTime, Refused, Result, Template, Text, Value};

/// Stands for an image or another item, at which the text ends. It has private-use characters, which are in no prompt.
const ITEM_MARK: &str = "\u{f8f0}kvatlas-item\u{f8f0}";
const FIELDS_AS_WRITTEN: [&str; 4] = ["role", "name", "tool_call_id", "reasoning_content"];

/// A model's template, with what it is rendered with beside a conversation.
#[derive(Debug)]
pub struct ChatTemplate {
    /// The template.
    pub template: Template,
    /// `bos_token` and so on.
    pub special_tokens: Vec<(String, String)>,
    /// Whether the template loops over a message's content, so that it takes a list of parts.
    pub content_is_list: bool,
}

impl ChatTemplate {
    /// Renders the conversation in a body of `/v1/chat/completions`; for the comparison with Python.
    ///
    /// # Errors
    /// The body is unusual, or the template refuses it.
    pub fn render_body(&self, body: &[u8], now: &dyn Fn() -> LocalTime) -> Result<(String, bool)> {
        let unlike = Refused::Unlike("body");
        let body = body::read(Route::Chat, body, true).map_err(|_| unlike)?;
        match &body.prompt {
            Prompt::Chat(chat) if !chat.only_engine_renders => {
                self.render(chat, Budget(u64::MAX), now)
            }
            _ => Err(unlike),
        }
    }

    /// The prompt's text, and whether it is whole: it ends before the first item that is no text.
    pub(crate) fn render<'a>(
        &'a self,
        chat: &Chat<'a>,
        budget: Budget,
        now: &'a dyn Fn() -> LocalTime,
    ) -> Result<(String, bool)> {
        let mut variables = Dict::default();
        for (name, token) in &self.special_tokens {
            variables.insert(name.as_str().into(), Value::text(token.as_str()));
        }
        variables.insert(
            "add_generation_prompt".into(),
            Value::Bool(chat.add_generation_prompt),
        );
        variables.insert("tools".into(), chat.tools.clone());
        variables.insert("documents".into(), chat.documents.clone());
        for (name, value) in chat.variables.iter().flatten() {
            variables.insert(name.clone(), value.clone());
        }
        let (messages, is_whole) = self.prepare(&chat.messages)?;
        variables.insert("messages".into(), messages);
        let mut text = self.template.render(variables, budget, now)?;
        if !is_whole {
            if let Some(end) = text.find(ITEM_MARK) {
                text.truncate(end);
            }
        }
        Ok((text, is_whole))
    }

    fn prepare<'a>(&self, messages: &[Dict<'a>]) -> Result<(Value<'a>, bool)> {
        let mut prepared = Vec::with_capacity(messages.len());
        for message in messages {
            let (content, is_plain) = self.content(message.get("content"))?;
            prepared.push(Value::dict(with_content(message, content)?));
            if !is_plain {
                return Ok((Value::list(prepared), false));
            }
        }
        Ok((Value::list(prepared), true))
    }

    /// A message's content in the shape that the template reads, and whether it is text alone.
    fn content<'a>(&self, content: Option<&Value<'a>>) -> Result<(Value<'a>, bool)> {
        match content {
            None | Some(Value::None) if self.content_is_list => Ok((Value::list(Vec::new()), true)),
            None | Some(Value::None) => Ok((Value::text(""), true)),
            Some(Value::Str(text)) if self.content_is_list => {
                Ok((Value::list(vec![part(text.clone())]), true))
            }
            Some(Value::Str(text)) => Ok((Value::Str(text.clone()), true)),
            Some(Value::List(parts)) => {
                let (mut texts, is_whole) = leading_texts(parts)?;
                let mark = Text::Borrowed(ITEM_MARK);
                if self.content_is_list {
                    if !is_whole {
                        texts.push(mark);
                    }
                    let parts = texts.into_iter().map(part).collect();
                    return Ok((Value::list(parts), is_whole));
                }
                if !is_whole {
                    // For a template that takes a string, engines put the items before the message's text.
                    return Ok((Value::Str(mark), false));
                }
                let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
                Ok((Value::text(texts.join("\n")), true))
            }
            Some(_) => Err(Refused::Unlike("content")),
        }
    }
}

fn part(text: Text<'_>) -> Value<'_> {
    let mut part = Dict::default();
    part.insert("type".into(), Value::text("text"));
    part.insert("text".into(), Value::Str(text));
    Value::dict(part)
}

/// The text parts before the first item, and whether there is no item.
fn leading_texts<'a>(parts: &[Value<'a>]) -> Result<(Vec<Text<'a>>, bool)> {
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Value::Str(text) => texts.push(text.clone()),
            Value::Dict(table) => match table.get("text").or_else(|| table.get("refusal")) {
                Some(Value::Str(text)) => texts.push(text.clone()),
                _ => return Ok((texts, false)),
            },
            _ => return Err(Refused::Unlike("content part")),
        }
    }
    Ok((texts, true))
}

fn with_content<'a>(message: &Dict<'a>, content: Value<'a>) -> Result<Dict<'a>> {
    let mut prepared = Dict::default();
    for (name, value) in message {
        if FIELDS_AS_WRITTEN.contains(&&**name) && !matches!(value, Value::None) {
            prepared.insert(name.clone(), value.clone());
        }
    }
    prepared.insert("content".into(), content);
    if let Some(Value::List(calls)) = message.get("tool_calls") {
        let calls = calls.iter().map(with_arguments).collect::<Result<_>>()?;
        prepared.insert("tool_calls".into(), Value::list(calls));
    }
    Ok(prepared)
}

/// A tool call with its arguments parsed: clients send them as JSON text.
fn with_arguments<'a>(call: &Value<'a>) -> Result<Value<'a>> {
    let Value::Dict(table) = call else {
        return Err(Refused::Unlike("tool call"));
    };
    let Some(Value::Dict(function)) = table.get("function") else {
        return Ok(call.clone());
    };
    let Some(Value::Str(arguments)) = function.get("arguments") else {
        return Ok(call.clone());
    };
    let unlike = |_| Refused::Unlike("tool call's arguments");
    let parsed = match arguments {
        _ if arguments.is_empty() => Value::dict(Dict::default()),
        Text::Borrowed(text) => serde_json::from_str::<Value<'a>>(text).map_err(unlike)?,
        Text::Shared(text) => serde_json::from_str::<Value<'_>>(text)
            .map_err(unlike)?
            .into_owned(),
    };
    let mut function = Dict::clone(function);
    function.insert("arguments".into(), parsed);
    let mut table = Dict::clone(table);
    table.insert("function".into(), Value::Dict(Rc::new(function)));
    Ok(Value::dict(table))
}
