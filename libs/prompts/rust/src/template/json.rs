//! `tojson`: Python's `json.dumps`, with non-ASCII characters as they are.

use std::borrow::Cow;

use super::refused::{Refused, Result};
use super::value::{Dict, Text, Value, print_float, write_to};

/// The arguments of `json.dumps`.
pub struct Style {
    pub ensure_ascii: bool,
    /// The text of one level; None: all on one line.
    pub indent: Option<String>,
    pub item_separator: Cow<'static, str>,
    pub key_separator: Cow<'static, str>,
    pub sort_keys: bool,
}

impl Style {
    pub fn dump(&self, value: &Value<'_>, out: &mut String, depth: usize) -> Result<()> {
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(value) => write_to(out, format_args!("{value}")),
            Value::Float(value) => print_float(*value, out)?,
            Value::Str(text) => self.text(text, out),
            Value::List(items) | Value::Tuple(items) => {
                if items.is_empty() {
                    out.push_str("[]");
                    return Ok(());
                }
                out.push('[');
                for (place, item) in items.iter().enumerate() {
                    self.next(place, out, depth + 1);
                    self.dump(item, out, depth + 1)?;
                }
                self.end_line(out, depth);
                out.push(']');
            }
            Value::Dict(items) => self.table(items, out, depth)?,
            _ => return Err(Refused::Unlike("tojson")),
        }
        Ok(())
    }

    fn table(&self, items: &Dict<'_>, out: &mut String, depth: usize) -> Result<()> {
        if items.is_empty() {
            out.push_str("{}");
            return Ok(());
        }
        let mut entries: Vec<(&Text<'_>, &Value<'_>)> = items.iter().collect();
        if self.sort_keys {
            entries.sort_by_key(|(key, _)| &***key);
        }
        out.push('{');
        for (place, (key, value)) in entries.into_iter().enumerate() {
            self.next(place, out, depth + 1);
            self.text(key, out);
            out.push_str(&self.key_separator);
            self.dump(value, out, depth + 1)?;
        }
        self.end_line(out, depth);
        out.push('}');
        Ok(())
    }

    fn next(&self, place: usize, out: &mut String, depth: usize) {
        if place > 0 {
            out.push_str(&self.item_separator);
        }
        self.end_line(out, depth);
    }

    fn end_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        let mut rest = text;
        while let Some(place) = rest.find(|char| self.is_escaped(char)) {
            out.push_str(&rest[..place]);
            let mut chars = rest[place..].chars();
            if let Some(char) = chars.next() {
                escape(char, out);
            }
            rest = chars.as_str();
        }
        out.push_str(rest);
        out.push('"');
    }

    fn is_escaped(&self, char: char) -> bool {
        matches!(char, '"' | '\\' | '\0'..='\x1f') || (self.ensure_ascii && !char.is_ascii())
    }
}

fn escape(char: char, out: &mut String) {
    match char {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        char => {
            for unit in char.encode_utf16(&mut [0; 2]) {
                write_to(out, format_args!("\\u{unit:04x}"));
            }
        }
    }
}
