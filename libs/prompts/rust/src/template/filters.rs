//! Jinja2's filters, as far as chat templates use them, and the `tojson` of transformers.

use std::cmp::Ordering;
use std::rc::Rc;

use super::arguments::Arguments;
use super::attributes::item;
use super::json::Style;
use super::methods::{ascii, capitalized, is_space, lines, pairs};
use super::refused::{Refused, Result};
use super::tests::test;
use super::value::Value;

const UNLIKE: Refused = Refused::Unlike("filter");

/// `value | name(arguments)`.
pub fn apply<'a>(name: &str, value: Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    if let Value::Stream(items) = &value {
        // Jinja2's filters take from a generator later, or only a part of it.
        if Rc::strong_count(items) > 1 {
            return Err(Refused::Unlike("generator in a variable"));
        }
    }
    match name {
        "default" | "d" => {
            let default = arguments.take(0, "default_value");
            let also_false = arguments.take(1, "boolean");
            arguments.end(2)?;
            let is_replaced = matches!(value, Value::Undefined)
                || (also_false.map_or(Ok(false), |flag| flag.is_true())? && !value.is_true()?);
            Ok(if is_replaced {
                default.unwrap_or(Value::text(""))
            } else {
                value
            })
        }
        "join" => {
            let separator = arguments.take(0, "d").unwrap_or(Value::text(""));
            let attribute = arguments.take(1, "attribute").unwrap_or(Value::None);
            arguments.end(2)?;
            join(&value, &separator, &attribute)
        }
        "trim" => {
            let chars = arguments.take(0, "chars").unwrap_or(Value::None);
            arguments.end(1)?;
            let text = text(&value)?;
            Ok(Value::text(match chars {
                Value::None => text.trim_matches(is_space).to_owned(),
                Value::Str(chars) => text
                    .trim_matches(|char: char| chars.contains(char))
                    .to_owned(),
                _ => return Err(UNLIKE),
            }))
        }
        "replace" => {
            let (Some(old), Some(new)) = (arguments.take(0, "old"), arguments.take(1, "new"))
            else {
                return Err(UNLIKE);
            };
            arguments.end(2)?;
            let (old, new) = (text(&old)?, text(&new)?);
            Ok(Value::text(text(&value)?.replace(&old, &new)))
        }
        "indent" => indent(&value, arguments),
        "tojson" => tojson(&value, arguments),
        "dictsort" => dictsort(&value, arguments),
        "sort" => sort(&value, arguments),
        "int" => {
            arguments.end(0)?;
            int(&value)
        }
        "map" => map(&value, arguments),
        "select" | "reject" | "selectattr" | "rejectattr" => select(name, &value, arguments),
        _ => {
            arguments.end(0)?;
            plain(name, value)
        }
    }
}

/// The filters without arguments.
fn plain<'a>(name: &str, value: Value<'a>) -> Result<Value<'a>> {
    match name {
        "length" | "count" => Value::count(value.len()?),
        "string" => Ok(match value {
            Value::Str(_) => value,
            _ => Value::text(text(&value)?),
        }),
        "upper" => Ok(Value::text(ascii(&text(&value)?)?.to_ascii_uppercase())),
        "lower" => Ok(Value::text(ascii(&text(&value)?)?.to_ascii_lowercase())),
        "capitalize" => Ok(Value::text(capitalized(ascii(&text(&value)?)?))),
        "title" => Ok(Value::text(title(ascii(&text(&value)?)?))),
        "list" => Ok(Value::list((*value.items()?).clone())),
        "first" => Ok(value.items()?.first().cloned().unwrap_or(Value::Undefined)),
        "last" => match &value {
            Value::Stream(_) | Value::Undefined => Err(UNLIKE),
            _ => Ok(value.items()?.last().cloned().unwrap_or(Value::Undefined)),
        },
        "reverse" => match &value {
            Value::Str(text) => Ok(Value::text(text.chars().rev().collect::<String>())),
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::View(_) => Ok(
                Value::stream(value.items()?.iter().rev().cloned().collect()),
            ),
            _ => Err(UNLIKE),
        },
        "items" => match &value {
            Value::Undefined => Ok(Value::stream(Vec::new())),
            Value::Dict(items) => Ok(Value::stream(pairs(items))),
            _ => Err(UNLIKE),
        },
        "abs" => match value {
            Value::Int(value) => value.checked_abs().map(Value::Int).ok_or(UNLIKE),
            _ => Err(UNLIKE),
        },
        _ => Err(UNLIKE),
    }
}

