// SPDX-License-Identifier: Apache-2.0
//! Options as given, before they are checked, and their conversion to the type of each option.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::Error;
use super::table::{Kind, Spec};

/// The value of one option and its source.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RawValue {
    /// For errors, such as `flag --iface`.
    pub(super) place: String,
    /// Several if the option was repeated. For most options the last one counts.
    pub(super) texts: Vec<String>,
}

/// Hides the texts, which may contain a password.
impl fmt::Debug for RawValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawValue").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The given values by option name. Accessors return the default of an option that was not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RawValues(BTreeMap<&'static str, RawValue>);

impl RawValues {
    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut RawValue> {
        self.0.get_mut(name)
    }

    pub(super) fn is_given(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &RawValue)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// Sets an option, unless it was given by a source of higher precedence.
    pub(super) fn set_default(&mut self, name: &'static str, value: RawValue) {
        self.0.entry(name).or_insert(value);
    }

    /// Adds one more text to an option.
    pub(super) fn push(&mut self, name: &'static str, place: String, text: String) {
        let value = self.0.entry(name).or_insert(RawValue { place, texts: Vec::new() });
        value.texts.push(text);
    }

    /// Adds the options of a source of lower precedence.
    pub(super) fn add_defaults(&mut self, defaults: RawValues) {
        for (name, value) in defaults.0 {
            self.set_default(name, value);
        }
    }

    /// Returns where an option was given.
    pub(super) fn place(&self, name: &str) -> String {
        self.get(name).map_or(format!("option {name}"), |value| value.place.clone())
    }

    pub(super) fn last(&self, name: &str) -> String {
        let last = self.get(name).and_then(|value| value.texts.last().cloned());
        last.unwrap_or_else(|| spec(name).default.to_owned())
    }

    /// Returns `None` for an empty text.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        Some(self.last(name)).filter(|text| !text.is_empty())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.last(name))
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let default = [spec(name).default.to_owned()];
        let texts = self.get(name).map_or(&default[..], |value| &value.texts);
        let parts = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// Parses each part of a list. `expected` describes the type, for errors.
    pub(super) fn parsed_list<T: FromStr>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Vec<T>, Error> {
        self.list(name).iter().map(|text| self.parse_text(name, text, expected)).collect()
    }

    pub(super) fn parsed<T: FromStr>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, Error> {
        self.text(name).map(|text| self.parse_text(name, &text, expected)).transpose()
    }

    pub(super) fn parse_text<T: FromStr>(
        &self,
        name: &str,
        text: &str,
        expected: &str,
    ) -> Result<T, Error> {
        text.parse().map_err(|_| self.invalid(name, text, expected))
    }

    pub(super) fn switch(&self, name: &str) -> Result<bool, Error> {
        // The words that Go's strconv.ParseBool accepts.
        match self.last(name).as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            other => Err(self.invalid(name, other, "true or false")),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, Error> {
        let Kind::Number(min, max) = spec(name).kind else { return Ok(0) };
        let text = self.last(name);
        text.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            self.invalid(name, &text, &format!("a whole number from {min} to {max}"))
        })
    }

    /// Returns one of the allowed texts. An allowed empty text is not shown in the error.
    pub(super) fn choice(&self, name: &str, allowed: &[&str]) -> Result<String, Error> {
        let text = self.last(name);
        if allowed.contains(&text.as_str()) {
            return Ok(text);
        }
        let shown: Vec<&str> = allowed.iter().copied().filter(|one| !one.is_empty()).collect();
        Err(self.invalid(name, &text, &format!("one of {}", shown.join(", "))))
    }

    /// The error for a value that an option does not allow.
    pub(super) fn invalid(&self, name: &str, text: &str, expected: &str) -> Error {
        Error::new(self.place(name), format!("invalid value {text:?}, expected {expected}"))
    }
}

fn spec(name: &str) -> &'static Spec {
    Spec::by_name(name).expect("only options of the table are looked up")
}
