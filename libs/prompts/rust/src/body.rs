//! The fields of a request's body that routing needs.
//!
//! Every deviation from the usual types is an error here, and then Python judges the body: its message to the client is the
//! exact one, and it accepts some bodies that are refused here.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::json::{ReadsTables, Skipped, SkippedTable, Table};
use crate::template::{Dict, Text, Value};

/// The two routes with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// A body's fields; texts are borrowed from it where they have no escapes.
pub struct Body<'a> {
    pub(crate) model: Option<Text<'a>>,
    pub(crate) stream: bool,
    pub(crate) cache_salt: Option<Text<'a>>,
    /// The engine keeps so many tokens, from the end.
    pub(crate) keep_last: Option<usize>,
    /// Several prompts in one request; the first one decides.
    pub(crate) batch: bool,
    pub(crate) prompt: Prompt<'a>,
}

impl Body<'_> {
    /// The name of the requested model; None: the base model.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether the answer is streamed.
    pub fn stream(&self) -> bool {
        self.stream
    }

    /// The salt that separates tenants' caches.
    pub fn cache_salt(&self) -> Option<&str> {
        self.cache_salt.as_deref()
    }

    /// Whether there are several prompts, of which the first one decides.
    pub fn batch(&self) -> bool {
        self.batch
    }
}

pub(crate) enum Prompt<'a> {
    Text {
        text: Text<'a>,
        add_special_tokens: bool,
    },
    Tokens(Vec<u32>),
    Chat(Box<Chat<'a>>),
}

pub(crate) struct Chat<'a> {
    pub messages: Vec<Dict<'a>>,
    pub tools: Value<'a>,
    pub documents: Value<'a>,
    pub variables: Option<Dict<'a>>,
    pub add_generation_prompt: bool,
    pub add_special_tokens: bool,
    /// The body has a template of its own, or an unfinished last message.
    pub only_engine_renders: bool,
}

/// Reads a body. With `keeps` false, the conversation is checked and dropped.
pub(crate) fn read(route: Route, body: &[u8], keeps: bool) -> Result<Body<'_>, serde_json::Error> {
    // Once for all strings, those that are skipped too.
    let text = std::str::from_utf8(body).map_err(serde_json::Error::custom)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_map(ReadsBody { route, keeps })?;
    deserializer.end()?;
    Ok(read)
}

struct ReadsBody {
    route: Route,
    keeps: bool,
}

impl<'de> Visitor<'de> for ReadsBody {
    type Value = Body<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Body<'de>, A::Error> {
        let is_chat = self.route == Route::Chat;
        let (mut model, mut stream, mut cache_salt) = (None, None::<Flag>, None);
        let (mut keep_last, mut special) = (None::<i64>, None::<bool>);
        let mut prompt = None::<Completion<'de>>;
        let mut messages = None;
        let (mut tools, mut documents) = (Value::None, Value::None);
        let mut variables = None;
        let (mut template, mut generation) = (None::<Text<'de>>, None::<bool>);
        let mut unfinished = None::<bool>;
        while let Some(key) = entries.next_key::<Text<'de>>()? {
            match (&*key, is_chat) {
                ("model", _) => model = entries.next_value()?,
                ("stream", _) => stream = entries.next_value()?,
                ("cache_salt", _) => cache_salt = entries.next_value()?,
                ("truncate_prompt_tokens", _) => keep_last = entries.next_value()?,
                ("add_special_tokens", _) => special = entries.next_value()?,
                ("prompt", false) => prompt = entries.next_value()?,
                ("messages", true) => {
                    messages = Some(entries.next_value_seed(ReadsTables { keeps: self.keeps })?);
                }
                ("tools", true) if self.keeps => tools = entries.next_value()?,
                ("documents", true) if self.keeps => documents = entries.next_value()?,
                ("chat_template", true) => template = entries.next_value()?,
                ("chat_template_kwargs", true) if self.keeps => {
                    variables = entries.next_value::<Option<Table<'de>>>()?;
                }
                ("chat_template_kwargs", true) => {
                    entries.next_value::<Option<SkippedTable>>()?;
                }
                ("add_generation_prompt", true) => generation = entries.next_value()?,
                ("continue_final_message", true) => unfinished = entries.next_value()?,
                _ => {
                    entries.next_value::<Skipped>()?;
                }
            }
        }
        let (prompt, batch) = if is_chat {
            let (messages, count) = messages.unwrap_or_default();
            if count == 0 {
                return Err(A::Error::custom("no messages"));
            }
            let chat = Chat {
                messages,
                tools,
                documents,
                variables: variables.map(|Table(table)| table),
                add_generation_prompt: generation.unwrap_or(true),
                add_special_tokens: special == Some(true),
                only_engine_renders: template.is_some() || unfinished == Some(true),
            };
            (Prompt::Chat(Box::new(chat)), false)
        } else {
            prompt
                .ok_or_else(|| A::Error::custom("no prompt"))?
                .prompt(special != Some(false))
        };
        Ok(Body {
            model,
            stream: stream.is_some_and(|Flag(flag)| flag),
            cache_salt,
            keep_last: match keep_last {
                Some(limit @ 1..) => Some(usize::try_from(limit).map_err(A::Error::custom)?),
                _ => None,
            },
            batch,
            prompt,
        })
    }
}

