//! Reads msgpack in place: values, and the heads of values that others follow.
//!
//! A message counts only if all of it is well-formed, so every byte of it is skipped over and checked
//! (`skip`), also fields that are not used. It refuses what the reference decoder refuses: truncation,
//! the unused byte c1, text that is not UTF-8, map keys that hold maps, very deep nesting.

mod skip;

use std::fmt;

/// The bytes are not an engine's message; the text says why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// One value, or the head of one that others follow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Head<'a> {
    Nil,
    Bool(bool),
    Int(Integer),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// This number of values follows.
    Array(u32),
    /// This number of pairs follows.
    Map(u32),
    Extension,
}

impl Head<'_> {
    /// The name of the type, for error texts.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "array",
            Self::Map(_) => "map",
            Self::Extension => "extension",
        }
    }
}

/// Any integer of msgpack, without the 128 bits that would hold them all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Integer {
    Unsigned(u64),
    Negative(i64),
}

impl Integer {
    pub fn wide(self) -> i128 {
        match self {
            Self::Unsigned(number) => number.into(),
            Self::Negative(number) => number.into(),
        }
    }

    fn signed(number: i64) -> Self {
        u64::try_from(number).map_or(Self::Negative(number), Self::Unsigned)
    }
}

/// A position in a message.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub const fn at(&self) -> usize {
        self.at
    }

    pub const fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Reads one value, or the head of an array or a map.
    #[inline]
    pub fn head(&mut self) -> Result<Head<'a>, Malformed> {
        // Most fields are one of these two.
        let head = match self.bytes.get(self.at) {
            Some(0xc0) => Head::Nil,
            Some(&number @ 0x00..=0x7f) => unsigned(number),
            _ => return self.any_head(),
        };
        self.at += 1;
        Ok(head)
    }

    fn any_head(&mut self) -> Result<Head<'a>, Malformed> {
        let [byte] = self.fixed()?;
        Ok(match byte {
            0x00..=0x7f => unsigned(byte),
            0x80..=0x8f => Head::Map(u32::from(byte & 0x0f)),
            0x90..=0x9f => Head::Array(u32::from(byte & 0x0f)),
            0xa0..=0xbf => self.text(usize::from(byte & 0x1f))?,
            0xc0 => Head::Nil,
            0xc1 => return Err(malformed(format!("byte {byte:#x} at {}", self.at - 1))),
            0xc2 | 0xc3 => Head::Bool(byte == 0xc3),
            0xc4..=0xc6 => {
                let length = self.length(byte - 0xc4)?;
                Head::Bytes(self.take(length as usize)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(byte - 0xc7)?;
                self.take(length as usize + 1)?;
                Head::Extension
            }
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => unsigned(u8::from_be_bytes(self.fixed()?)),
            0xcd => unsigned(u16::from_be_bytes(self.fixed()?)),
            0xce => unsigned(u32::from_be_bytes(self.fixed()?)),
            0xcf => unsigned(u64::from_be_bytes(self.fixed()?)),
            0xd0 => signed(i8::from_be_bytes(self.fixed()?)),
            0xd1 => signed(i16::from_be_bytes(self.fixed()?)),
            0xd2 => signed(i32::from_be_bytes(self.fixed()?)),
            0xd3 => signed(i64::from_be_bytes(self.fixed()?)),
            0xd4..=0xd8 => {
                self.take((1 << (byte - 0xd4)) + 1)?;
                Head::Extension
            }
            0xd9..=0xdb => {
                let length = self.length(byte - 0xd9)?;
                self.text(length as usize)?
            }
            0xdc => Head::Array(self.length(1)?),
            0xdd => Head::Array(self.length(2)?),
            0xde => Head::Map(self.length(1)?),
            0xdf => Head::Map(self.length(2)?),
            0xe0..=0xff => signed(byte as i8),
        })
    }

    fn text(&mut self, length: usize) -> Result<Head<'a>, Malformed> {
        let start = self.at;
        let bytes = self.take(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Head::Text(text)),
            Err(_) => Err(malformed(format!("text at {start} that is not UTF-8"))),
        }
    }

    /// A length of 8, 16 or 32 bits.
    fn length(&mut self, width: u8) -> Result<u32, Malformed> {
        Ok(match width {
            0 => u32::from(u8::from_be_bytes(self.fixed()?)),
            1 => u32::from(u16::from_be_bytes(self.fixed()?)),
            _ => u32::from_be_bytes(self.fixed()?),
        })
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let found = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk);
        self.at += N;
        found.copied().ok_or_else(truncated)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length).ok_or_else(truncated)?;
        let found = self.bytes.get(self.at..end).ok_or_else(truncated)?;
        self.at = end;
        Ok(found)
    }
}

fn unsigned<'a>(number: impl Into<u64>) -> Head<'a> {
    Head::Int(Integer::Unsigned(number.into()))
}

fn signed<'a>(number: impl Into<i64>) -> Head<'a> {
    Head::Int(Integer::signed(number.into()))
}

fn malformed(what: String) -> Malformed {
    Malformed(format!("not msgpack: {what}"))
}

fn truncated() -> Malformed {
    malformed("it is truncated".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_are_read() {
        let mut cursor = Cursor::new(b"\x7f\xff\xcc\x80\xd0\x80\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 0);
        for expected in [
            127,
            -1,
            128,
            -128,
            i128::from(u64::MAX),
            i128::from(i64::MIN),
        ] {
            let Ok(Head::Int(number)) = cursor.head() else {
                panic!("{expected}");
            };
            assert_eq!(number.wide(), expected);
        }
    }
}
