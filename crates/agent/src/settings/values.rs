// SPDX-License-Identifier: Apache-2.0
//! What was said of an option, or its default, as a value of its kind.

use std::path::PathBuf;
use std::str::FromStr;

use super::super::table::{Kind, Spec};
use super::super::{Error, Told, Values};

/// Words by option, with defaults where nothing was said.
pub(super) struct Words<'a> {
    pub(super) values: &'a Values,
}

impl Words<'_> {
    pub(super) fn is_told(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(super) fn place(&self, name: &str) -> String {
        self.values.get(name).map_or(format!("option {name}"), |told: &Told| told.place.clone())
    }

    pub(super) fn last(&self, name: &str) -> String {
        let told = self.values.get(name).and_then(|told| told.words.last().cloned());
        told.unwrap_or_else(|| spec(name).default.to_owned())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        Some(self.last(name)).filter(|text| !text.is_empty())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.last(name))
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let default = [spec(name).default.to_owned()];
        let words = self.values.get(name).map_or(&default[..], |told| &told.words);
        let parts = words.iter().flat_map(|word| word.split(',')).map(str::trim);
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn parsed<T: FromStr>(&self, name: &str, wanted: &str) -> Result<Vec<T>, Error> {
        self.list(name).iter().map(|text| self.parse(name, text, wanted)).collect()
    }

    pub(super) fn one<T: FromStr>(&self, name: &str, wanted: &str) -> Result<Option<T>, Error> {
        self.text(name).map(|text| self.parse(name, &text, wanted)).transpose()
    }

    pub(super) fn parse<T: FromStr>(
        &self,
        name: &str,
        text: &str,
        wanted: &str,
    ) -> Result<T, Error> {
        let problem = |_| Error::new(self.place(name), format!("is {text:?}, expected {wanted}"));
        text.parse().map_err(problem)
    }

    pub(super) fn switch(&self, name: &str) -> Result<bool, Error> {
        // What Go's library takes for a boolean.
        match self.last(name).as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            other => Err(Error::new(
                self.place(name),
                format!("is {other:?}, allowed are true and false"),
            )),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, Error> {
        let Kind::Number(least, most) = spec(name).kind else { return Ok(0) };
        let text = self.last(name);
        text.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            let problem = format!("is {text:?}, allowed are whole numbers from {least} to {most}");
            Error::new(self.place(name), problem)
        })
    }

    pub(super) fn choice(&self, name: &str, allowed: &[&str]) -> Result<String, Error> {
        let text = self.last(name);
        if allowed.contains(&text.as_str()) {
            return Ok(text);
        }
        let shown: Vec<&str> = allowed.iter().copied().filter(|one| !one.is_empty()).collect();
        let problem = format!("is {text:?}, allowed are {}", shown.join(", "));
        Err(Error::new(self.place(name), problem))
    }
}

fn spec(name: &str) -> &'static Spec {
    Spec::by_name(name).expect("every option that is asked for is in the table")
}
