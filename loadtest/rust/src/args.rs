//! Command lines of all subcommands: `--name value` pairs and bare `--switches`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Any error of a load.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Why a subcommand failed.
pub enum CommandError {
    /// The command line is wrong.
    Usage(String),
    /// A file or an indexer cannot be used, or an answer is wrong.
    Failed(String),
}

impl From<String> for CommandError {
    fn from(problem: String) -> Self {
        Self::Usage(problem)
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.to_string())
    }
}

/// The flags after a subcommand. They are taken out one by one; those left at the end are unknown.
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

    /// Whether a switch is given.
    pub fn switch(&mut self, name: &str) -> bool {
        let before = self.switches.len();
        self.switches.retain(|known| known != name);
        self.switches.len() < before
    }

    /// Whether a flag with a value is given.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
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

    /// A number or a text that has a default.
    ///
    /// # Errors
    /// If it is no value of that type.
    pub fn value<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, String> {
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
    /// If it is 0, or no number of that type.
    pub fn positive<T: FromStr + Default + PartialEq>(
        &mut self,
        name: &str,
        default: T,
    ) -> Result<T, String> {
        let number = self.value(name, default)?;
        if number == T::default() {
            return Err(format!("--{name} is at least 1"));
        }
        Ok(number)
    }

    /// A share from 0 to below `below`.
    ///
    /// # Errors
    /// If it is outside that range, or no number.
    pub fn share(&mut self, name: &str, default: f64, below: f64) -> Result<f64, String> {
        let share = self.value(name, default)?;
        if !(0.0..below).contains(&share) {
            return Err(format!("--{name} {share}: from 0 to below {below}"));
        }
        Ok(share)
    }

    /// Whether the value is the first of two words, which is the default.
    ///
    /// # Errors
    /// If it is neither word.
    pub fn first_of(&mut self, name: &str, words: [&str; 2]) -> Result<bool, String> {
        match self.optional(name).as_deref() {
            None => Ok(true),
            Some(value) if value == words[0] => Ok(true),
            Some(value) if value == words[1] => Ok(false),
            Some(value) => Err(format!("--{name} {value}: {} or {}", words[0], words[1])),
        }
    }

    /// Checks that all flags have been taken out.
    ///
    /// # Errors
    /// One line that names a flag that is left.
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
        assert_eq!(args.value("limit", 0), Ok(3));
        assert_eq!(args.first_of("answers", ["pairs", "ids"]), Ok(false));
        assert_eq!(args.value("window-ms", 7), Ok(7));
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
        assert!(some.value("limit", 0).unwrap_err().contains("--limit x"));
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
