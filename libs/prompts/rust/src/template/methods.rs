//! The methods of Python's types that templates call.

use super::arguments::Arguments;
use super::refused::{Refused, Result};
use super::value::{Dict, Loop, Value};

const UNLIKE: Refused = Refused::Unlike("method");

/// `base.name(arguments)`.
pub fn call<'a>(base: &Value<'a>, name: &str, arguments: Arguments<'a>) -> Result<Value<'a>> {
    if !arguments.names.is_empty() {
        return Err(UNLIKE);
    }
    let places = &arguments.places[..];
    match base {
        Value::Str(text) => of_text(text, name, places),
        Value::Dict(items) => of_dict(items, name, places),
        Value::List(items) | Value::Tuple(items) => of_list(items, name, places),
        Value::Loop(loop_) => of_loop(loop_, name, places),
        _ => Err(UNLIKE),
    }
}

fn of_text<'a>(text: &str, name: &str, arguments: &[Value<'a>]) -> Result<Value<'a>> {
    let string = |text: &str| Ok(Value::text(text.to_owned()));
    match (name, arguments) {
        ("strip" | "lstrip" | "rstrip", []) => {
            let text = if name == "rstrip" {
                text
            } else {
                text.trim_start_matches(is_space)
            };
            string(if name == "lstrip" {
                text
            } else {
                text.trim_end_matches(is_space)
            })
        }
        ("strip" | "lstrip" | "rstrip", [Value::Str(chars)]) => {
            let given = |char: char| chars.contains(char);
            let text = if name == "rstrip" {
                text
            } else {
                text.trim_start_matches(given)
            };
            string(if name == "lstrip" {
                text
            } else {
                text.trim_end_matches(given)
            })
        }
        ("split" | "rsplit", []) => Ok(strings(
            text.split(is_space).filter(|part| !part.is_empty()),
        )),
        ("split" | "rsplit", [Value::Str(separator)]) if !separator.is_empty() => {
            Ok(strings(text.split(&**separator)))
        }
        ("split", [Value::Str(separator), Value::Int(most)]) if !separator.is_empty() => {
            match usize::try_from(*most) {
                Ok(most) => Ok(strings(text.splitn(most.saturating_add(1), &**separator))),
                Err(_) => Ok(strings(text.split(&**separator))),
            }
        }
        ("rsplit", [Value::Str(separator), Value::Int(most)]) if !separator.is_empty() => {
            let most = usize::try_from(*most).map_err(|_| UNLIKE)?;
            let mut parts: Vec<&str> = text.rsplitn(most.saturating_add(1), &**separator).collect();
            parts.reverse();
            Ok(strings(parts.into_iter()))
        }
        ("partition", [Value::Str(separator)]) if !separator.is_empty() => {
            let (before, found, after) = match text.split_once(&**separator) {
                Some((before, after)) => (before, &**separator, after),
                None => (text, "", ""),
            };
            Ok(triple(before, found, after))
        }
        ("rpartition", [Value::Str(separator)]) if !separator.is_empty() => {
            let (before, found, after) = match text.rsplit_once(&**separator) {
                Some((before, after)) => (before, &**separator, after),
                None => ("", "", text),
            };
            Ok(triple(before, found, after))
        }
        ("splitlines", []) => Ok(strings(lines(text).into_iter())),
        ("startswith", [part]) => any_part(part, |part| text.starts_with(part)),
        ("endswith", [part]) => any_part(part, |part| text.ends_with(part)),
        ("replace", [Value::Str(old), Value::Str(new)]) => {
            Ok(Value::text(text.replace(&**old, new)))
        }
        ("replace", [Value::Str(old), Value::Str(new), Value::Int(most)]) if !old.is_empty() => {
            Ok(Value::text(match usize::try_from(*most) {
                Ok(most) => text.replacen(&**old, new, most),
                Err(_) => text.replace(&**old, new),
            }))
        }
        ("removeprefix", [Value::Str(part)]) => string(text.strip_prefix(&**part).unwrap_or(text)),
        ("removesuffix", [Value::Str(part)]) => string(text.strip_suffix(&**part).unwrap_or(text)),
        ("find", [Value::Str(part)]) => place(text, text.find(&**part)),
        ("rfind", [Value::Str(part)]) => place(text, text.rfind(&**part)),
        ("index", [Value::Str(part)]) => place(text, Some(text.find(&**part).ok_or(UNLIKE)?)),
        ("count", [Value::Str(part)]) if !part.is_empty() => {
            Value::count(text.matches(&**part).count())
        }
        ("join", [parts]) => {
            if matches!(parts, Value::Stream(_)) {
                return Err(UNLIKE);
            }
            let mut joined = String::new();
            for (place, part) in parts.items()?.iter().enumerate() {
                if place > 0 {
                    joined.push_str(text);
                }
                joined.push_str(part.expect_str()?);
            }
            Ok(Value::text(joined))
        }
        ("upper", []) => Ok(Value::text(ascii(text)?.to_ascii_uppercase())),
        ("lower", []) => Ok(Value::text(ascii(text)?.to_ascii_lowercase())),
        ("capitalize", []) => Ok(Value::text(capitalized(ascii(text)?))),
        ("title", []) => {
            let mut after_letter = false;
            let titled: String = ascii(text)?
                .chars()
                .map(|char| {
                    let cased = if after_letter {
                        char.to_ascii_lowercase()
                    } else {
                        char.to_ascii_uppercase()
                    };
                    after_letter = char.is_ascii_alphabetic();
                    cased
                })
                .collect();
            Ok(Value::text(titled))
        }
        ("isdigit" | "isdecimal" | "isnumeric", []) => {
            all(ascii(text)?, |char| char.is_ascii_digit())
        }
        ("isalpha", []) => all(ascii(text)?, |char| char.is_ascii_alphabetic()),
        ("isalnum", []) => all(ascii(text)?, |char| char.is_ascii_alphanumeric()),
        ("isspace", []) => all(text, is_space),
        ("isupper", []) => Ok(Value::Bool(
            ascii(text)?.contains(|char: char| char.is_ascii_uppercase())
                && !text.contains(|char: char| char.is_ascii_lowercase()),
        )),
        ("islower", []) => Ok(Value::Bool(
            ascii(text)?.contains(|char: char| char.is_ascii_lowercase())
                && !text.contains(|char: char| char.is_ascii_uppercase()),
        )),
        _ => Err(UNLIKE),
    }
}

