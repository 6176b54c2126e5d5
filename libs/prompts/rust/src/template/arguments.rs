//! The arguments of a filter, a method or a function.

use super::refused::{Refused, Result};
use super::value::Value;

/// The arguments of a call.
pub struct Arguments<'a> {
    pub places: Vec<Value<'a>>,
    pub names: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Arguments<'a> {
    /// Takes the argument at a place or of that name.
    pub fn take(&mut self, place: usize, name: &str) -> Option<Value<'a>> {
        if let Some(value) = self.places.get_mut(place) {
            return Some(std::mem::replace(value, Value::Undefined));
        }
        let found = self.names.iter().position(|(known, _)| *known == name)?;
        Some(self.names.swap_remove(found).1)
    }

    /// Refuses arguments beyond those that were taken.
    pub fn end(&self, places: usize) -> Result<()> {
        if self.places.len() > places || !self.names.is_empty() {
            return Err(Refused::Unlike("argument"));
        }
        Ok(())
    }
}
