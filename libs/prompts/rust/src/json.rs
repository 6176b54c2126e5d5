//! Reads JSON with serde, as Python's libraries read it; what they may read in another way is an error.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::template::{Dict, Text, Value};

/// From here on a number may be an integer that serde has rounded.
const FLOAT_MAX: f64 = 1e15;

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;

        impl<'de> Visitor<'de> for Reads {
            type Value = Text<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text::Shared(text.into()))
            }
        }

        deserializer.deserialize_str(Reads)
    }
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ReadsValue)
    }
}

struct ReadsValue;

impl<'de> Visitor<'de> for ReadsValue {
    type Value = Value<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON that Python reads in the same way")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value<'de>, E> {
        i64::try_from(value).map(Value::Int).map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value<'de>, E> {
        // Serde reads the integer -0 as a float.
        if value.abs() >= FLOAT_MAX || (value == 0.0 && value.is_sign_negative()) {
            return Err(E::custom("maybe an integer"));
        }
        Ok(Value::Float(value))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Str(Text::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Str(Text::Shared(text.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::list(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Value<'de>, A::Error> {
        read_table(entries).map(|table| Value::dict(table.0))
    }
}

/// An object.
pub struct Table<'a>(pub Dict<'a>);

impl<'de> Deserialize<'de> for Table<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;

        impl<'de> Visitor<'de> for Reads {
            type Value = Table<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Table<'de>, A::Error> {
                read_table(entries)
            }
        }

        deserializer.deserialize_map(Reads)
    }
}

/// As in Python, the last of equal keys counts, at the place of the first.
fn read_table<'de, A: MapAccess<'de>>(mut entries: A) -> Result<Table<'de>, A::Error> {
    let mut table = Dict::default();
    while let Some((key, value)) = entries.next_entry()? {
        table.insert(key, value);
    }
    Ok(Table(table))
}

/// Any value, checked and dropped. serde's own `IgnoredAny` checks less: any depth, any bytes in strings.
pub struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Skips)
    }
}

/// An object, checked and dropped.
pub struct SkippedTable;

impl<'de> Deserialize<'de> for SkippedTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Skips).map(|Skipped| Self)
    }
}

struct Skips;

impl<'de> Visitor<'de> for Skips {
    type Value = Skipped;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_str<E>(self, _: &str) -> Result<Skipped, E> {
        Ok(Skipped)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Skipped, A::Error> {
        while items.next_element::<Skipped>()?.is_some() {}
        Ok(Skipped)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Skipped, A::Error> {
        while entries.next_entry::<Skipped, Skipped>()?.is_some() {}
        Ok(Skipped)
    }
}

/// A list of objects: kept, or checked and counted.
pub struct ReadsTables {
    pub keeps: bool,
}

impl<'de> DeserializeSeed<'de> for ReadsTables {
    type Value = (Vec<Dict<'de>>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ReadsTables {
    type Value = (Vec<Dict<'de>>, usize);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut tables = Vec::new();
        let mut count = 0;
        if self.keeps {
            while let Some(Table(table)) = items.next_element()? {
                tables.push(table);
                count += 1;
            }
        } else {
            while items.next_element::<SkippedTable>()?.is_some() {
                count += 1;
            }
        }
        Ok((tables, count))
    }
}