fn of_dict<'a>(items: &Dict<'a>, name: &str, arguments: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, arguments) {
        ("get", [key]) => get(items, key, Value::None),
        ("get", [key, default]) => get(items, key, default.clone()),
        ("keys", []) => Ok(Value::view(items.keys().cloned().map(Value::Str).collect())),
        ("values", []) => Ok(Value::view(items.values().cloned().collect())),
        ("items", []) => Ok(Value::view(pairs(items))),
        _ => Err(UNLIKE),
    }
}

fn get<'a>(items: &Dict<'a>, key: &Value<'a>, default: Value<'a>) -> Result<Value<'a>> {
    match key {
        Value::Str(key) => Ok(items.get(key).cloned().unwrap_or(default)),
        Value::None | Value::Bool(_) | Value::Int(_) => Ok(default),
        _ => Err(UNLIKE),
    }
}

fn of_list<'a>(items: &[Value<'a>], name: &str, arguments: &[Value<'a>]) -> Result<Value<'a>> {
    let ("index" | "count", [sought]) = (name, arguments) else {
        return Err(UNLIKE);
    };
    let mut count = 0;
    for (place, item) in items.iter().enumerate() {
        if item.equals(sought)? {
            if name == "index" {
                return Value::count(place);
            }
            count += 1;
        }
    }
    if name == "index" {
        return Err(UNLIKE);
    }
    Value::count(count)
}

fn of_loop<'a>(loop_: &Loop<'a>, name: &str, arguments: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, arguments) {
        ("cycle", [_, ..]) => Ok(arguments[loop_.place % arguments.len()].clone()),
        _ => Err(UNLIKE),
    }
}

/// The items of a dict, as tuples.
pub fn pairs<'a>(items: &Dict<'a>) -> Vec<Value<'a>> {
    items
        .iter()
        .map(|(key, value)| Value::tuple(vec![Value::Str(key.clone()), value.clone()]))
        .collect()
}

/// Python's `str.isspace` of one character.
pub fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1c'..='\x1f')
}

/// Python's `str.splitlines`.
pub fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(place) = rest.find(ends_line) {
        lines.push(&rest[..place]);
        let tail = &rest[place..];
        rest = tail
            .strip_prefix("\r\n")
            .or_else(|| tail.strip_prefix(ends_line))
            .unwrap_or_default();
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn ends_line(char: char) -> bool {
    matches!(
        char,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Case depends on the version of Unicode, so only ASCII is changed here.
pub fn ascii(text: &str) -> Result<&str> {
    if text.is_ascii() {
        Ok(text)
    } else {
        Err(Refused::Unlike("case of other than ASCII"))
    }
}

/// Python's `str.capitalize`, of ASCII.
pub fn capitalized(text: &str) -> String {
    let mut text = text.to_ascii_lowercase();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

fn strings<'a, 'b>(parts: impl Iterator<Item = &'b str>) -> Value<'a> {
    Value::list(parts.map(|part| Value::text(part.to_owned())).collect())
}

fn triple<'a>(before: &str, found: &str, after: &str) -> Value<'a> {
    let parts = [before, found, after];
    Value::tuple(
        parts
            .into_iter()
            .map(|part| Value::text(part.to_owned()))
            .collect(),
    )
}

fn any_part<'a>(part: &Value<'a>, is_found: impl Fn(&str) -> bool) -> Result<Value<'a>> {
    match part {
        Value::Str(part) => Ok(Value::Bool(is_found(part))),
        Value::Tuple(parts) => {
            for part in parts.iter() {
                if is_found(part.expect_str()?) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        _ => Err(UNLIKE),
    }
}

/// A place in bytes as one in characters; -1: none.
fn place<'a>(text: &str, bytes: Option<usize>) -> Result<Value<'a>> {
    bytes.map_or(Ok(Value::Int(-1)), |bytes| {
        Value::count(text[..bytes].chars().count())
    })
}

fn all<'a>(text: &str, is_it: impl Fn(char) -> bool) -> Result<Value<'a>> {
    Ok(Value::Bool(!text.is_empty() && text.chars().all(is_it)))
}
