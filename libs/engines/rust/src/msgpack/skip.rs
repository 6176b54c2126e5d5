//! Skips over msgpack values and checks them; appends arrays of numbers to a column on the way.
//!
//! Nearly all bytes of a message are numbers in long arrays, so these loops are the cost of reading.

use std::ops::Range;

use super::{Cursor, Head, Malformed, malformed};

/// The reference decoder stops at about a thousand.
const DEPTH_MAX: u32 = 900;

/// The length of a value of fixed width, by its first byte and with it; 0: no fixed width.
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
    /// Skips one whole value and checks it. `depth`: the number of arrays and maps around it.
    #[inline]
    pub fn skip(&mut self, depth: u32) -> Result<(), Malformed> {
        self.skip_many(1, depth, false)
    }

    /// Skips a map's key; returns what `known` makes of it. A known name has been compared with
    /// text, so only unknown names are checked to be text.
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

    /// Skips nil, if it is next.
    #[inline]
    pub fn skip_nil(&mut self) -> bool {
        let is_nil = self.bytes.get(self.at) == Some(&0xc0);
        self.at += usize::from(is_nil);
        is_nil
    }

    /// Reads an unsigned integer of 64 bits, if one of that width is next.
    #[inline]
    pub fn number_u64(&mut self) -> Option<u64> {
        let [0xcf, number @ ..] = &self.bytes[self.at..] else {
            return None;
        };
        let number = u64::from_be_bytes(*number.first_chunk()?);
        self.at += 9;
        Some(number)
    }

    /// Skips values one after the other. Nearly all are scalars, and nearly all scalars have the
    /// width of the one before.
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

    /// Skips a value that is not a scalar of a fixed width.
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

    /// Skips at most `count` values of a fixed width, up to the first other one.
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
            // While the first bytes are equal, the next position does not wait for the byte read here.
            while left > 0 && self.bytes.get(at) == Some(&first) && self.bytes.len() - at >= width {
                at += width;
                left -= 1;
            }
        }
        self.at = at;
        count - left
    }

    /// Skips one value. If it is an array of nothing but unsigned integers of at most 32 bits,
    /// appends these and returns their range.
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

    /// Appends unsigned integers of at most 32 bits, until `count` of them or until another value.
    pub fn numbers_u32(&mut self, count: usize, into: &mut Vec<u32>) -> usize {
        let mut rest = &self.bytes[self.at..];
        into.reserve(count.min(rest.len())); // each takes a byte at least
        let begun = into.len();
        while into.len() - begun < count {
            // Most token ids are one of these two. They mix at random, so no branch tells them apart.
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let mut numbers = Vec::new();
        let list = b"\xdd\xff\xff\xff\xff\x01\x02";
        let found = Cursor::new(list, 0).skip_numbers_u32(0, &mut numbers);
        assert!(found.is_err());
        assert!(numbers.is_empty() && numbers.capacity() < 64);
    }

    #[test]
    fn what_cannot_be_a_key_is_no_key() {
        assert_eq!(skip(b"\x81\x91\x01\x02"), Ok(true));
        assert!(skip(b"\x81\x80\x02").is_err());
        assert!(skip(b"\x81\x91\x80\x02").is_err());
    }

    /// The specification of `skip`: head by head.
    fn plainly(cursor: &mut Cursor<'_>, depth: u32, is_key: bool) -> Result<(), Malformed> {
        let mut peeked = *cursor;
        let head = peeked.head();
        let is_scalar = matches!(
            head,
            Ok(Head::Nil | Head::Bool(_) | Head::Int(_) | Head::Float(_))
        );
        if depth > DEPTH_MAX && !is_scalar {
            return Err(malformed(format!("nested deeper than {DEPTH_MAX}")));
        }
        *cursor = peeked;
        match head? {
            Head::Array(count) => {
                (0..count).try_for_each(|_| plainly(cursor, depth + 1, is_key))?;
            }
            Head::Map(_) if is_key => return Err(malformed("a map as a map's key".into())),
            Head::Map(count) => (0..count).try_for_each(|_| {
                plainly(cursor, depth + 1, true)?;
                plainly(cursor, depth + 1, false)
            })?,
            _ => (),
        }
        Ok(())
    }

    /// A value nested at most so deep, of few kinds of scalars, so that equal ones stand together.
    fn value(depth: u32) -> BoxedStrategy<Vec<u8>> {
        let scalar = prop_oneof![
            Just(b"\xc0".to_vec()),
            Just(b"\xcd\x01\x02".to_vec()),
            Just(b"\xce\x01\x02\x03\x04".to_vec()),
            Just(b"\xcf\x01\x02\x03\x04\x05\x06\x07\x08".to_vec()),
            Just(b"\xa2ab".to_vec()),
            Just(b"\xc4\x01a".to_vec()),
            any::<u8>().prop_map(|byte| vec![byte]),
        ];
        if depth == 0 {
            return scalar.boxed();
        }
        let values = prop::collection::vec(value(depth - 1), 0..12);
        let nested = (values, any::<bool>()).prop_map(|(values, as_map)| {
            let head = match as_map {
                false => 0x90 | values.len() as u8,
                true => 0x80 | (values.len() / 2) as u8,
            };
            [vec![head], values.concat()].concat()
        });
        prop_oneof![scalar, nested].boxed()
    }

    proptest! {
        #[test]
        fn skipping_is_reading_head_by_head(bytes in value(3), depth in 0..2_u32) {
            let mut quick = Cursor::new(&bytes, 0);
            let mut plain = quick;
            let skipped = plainly(&mut plain, depth, false);
            prop_assert_eq!(quick.skip(depth), skipped.clone());
            let mut taken = Cursor::new(&bytes, 0);
            let mut numbers = vec![7];
            let found = taken.skip_numbers_u32(depth, &mut numbers);
            prop_assert_eq!(found.clone().map(|_| ()), skipped.clone());
            if skipped.is_ok() {
                prop_assert_eq!((quick.at, taken.at), (plain.at, plain.at));
                let range = found.ok().flatten().unwrap_or(1..1);
                prop_assert_eq!(range, 1..numbers.len());
            }
        }

        #[test]
        fn numbers_of_all_widths_are_read_and_every_truncation_ends_them(
            numbers in prop::collection::vec((0..4_u32, any::<u32>()), 0..40)
        ) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            let mut ends = Vec::new();
            for (width, number) in numbers {
                let [a, b, c, d] = number.to_be_bytes();
                let (number, written) = match width {
                    0 => (u32::from(d & 0x7f), vec![d & 0x7f]),
                    1 => (u32::from(d), vec![0xcc, d]),
                    2 => (u32::from_be_bytes([0, 0, c, d]), vec![0xcd, c, d]),
                    _ => (number, vec![0xce, a, b, c, d]),
                };
                bytes.extend(written);
                expected.push(number);
                ends.push(bytes.len());
            }
            for length in 0..=bytes.len() {
                let whole = ends.iter().filter(|end| **end <= length).count();
                let mut cursor = Cursor::new(&bytes[..length], 0);
                let mut read = Vec::new();
                prop_assert_eq!(cursor.numbers_u32(usize::MAX, &mut read), whole);
                prop_assert_eq!(&read, &expected[..whole]);
                prop_assert_eq!(cursor.at, ends[..whole].last().copied().unwrap_or(0));
            }
        }
    }
}
