//! Reads msgpack in place: heads of values, and whole values passed over with all checks.
//!
//! A message is believed only when all of it is well-formed, so every byte of it is passed over and
//! checked, also of what nobody reads. What is refused is what the reference's decoder refuses: truncation, the unused
//! byte c1, text that is not UTF-8, map keys that hold maps, nesting beyond any message's.

use std::fmt;
use std::ops::Range;

/// The reference's decoder stops at about a thousand.
const DEPTH_MAX: u32 = 900;

/// The bytes are no message of an engine; the text says what is wrong with them.
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
    /// So many values follow.
    Array(u32),
    /// So many pairs follow.
    Map(u32),
    Extension,
}

impl Head<'_> {
    /// What a value is, for texts.
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

/// An integer of any that msgpack has, without the width that holds them all.
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

/// A place in a message.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// By first byte, how long a value of a fixed width is with it; 0: another value.
const WIDTHS: [u8; 256] = {
    let mut widths = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        widths[byte] = match byte {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xca | 0xce | 0xd2 => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 0,
        };
        byte += 1;
    }
    widths
};

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

    /// Passes over one whole value, checking it. `depth`: how many arrays and maps it stands in.
    #[inline]
    pub fn skip(&mut self, depth: u32) -> Result<(), Malformed> {
        self.skip_many(1, depth, false)
    }

    /// Passes over a map's key; returns what `known` knows it as. Who knows a name has compared it
    /// with text, so only of other names is it asked whether they are text.
    #[inline]
    pub fn key<T>(
        &mut self,
        depth: u32,
        known: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Malformed> {
        if let [byte @ 0xa0..=0xbf, rest @ ..] = &self.bytes[self.at..]
            && let length = usize::from(byte & 0x1f)
            && let Some(name) = rest.get(..length)
            && let Some(found) = known(name)
        {
            self.at += 1 + length;
            return Ok(Some(found));
        }
        let mut key = *self;
        if let Head::Text(name) = key.head()? {
            *self = key;
            return Ok(known(name.as_bytes()));
        }
        self.skip_many(1, depth, true)?;
        Ok(None)
    }

    /// Passes over values that stand beside each other. Nearly all are scalars, and nearly all
    /// scalars have the width of the one before.
    fn skip_many(&mut self, count: u32, depth: u32, are_keys: bool) -> Result<(), Malformed> {
        let mut left = count;
        while left > 0 {
            left -= self.skip_scalars(left);
            if left > 0 {
                self.skip_other(depth, are_keys)?;
                left -= 1;
            }
        }
        Ok(())
    }

    /// Passes over a value that is no scalar of a fixed width.
    fn skip_other(&mut self, depth: u32, is_key: bool) -> Result<(), Malformed> {
        if depth > DEPTH_MAX {
            return Err(malformed(format!("nested deeper than {DEPTH_MAX}")));
        }
        match self.head()? {
            Head::Array(count) => self.skip_many(count, depth + 1, is_key),
            Head::Map(_) if is_key => Err(malformed("a map as a map's key".into())),
            Head::Map(count) => {
                for _ in 0..count {
                    self.skip_many(1, depth + 1, true)?;
                    self.skip_many(1, depth + 1, false)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Passes over at most `count` values of a fixed width, up to the first other one.
    #[inline]
    fn skip_scalars(&mut self, count: u32) -> u32 {
        let mut at = self.at;
        let mut left = count;
        while left > 0
            && let Some(&first) = self.bytes.get(at)
        {
            let width = usize::from(WIDTHS[usize::from(first)]);
            if width == 0 || self.bytes.len() - at < width {
                break;
            }
            at += width;
            left -= 1;
            // Of equal ones the next place does not wait for what is read at this one.
            while left > 0 && self.bytes.get(at) == Some(&first) && self.bytes.len() - at >= width {
                at += width;
                left -= 1;
            }
        }
        self.at = at;
        count - left
    }

    /// Passes over one value; if it is an array of nothing but unsigned integers of at most 32
    /// bits, appends these and returns where they are.
    pub fn skip_numbers_u32(
        &mut self,
        depth: u32,
        into: &mut Vec<u32>,
    ) -> Result<Option<Range<usize>>, Malformed> {
        let mut inside = *self;
        let Head::Array(count) = inside.head()? else {
            self.skip(depth)?;
            return Ok(None);
        };
        *self = inside;
        let start = into.len();
        let read = self.numbers_u32(count as usize, into) as u32;
        if read == count {
            return Ok(Some(start..into.len()));
        }
        into.truncate(start);
        self.skip_many(count - read, depth + 1, false)?;
        Ok(None)
    }

    /// Appends unsigned integers of at most 32 bits, until `count` or until something else.
    pub fn numbers_u32(&mut self, count: usize, into: &mut Vec<u32>) -> usize {
        let mut rest = &self.bytes[self.at..];
        into.reserve(count.min(rest.len())); // each takes a byte at least
        let begun = into.len();
        while into.len() - begun < count {
            // The two that most token ids are. They mix at random, so no branch tells them apart.
            if let [first @ (0xcd | 0xce), a, b, c, d, ..] = *rest {
                let wide = usize::from(first & 2);
                into.push(u32::from_be_bytes([a, b, c, d]) >> (16 - 8 * wide));
                rest = &rest[3 + wide..];
                continue;
            }
            let (number, width) = match *rest {
                [0xce, a, b, c, d, ..] => (u32::from_be_bytes([a, b, c, d]), 5),
                [0xcd, a, b, ..] => (u32::from(u16::from_be_bytes([a, b])), 3),
                [byte @ 0x00..=0x7f, ..] => (u32::from(byte), 1),
                [0xcc, a, ..] => (u32::from(a), 2),
                _ => break,
            };
            into.push(number);
            rest = &rest[width..];
        }
        self.at = self.bytes.len() - rest.len();
        into.len() - begun
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

    fn skip(bytes: &[u8]) -> Result<bool, Malformed> {
        let mut cursor = Cursor::new(bytes, 0);
        cursor.skip(0)?;
        Ok(cursor.is_at_end())
    }

    #[test]
    fn every_truncation_of_a_value_is_noticed() {
        let value = b"\x83\xa1a\x93\x01\xcd\x01\x02\xcf\x00\x00\x00\x00\x00\x00\x00\x01\xc4\x02ab\x91\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xd9\x01b\xd5\x05xy";
        assert_eq!(skip(value), Ok(true));
        for length in 0..value.len() {
            assert!(skip(&value[..length]).is_err(), "length {length}");
        }
    }

    #[test]
    fn a_claimed_length_costs_nothing_and_nesting_ends() {
        assert!(skip(b"\xdd\xff\xff\xff\xff").is_err());
        assert!(skip(&[0x91; 100_000]).is_err());
        assert!(skip(b"\xc6\xff\xff\xff\xffab").is_err());
    }

    #[test]
    fn what_cannot_be_a_key_is_no_key() {
        assert_eq!(skip(b"\x81\x91\x01\x02"), Ok(true));
        assert!(skip(b"\x81\x80\x02").is_err());
        assert!(skip(b"\x81\x91\x80\x02").is_err());
    }

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
