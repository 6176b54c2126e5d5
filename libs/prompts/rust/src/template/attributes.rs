//! `a.b`, `a["b"]`, `a[1]` and slices, as Jinja2's sandbox resolves them.

use std::rc::Rc;

use super::refused::{Refused, Result};
use super::value::{Loop, Value};

/// Python's methods of dicts: `a.items` is the method even if the dict has such a key.
const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
/// Public attributes of the other types of JSON. They are methods or numbers, which no template prints.
const OTHER_METHODS: [&str; 77] = [
    "append",
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "capitalize",
    "casefold",
    "center",
    "clear",
    "conjugate",
    "copy",
    "count",
    "denominator",
    "encode",
    "endswith",
    "expandtabs",
    "extend",
    "find",
    "format",
    "format_map",
    "from_bytes",
    "from_number",
    "fromhex",
    "hex",
    "imag",
    "index",
    "insert",
    "is_integer",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "numerator",
    "partition",
    "pop",
    "real",
    "remove",
    "removeprefix",
    "removesuffix",
    "replace",
    "reverse",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "sort",
    "split",
    "splitlines",
    "start",
    "startswith",
    "step",
    "stop",
    "strip",
    "swapcase",
    "title",
    "to_bytes",
    "translate",
    "upper",
    "zfill",
    "items",
    "keys",
    "values",
    "get",
];

/// `base.name`.
pub fn attribute<'a>(base: &Value<'a>, name: &str) -> Result<Value<'a>> {
    match base {
        Value::Undefined => Err(Refused::Unlike("attribute of undefined")),
        Value::Dict(items) => {
            if is_dict_attribute(name) {
                return Err(Refused::Unlike("method as a value"));
            }
            Ok(items.get(name).cloned().unwrap_or(Value::Undefined))
        }
        Value::Namespace(items) => {
            if name.starts_with('_') {
                return Err(Refused::Unlike("private attribute"));
            }
            Ok(items
                .borrow()
                .get(name)
                .cloned()
                .unwrap_or(Value::Undefined))
        }
        Value::Loop(loop_) => of_loop(loop_, name),
        Value::None
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::List(_)
        | Value::Tuple(_) => no_attribute(name),
        _ => Err(Refused::Unlike("attribute")),
    }
}

/// `base[key]`.
pub fn item<'a>(base: &Value<'a>, key: &Value<'a>) -> Result<Value<'a>> {
    match (base, key) {
        (Value::Dict(items), Value::Str(name)) => match items.get(name) {
            Some(found) => Ok(found.clone()),
            None if is_dict_attribute(name) => Err(Refused::Unlike("method as a value")),
            None => Ok(Value::Undefined),
        },
        (Value::Dict(_), Value::None | Value::Bool(_) | Value::Int(_)) => Ok(Value::Undefined),
        (Value::List(items) | Value::Tuple(items), Value::Int(place)) => {
            Ok(index(*place, items.len()).map_or(Value::Undefined, |place| items[place].clone()))
        }
        (Value::Str(text), Value::Int(place)) => {
            let found = match usize::try_from(*place) {
                Ok(place) => text.chars().nth(place),
                Err(_) => {
                    let back = usize::try_from(place.unsigned_abs())
                        .map_err(|_| Refused::Unlike("index"))?;
                    text.chars().rev().nth(back - 1)
                }
            };
            Ok(found.map_or(Value::Undefined, |char| Value::text(char.to_string())))
        }
        (
            Value::None
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::List(_)
            | Value::Tuple(_),
            Value::Str(name),
        ) => no_attribute(name),
        (Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_), Value::Int(_)) => {
            Ok(Value::Undefined)
        }
        _ => Err(Refused::Unlike("subscript")),
    }
}

/// `base[start:stop:step]`; None: not given.
pub fn slice<'a>(
    base: &Value<'a>,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value<'a>> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Refused::Unlike("slice"));
    }
    match base {
        Value::List(items) => Ok(Value::list(
            places(start, stop, step, items.len())
                .map(|place| items[place].clone())
                .collect(),
        )),
        Value::Tuple(items) => Ok(Value::tuple(
            places(start, stop, step, items.len())
                .map(|place| items[place].clone())
                .collect(),
        )),
        Value::Str(text) if text.is_ascii() => {
            let bytes = text.as_bytes();
            let picked: String = places(start, stop, step, bytes.len())
                .map(|place| char::from(bytes[place]))
                .collect();
            Ok(Value::text(picked))
        }
        Value::Str(text) => {
            let chars: Vec<char> = text.chars().collect();
            let picked: String = places(start, stop, step, chars.len())
                .map(|place| chars[place])
                .collect();
            Ok(Value::text(picked))
        }
        _ => Err(Refused::Unlike("slice")),
    }
}

fn is_dict_attribute(name: &str) -> bool {
    name.starts_with("__") || DICT_METHODS.contains(&name)
}

fn no_attribute<'a>(name: &str) -> Result<Value<'a>> {
    if name.starts_with('_') || OTHER_METHODS.contains(&name) {
        return Err(Refused::Unlike("method as a value"));
    }
    Ok(Value::Undefined)
}

fn of_loop<'a>(loop_: &Rc<Loop<'a>>, name: &str) -> Result<Value<'a>> {
    let Loop { items, place, .. } = &**loop_;
    let neighbour = |place: Option<usize>| {
        place
            .and_then(|place| items.get(place))
            .cloned()
            .unwrap_or(Value::Undefined)
    };
    match name {
        "index" => Value::count(place + 1),
        "index0" => Value::count(*place),
        "revindex" => Value::count(items.len() - place),
        "revindex0" => Value::count(items.len() - place - 1),
        "first" => Ok(Value::Bool(*place == 0)),
        "last" => Ok(Value::Bool(place + 1 == items.len())),
        "length" => Value::count(items.len()),
        "depth" => Value::count(loop_.depth),
        "depth0" => Value::count(loop_.depth - 1),
        "previtem" => Ok(neighbour(place.checked_sub(1))),
        "nextitem" => Ok(neighbour(Some(place + 1))),
        _ => Err(Refused::Unlike("attribute of loop")),
    }
}

fn index(place: i64, len: usize) -> Option<usize> {
    let place = if place < 0 {
        len.checked_sub(usize::try_from(place.unsigned_abs()).ok()?)?
    } else {
        usize::try_from(place).ok()?
    };
    (place < len).then_some(place)
}

/// The places that Python's slice takes, in order.
fn places(
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
    len: usize,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |given: Option<i64>, default: i64| match given {
        None => default,
        Some(place) if place < 0 => place.saturating_add(len).max(low),
        Some(place) => place.min(high),
    };
    let (first, end) = if step > 0 {
        (bound(start, low), bound(stop, high))
    } else {
        (bound(start, high), bound(stop, low))
    };
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let place = next?;
        if (step > 0 && place >= end) || (step < 0 && place <= end) {
            return None;
        }
        next = place.checked_add(step);
        usize::try_from(place).ok()
    })
}
