//! Command lines of the index benchmark: `--name value` pairs and bare `--switches`, each known.

use std::collections::BTreeMap;
use std::str::FromStr;

/// The words after a subcommand, taken out one by one; what is left at the end is unknown.
pub struct Args {
    values: BTreeMap<String, String>,
    switches: Vec<String>,
}

impl Args {
    /// Reads `words`; those in `switches` stand alone, all others have a value.
    ///
    /// # Errors
    /// One line that names the word.
    pub fn read(words: &[String], switches: &[&str]) -> Result<Self, String> {
        let mut args = Self {
            values: BTreeMap::new(),
            switches: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| format!("{word:?}: flags begin with --"))?;
            let twice = if switches.contains(&name) {
                let twice = args.switches.iter().any(|known| known == name);
                args.switches.push(name.to_owned());
                twice
            } else {
                let value = words
                    .next()
                    .ok_or_else(|| format!("--{name} has no value"))?;
                args.values.insert(name.to_owned(), value.clone()).is_some()
            };
            if twice {
                return Err(format!("--{name} is given twice"));
            }
        }
        Ok(args)
    }

    /// Whether a switch is there.
    pub fn switch(&mut self, name: &str) -> bool {
        let before = self.switches.len();
        self.switches.retain(|known| known != name);
        self.switches.len() < before
    }

    /// A text that has no default.
    ///
    /// # Errors
    /// If it is missing.
    pub fn text(&mut self, name: &str) -> Result<String, String> {
        self.optional(name)
            .ok_or_else(|| format!("--{name} is required"))
    }

    /// A text, if given.
    pub fn optional(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    /// A number.
    ///
    /// # Errors
    /// If it is no number of that type.
    pub fn number<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, String> {
        match self.optional(name) {
            None => Ok(default),
            Some(value) => value
                .parse()
                .map_err(|_| format!("--{name} {value}: not such a number")),
        }
    }

    /// A number from 1.
    ///
    /// # Errors
    /// If it is none.
    pub fn positive<T: FromStr + Default + PartialEq>(
        &mut self,
        name: &str,
        default: T,
    ) -> Result<T, String> {
        let number = self.number(name, default)?;
        if number == T::default() {
            return Err(format!("--{name} is at least 1"));
        }
        Ok(number)
    }

    /// A share from 0 up to, not including, `below`.
    ///
    /// # Errors
    /// If it is none.
    pub fn share(&mut self, name: &str, default: f64, below: f64) -> Result<f64, String> {
        let share = self.number(name, default)?;
        if !(0.0..below).contains(&share) {
            return Err(format!("--{name} {share}: from 0 to below {below}"));
        }
        Ok(share)
    }

    /// Which of two words: true for the first, which is the default.
    ///
    /// # Errors
    /// If it is neither.
    pub fn first_of(&mut self, name: &str, words: [&str; 2]) -> Result<bool, String> {
        match self.optional(name).as_deref() {
            None => Ok(true),
            Some(value) if value == words[0] => Ok(true),
            Some(value) if value == words[1] => Ok(false),
            Some(value) => Err(format!("--{name} {value}: {} or {}", words[0], words[1])),
        }
    }

    /// All flags have been taken.
    ///
    /// # Errors
    /// Names one that has not.
    pub fn done(self) -> Result<(), String> {
        match self.values.keys().chain(&self.switches).next() {
            Some(unknown) => Err(format!("--{unknown} is no flag; --help lists them")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<Args, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Args::read(&words, &["exact"])
    }

    #[test]
    fn values_and_switches_are_told_apart() {
        let mut args = args("--exact --limit 3 --answers ids").unwrap();
        assert!(args.switch("exact"));
        assert!(!args.switch("exact"));
        assert_eq!(args.number("limit", 0), Ok(3));
        assert_eq!(args.first_of("answers", ["pairs", "ids"]), Ok(false));
        assert_eq!(args.number("window-ms", 7), Ok(7));
        assert_eq!(args.done(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |line: &str| args(line).err().unwrap();
        assert!(error("exact").contains("exact"));
        assert!(error("--limit").contains("--limit has no value"));
        assert!(error("--exact --exact").contains("twice"));
        assert!(error("--limit 1 --limit 1").contains("twice"));
        let mut some = args("--limit x --workers 0 --share 1 --what 1").unwrap();
        assert!(some.number("limit", 0).unwrap_err().contains("--limit x"));
        assert!(
            some.positive("workers", 1)
                .unwrap_err()
                .contains("at least 1")
        );
        assert!(
            some.share("share", 0.0, 1.0)
                .unwrap_err()
                .contains("below 1")
        );
        assert!(some.text("out").unwrap_err().contains("--out is required"));
        assert!(some.done().unwrap_err().contains("--what is no flag"));
    }
}