/// A boolean, or an integer in its place.
struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;

        impl Visitor<'_> for Reads {
            type Value = Flag;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a boolean or an integer")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Flag, E> {
                Ok(Flag(value != 0))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Flag, E> {
                i64::try_from(value)
                    .map(|value| Flag(value != 0))
                    .map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Reads)
    }
}

/// A completion's prompt: a text, token ids, or a list of either.
enum Completion<'a> {
    Text(Text<'a>),
    Texts(Text<'a>),
    Tokens(Vec<u32>),
    TokenLists(Vec<u32>),
}

impl<'a> Completion<'a> {
    /// The prompt that decides, and whether it is one of several.
    fn prompt(self, add_special_tokens: bool) -> (Prompt<'a>, bool) {
        let (text, batch) = match self {
            Self::Text(text) => (text, false),
            Self::Texts(text) => (text, true),
            Self::Tokens(ids) => return (Prompt::Tokens(ids), false),
            Self::TokenLists(ids) => return (Prompt::Tokens(ids), true),
        };
        let prompt = Prompt::Text {
            text,
            add_special_tokens,
        };
        (prompt, batch)
    }
}

impl<'de> Deserialize<'de> for Completion<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadsCompletion)
    }
}

struct ReadsCompletion;

impl<'de> Visitor<'de> for ReadsCompletion {
    type Value = Completion<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a prompt that is not empty")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Completion<'de>, E> {
        if text.is_empty() {
            return Err(E::custom("no prompt"));
        }
        Ok(Completion::Text(Text::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Completion<'de>, E> {
        if text.is_empty() {
            return Err(E::custom("no prompt"));
        }
        Ok(Completion::Text(Text::Shared(text.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Completion<'de>, A::Error> {
        let first = items
            .next_element::<Element<'de>>()?
            .ok_or_else(|| A::Error::custom("no prompt"))?;
        match first {
            Element::Token(id) => {
                let mut ids = vec![id];
                while let Some(id) = items.next_element()? {
                    ids.push(id);
                }
                Ok(Completion::Tokens(ids))
            }
            Element::Text(text) => {
                while items.next_element::<Skipped>()?.is_some() {}
                Ok(Completion::Texts(text))
            }
            Element::Ids(ids) => {
                while items.next_element::<Skipped>()?.is_some() {}
                Ok(Completion::TokenLists(ids))
            }
        }
    }
}

/// The first element of a list of prompts or of token ids.
enum Element<'a> {
    Token(u32),
    Text(Text<'a>),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;

        impl<'de> Visitor<'de> for Reads {
            type Value = Element<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, a token id or a list of token ids")
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Element<'de>, E> {
                u32::try_from(id).map(Element::Token).map_err(E::custom)
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Element<'de>, E> {
                Ok(Element::Text(Text::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Element<'de>, E> {
                Ok(Element::Text(Text::Shared(text.into())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Element<'de>, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = items.next_element()? {
                    ids.push(id);
                }
                if ids.is_empty() {
                    return Err(A::Error::custom("no prompt"));
                }
                Ok(Element::Ids(ids))
            }
        }

        deserializer.deserialize_any(Reads)
    }
}
