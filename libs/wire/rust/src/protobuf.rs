//! Reads the protobuf wire format in place, and writes its varints.
//!
//! Code that runs per block or per look-up cannot afford a generated message of vectors. Here fields are
//! borrowed slices of the input, nothing is allocated, and no input is trusted.

use std::fmt;

/// The bytes are not a protobuf message of the expected form; the text says why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed: {}", self.0)
    }
}

/// The encoded value of one field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1, eight little-endian bytes.
    Fixed64(&'a [u8; 8]),
    /// Wire type 2: text, bytes, a message, or a packed column.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32,
}

impl<'a> Value<'a> {
    /// An unsigned integer or a bool.
    pub fn varint(self) -> Result<u64, Malformed> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(Malformed("an integer is expected")),
        }
    }

    /// A `uint32` or an enum.
    pub fn u32(self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("an integer is out of range"))
    }

    /// A `fixed64`.
    pub fn fixed64(self) -> Result<u64, Malformed> {
        match self {
            Self::Fixed64(bytes) => Ok(u64::from_le_bytes(*bytes)),
            _ => Err(Malformed("a fixed64 is expected")),
        }
    }

    /// A nested message, or bytes.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("a message or text is expected")),
        }
    }

    /// A string.
    pub fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("text is not UTF-8"))
    }

    /// The bytes of a `repeated fixed64`: a whole packed column, or one value.
    pub fn fixed64s(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Fixed64(bytes) => Ok(bytes),
            Self::Bytes(bytes) if bytes.len() % 8 == 0 => Ok(bytes),
            _ => Err(Malformed("a column of fixed64 is expected")),
        }
    }
}

/// The fields of one message, in wire order.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of this encoded message.
    #[must_use]
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Reads a varint. Keys and most lengths take one byte, so that case is inlined.
    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                if i == 9 && byte > 1 {
                    break;
                }
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(Malformed("a varint has no end"))
    }

    #[inline]
    fn take(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed("a length is out of range"))?;
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(Malformed("the message ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let key = self.varint()?;
        let number =
            u32::try_from(key >> 3).map_err(|_| Malformed("a field number is too large"))?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                let (bytes, rest) = self
                    .rest
                    .split_first_chunk()
                    .ok_or(Malformed("the message ends early"))?;
                self.rest = rest;
                Value::Fixed64(bytes)
            }
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => {
                self.take(4)?;
                Value::Fixed32
            }
            _ => return Err(Malformed("an unknown wire type")),
        };
        if number == 0 {
            Err(Malformed("field number 0"))
        } else {
            Ok((number, value))
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.field().inspect_err(|_| self.rest = &[]))
    }
}

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes of an encoded varint.
#[must_use]
pub fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_reads_back_at_every_length() {
        for shift in 0..64 {
            for value in [(1u64 << shift) - 1, 1 << shift, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, value);
                assert_eq!(bytes.len(), varint_len(value), "{value}");
                let mut fields = Fields::of(&bytes);
                assert_eq!(fields.varint(), Ok(value));
                assert!(fields.rest.is_empty());
            }
        }
    }

    #[test]
    fn no_prefix_of_a_message_and_no_garbage_panics() {
        let message = [
            0x0a, 0x03, b'a', b'b', b'c', 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0x18, 0xff, 0x01,
        ];
        assert_eq!(Fields::of(&message).filter(Result::is_ok).count(), 3);
        for len in 0..message.len() {
            for _ in Fields::of(&message[..len]) {}
        }
        assert!(Fields::of(&[0x80; 12]).all(|field| field.is_err()));
        assert!(Fields::of(&[0x02, 0x00]).all(|field| field.is_err()));
    }
}