fn text(value: &Value<'_>) -> Result<String> {
    let mut text = String::new();
    value.print(&mut text)?;
    Ok(text)
}

fn join<'a>(value: &Value<'a>, separator: &Value<'a>, attribute: &Value<'a>) -> Result<Value<'a>> {
    let separator = text(separator)?;
    let mut joined = String::new();
    for (place, part) in value.items()?.iter().enumerate() {
        if place > 0 {
            joined.push_str(&separator);
        }
        match attribute {
            Value::None => part.print(&mut joined)?,
            _ => by_path(part, attribute, None)?.print(&mut joined)?,
        }
    }
    Ok(Value::text(joined))
}

/// `filters.make_attrgetter`: `a.b` looks up `a`, then `b` in it.
fn by_path<'a>(
    value: &Value<'a>,
    path: &Value<'a>,
    default: Option<&Value<'a>>,
) -> Result<Value<'a>> {
    let mut found = value.clone();
    for part in path.expect_str()?.split('.') {
        if part.is_empty() || part.contains(|char: char| char.is_numeric()) {
            return Err(Refused::Unlike("path"));
        }
        found = item(&found, &Value::text(part.to_owned()))?;
        if let (Value::Undefined, Some(default)) = (&found, default) {
            found = default.clone();
        }
    }
    Ok(found)
}

fn map<'a>(value: &Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    if !value.is_true()? {
        return Ok(Value::stream(Vec::new()));
    }
    let mut mapped = Vec::new();
    if arguments.places.is_empty() {
        let path = arguments.take(0, "attribute").ok_or(UNLIKE)?;
        let default = arguments
            .take(0, "default")
            .filter(|default| !matches!(default, Value::None));
        arguments.end(0)?;
        for item in value.items()?.iter() {
            mapped.push(by_path(item, &path, default.as_ref())?);
        }
    } else {
        let name = arguments.places.remove(0);
        let name = name.expect_str()?;
        for item in value.items()?.iter() {
            let again = Arguments {
                places: arguments.places.clone(),
                names: arguments.names.clone(),
            };
            mapped.push(apply(name, item.clone(), again)?);
        }
    }
    Ok(Value::stream(mapped))
}

fn select<'a>(name: &str, value: &Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    if !value.is_true()? {
        return Ok(Value::stream(Vec::new()));
    }
    if !arguments.names.is_empty() {
        return Err(UNLIKE);
    }
    let path = if name.ends_with("attr") {
        if arguments.places.is_empty() {
            return Err(UNLIKE);
        }
        Some(arguments.places.remove(0))
    } else {
        None
    };
    let keeps = name.starts_with("select");
    let mut kept = Vec::new();
    for item in value.items()?.iter() {
        let sought = match &path {
            None => item.clone(),
            Some(path) => by_path(item, path, None)?,
        };
        let holds = match &arguments.places[..] {
            [] => sought.is_true()?,
            [name, rest @ ..] => test(name.expect_str()?, &sought, rest)?,
        };
        if holds == keeps {
            kept.push(item.clone());
        }
    }
    Ok(Value::stream(kept))
}

fn indent<'a>(value: &Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    let indention = match arguments.take(0, "width") {
        None => "    ".to_owned(),
        Some(Value::Str(text)) => text.to_string(),
        Some(Value::Int(width)) if width <= 256 => " ".repeat(usize::try_from(width).unwrap_or(0)),
        Some(_) => return Err(UNLIKE),
    };
    let mut flag = |place, name| {
        arguments
            .take(place, name)
            .map_or(Ok(false), |flag| flag.is_true())
    };
    let (first, blank) = (flag(1, "first")?, flag(2, "blank")?);
    arguments.end(3)?;
    // The added line end makes a last empty line count.
    let text = format!("{}\n", value.expect_str()?);
    let mut out = String::new();
    for (place, line) in lines(&text).into_iter().enumerate() {
        if place > 0 {
            out.push('\n');
        }
        if if place > 0 {
            blank || !line.is_empty()
        } else {
            first
        } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(Value::text(out))
}

