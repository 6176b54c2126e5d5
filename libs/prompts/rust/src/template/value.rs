//! Values as a template sees them, with Python's truth, equality, order, `str()` and `repr()`.
//!
//! A result that is not certain to be as in Python is refused, never guessed: another text would give other tokens.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

use indexmap::IndexMap;

use super::ast::Macro;
use super::refused::{Refused, Result};

/// A string, borrowed from the body or the template where possible.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl Hash for Text<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self::Borrowed(text)
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

/// A dict with string keys, in the order of their first insertion.
pub type Dict<'a> = IndexMap<Text<'a>, Value<'a>>;

/// Any value. Lists and dicts never change: the sandbox forbids it.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Text<'a>),
    List(Rc<Vec<Value<'a>>>),
    Tuple(Rc<Vec<Value<'a>>>),
    Dict(Rc<Dict<'a>>),
    /// A range or a dict's view: sized, iterated as often as one likes.
    View(Rc<Vec<Value<'a>>>),
    /// A generator: its items can be taken once.
    Stream(Rc<RefCell<Option<Vec<Value<'a>>>>>),
    Namespace(Rc<RefCell<Dict<'a>>>),
    Loop(Rc<Loop<'a>>),
    Macro(&'a Macro),
    Function(Function),
}

/// The functions that templates can call.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
    /// Known to Jinja2, not to this crate.
    Other,
}

/// The variable `loop` inside a loop.
#[derive(Debug)]
pub struct Loop<'a> {
    pub items: Rc<Vec<Value<'a>>>,
    pub place: usize,
    pub depth: usize,
}

impl<'a> Value<'a> {
    pub fn text(text: impl Into<Text<'a>>) -> Self {
        Self::Str(text.into())
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self::List(Rc::new(items))
    }

    pub fn tuple(items: Vec<Self>) -> Self {
        Self::Tuple(Rc::new(items))
    }

    pub fn view(items: Vec<Self>) -> Self {
        Self::View(Rc::new(items))
    }

    pub fn stream(items: Vec<Self>) -> Self {
        Self::Stream(Rc::new(RefCell::new(Some(items))))
    }

    pub fn dict(items: Dict<'a>) -> Self {
        Self::Dict(Rc::new(items))
    }

    pub fn count(count: usize) -> Result<Self> {
        Ok(Self::Int(
            i64::try_from(count).map_err(|_| Refused::Unlike("count"))?,
        ))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    pub fn expect_str(&self) -> Result<&str> {
        self.as_str().ok_or(Refused::Unlike("not a string"))
    }

    pub fn is_true(&self) -> Result<bool> {
        Ok(match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) | Self::View(items) => !items.is_empty(),
            Self::Dict(items) => !items.is_empty(),
            Self::Stream(_) | Self::Namespace(_) | Self::Macro(_) | Self::Function(_) => true,
            Self::Loop(_) => return Err(Refused::Unlike("truth of loop")),
        })
    }

    /// Python's `==`.
    pub fn equals(&self, other: &Self) -> Result<bool> {
        Ok(match (self, other) {
            (Self::Undefined, Self::Undefined) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b.iter()) {
                    if !a.equals(b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (key, a) in a.iter() {
                    match b.get(key) {
                        Some(b) if a.equals(b)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Float(a), b) | (b, Self::Float(a)) => match b.number() {
                Some(b) => *a == exact_float(b)?,
                None if b.is_plain() => false,
                None => return Err(Refused::Unlike("equality")),
            },
            (a, b) => match (a.number(), b.number()) {
                (Some(a), Some(b)) => a == b,
                _ if a.is_plain() && b.is_plain() => false,
                _ => return Err(Refused::Unlike("equality")),
            },
        })
    }

    /// Python's `<` and so on.
    pub fn order(&self, other: &Self) -> Result<Ordering> {
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => Ok((**a).cmp(&**b)),
            (Self::Int(a), Self::Int(b)) => Ok(a.cmp(b)),
            (Self::Int(_) | Self::Float(_), Self::Int(_) | Self::Float(_)) => self
                .float()?
                .partial_cmp(&other.float()?)
                .ok_or(Refused::Unlike("order")),
            _ => Err(Refused::Unlike("order")),
        }
    }

    /// Python's `needle in self`.
    pub fn contains(&self, needle: &Self) -> Result<bool> {
        match self {
            Self::Undefined => Ok(false),
            Self::Str(text) => Ok(text.contains(needle.expect_str()?)),
            Self::List(items) | Self::Tuple(items) | Self::View(items) => {
                for item in items.iter() {
                    if item.equals(needle)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Dict(items) => match needle {
                Self::Str(key) => Ok(items.contains_key(key)),
                Self::None | Self::Bool(_) | Self::Int(_) => Ok(false),
                _ => Err(Refused::Unlike("in")),
            },
            _ => Err(Refused::Unlike("in")),
        }
    }

    /// The items over which Python iterates.
    pub fn items(&self) -> Result<Rc<Vec<Self>>> {
        Ok(match self {
            Self::Undefined => Rc::default(),
            Self::List(items) | Self::Tuple(items) | Self::View(items) => Rc::clone(items),
            Self::Str(text) => Rc::new(
                text.chars()
                    .map(|char| Self::text(char.to_string()))
                    .collect(),
            ),
            Self::Dict(items) => Rc::new(items.keys().cloned().map(Self::Str).collect()),
            Self::Stream(items) => Rc::new(items.take().ok_or(Refused::Unlike("used generator"))?),
            _ => return Err(Refused::Unlike("not iterable")),
        })
    }

    pub fn len(&self) -> Result<usize> {
        match self {
            Self::Undefined => Ok(0),
            Self::Str(text) => Ok(text.chars().count()),
            Self::List(items) | Self::Tuple(items) | Self::View(items) => Ok(items.len()),
            Self::Dict(items) => Ok(items.len()),
            _ => Err(Refused::Unlike("length")),
        }
    }

    /// Appends `str(self)`.
    pub fn print(&self, out: &mut String) -> Result<()> {
        match self {
            Self::Undefined => {}
            Self::Str(text) => out.push_str(text),
            _ => self.repr(out)?,
        }
        Ok(())
    }

    /// Appends `repr(self)`.
    fn repr(&self, out: &mut String) -> Result<()> {
        match self {
            Self::None => out.push_str("None"),
            Self::Bool(true) => out.push_str("True"),
            Self::Bool(false) => out.push_str("False"),
            Self::Int(value) => write_to(out, format_args!("{value}")),
            Self::Float(value) => print_float(*value, out)?,
            Self::Str(text) => repr_text(text, out)?,
            Self::List(items) => {
                out.push('[');
                repr_all(items, out)?;
                out.push(']');
            }
            Self::Tuple(items) => {
                out.push('(');
                repr_all(items, out)?;
                out.push_str(if items.len() == 1 { ",)" } else { ")" });
            }
            Self::Dict(items) => {
                out.push('{');
                for (place, (key, value)) in items.iter().enumerate() {
                    if place > 0 {
                        out.push_str(", ");
                    }
                    repr_text(key, out)?;
                    out.push_str(": ");
                    value.repr(out)?;
                }
                out.push('}');
            }
            _ => return Err(Refused::Unlike("repr")),
        }
        Ok(())
    }

    /// A value that outlives the text it was read from.
    pub fn into_owned<'b>(self) -> Value<'b> {
        match self {
            Self::None => Value::None,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(value) => Value::Int(value),
            Self::Float(value) => Value::Float(value),
            Self::Str(text) => Value::Str(owned(&text)),
            Self::List(items) => {
                Value::list(items.iter().cloned().map(Value::into_owned).collect())
            }
            Self::Dict(items) => Value::dict(
                items
                    .iter()
                    .map(|(key, value)| (owned(key), value.clone().into_owned()))
                    .collect(),
            ),
            // JSON has no other values.
            _ => Value::Undefined,
        }
    }

    /// An integer, where Python takes this value for one in a comparison.
    fn number(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// The value of an `int` or a `float` in arithmetic of floats.
    pub fn float(&self) -> Result<f64> {
        match self {
            Self::Int(value) => exact_float(*value),
            Self::Float(value) => Ok(*value),
            _ => Err(Refused::Unlike("not a number")),
        }
    }

    /// Whether values of another kind are unequal to it.
    fn is_plain(&self) -> bool {
        matches!(
            self,
            Self::Undefined
                | Self::None
                | Self::Bool(_)
                | Self::Int(_)
                | Self::Float(_)
                | Self::Str(_)
                | Self::List(_)
                | Self::Tuple(_)
                | Self::Dict(_)
        )
    }
}

fn owned<'b>(text: &Text<'_>) -> Text<'b> {
    match text {
        Text::Borrowed(text) => Text::Shared((*text).into()),
        Text::Shared(text) => Text::Shared(Rc::clone(text)),
    }
}

fn exact_float(value: i64) -> Result<f64> {
    if value.unsigned_abs() > 1 << 53 {
        return Err(Refused::Unlike("large integer as float"));
    }
    Ok(value as f64)
}

pub fn write_to(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(arguments);
}

/// Appends `repr` of a float. A number of up to 15 digits has one shortest text, so Rust prints the same; of longer ones,
/// Python and Rust may choose different neighbours. Beyond the bounds here Python takes an exponent.
pub fn print_float(value: f64, out: &mut String) -> Result<()> {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        return Err(Refused::Unlike("float with exponent"));
    }
    let before = out.len();
    write_to(out, format_args!("{value:?}"));
    let digits = out[before..].trim_start_matches(['-', '0', '.']);
    if digits.bytes().filter(u8::is_ascii_digit).count() > 15 {
        return Err(Refused::Unlike("float of many digits"));
    }
    Ok(())
}

fn repr_all(items: &[Value<'_>], out: &mut String) -> Result<()> {
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            out.push_str(", ");
        }
        item.repr(out)?;
    }
    Ok(())
}

fn repr_text(text: &str, out: &mut String) -> Result<()> {
    if !text.is_ascii() {
        // Which characters Python escapes depends on its version of Unicode.
        return Err(Refused::Unlike("repr of other than ASCII"));
    }
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            char if char == quote => {
                out.push('\\');
                out.push(char);
            }
            ' '..='~' => out.push(char),
            char => write_to(out, format_args!("\\x{:02x}", u32::from(char))),
        }
    }
    out.push(quote);
    Ok(())
}