fn tojson<'a>(value: &Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    let ensure_ascii = arguments
        .take(0, "ensure_ascii")
        .map_or(Ok(false), |flag| flag.is_true())?;
    let indent = match arguments.take(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Int(width @ 0..=256)) => Some(" ".repeat(usize::try_from(width).unwrap_or(0))),
        Some(Value::Str(text)) => Some(text.to_string()),
        Some(_) => return Err(UNLIKE),
    };
    let (item_separator, key_separator) = match arguments.take(2, "separators") {
        None | Some(Value::None) => (
            if indent.is_some() { "," } else { ", " }.into(),
            ": ".into(),
        ),
        Some(Value::Tuple(parts) | Value::List(parts)) => match &parts[..] {
            [Value::Str(item), Value::Str(key)] => {
                (item.to_string().into(), key.to_string().into())
            }
            _ => return Err(UNLIKE),
        },
        Some(_) => return Err(UNLIKE),
    };
    let sort_keys = arguments
        .take(3, "sort_keys")
        .map_or(Ok(false), |flag| flag.is_true())?;
    arguments.end(4)?;
    let style = Style {
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    let mut out = String::new();
    style.dump(value, &mut out, 0)?;
    Ok(Value::text(out))
}

fn dictsort<'a>(value: &Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    let case_sensitive = arguments
        .take(0, "case_sensitive")
        .map_or(Ok(false), |flag| flag.is_true())?;
    let is_by_key = match arguments.take(1, "by") {
        None => true,
        Some(by) => by.as_str() == Some("key"),
    };
    let reverse = arguments
        .take(2, "reverse")
        .map_or(Ok(false), |flag| flag.is_true())?;
    arguments.end(3)?;
    let (Value::Dict(items), true) = (value, is_by_key) else {
        return Err(UNLIKE);
    };
    let keys = items.keys().cloned().map(Value::Str).collect();
    let order = sorted_places(keys, case_sensitive, reverse)?;
    let pairs = pairs(items);
    Ok(Value::list(
        order
            .into_iter()
            .map(|place| pairs[place].clone())
            .collect(),
    ))
}

fn sort<'a>(value: &Value<'a>, mut arguments: Arguments<'a>) -> Result<Value<'a>> {
    let reverse = arguments
        .take(0, "reverse")
        .map_or(Ok(false), |flag| flag.is_true())?;
    let case_sensitive = arguments
        .take(1, "case_sensitive")
        .map_or(Ok(false), |flag| flag.is_true())?;
    arguments.end(2)?;
    let items = value.items()?;
    let order = sorted_places((*items).clone(), case_sensitive, reverse)?;
    Ok(Value::list(
        order
            .into_iter()
            .map(|place| items[place].clone())
            .collect(),
    ))
}

/// The places of the keys in Python's order: stable, also if reversed; without case unless `case_sensitive`.
fn sorted_places(keys: Vec<Value<'_>>, case_sensitive: bool, reverse: bool) -> Result<Vec<usize>> {
    let keys = keys
        .into_iter()
        .map(|key| match key {
            Value::Str(text) if !case_sensitive => {
                Ok(Value::text(ascii(&text)?.to_ascii_lowercase()))
            }
            Value::Str(_) | Value::Int(_) => Ok(key),
            _ => Err(UNLIKE),
        })
        .collect::<Result<Vec<Value<'_>>>>()?;
    let mut refused = None;
    let mut places: Vec<usize> = (0..keys.len()).collect();
    places.sort_by(|a, b| {
        let order = keys[*a].order(&keys[*b]).unwrap_or_else(|why| {
            refused = Some(why);
            Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    refused.map_or(Ok(places), Err)
}

fn int<'a>(value: &Value<'a>) -> Result<Value<'a>> {
    match value {
        Value::Int(value) => Ok(Value::Int(*value)),
        Value::Str(text)
            if (1..=18).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            text.parse().map(Value::Int).map_err(|_| UNLIKE)
        }
        _ => Err(UNLIKE),
    }
}

/// Each word's first letter large, the others small; words end at spaces, hyphens and opening brackets.
fn title(text: &str) -> String {
    let mut starts = true;
    text.chars()
        .map(|char| {
            let cased = if starts {
                char.to_ascii_uppercase()
            } else {
                char.to_ascii_lowercase()
            };
            starts = is_space(char) || matches!(char, '-' | '(' | '{' | '[' | '<');
            cased
        })
        .collect()
}
