// SPDX-License-Identifier: Apache-2.0
//! Calico's label selectors, such as `role == 'web' && has(tier)`: parse, evaluate, print in canonical form.
//!
//! `||` binds weakest, then `&&`, then `!`. An empty selector selects everything. Strings have single or double quotes
//! and no escapes. The comparisons `!=` and `not in` are true if the label is absent.

mod expr;
mod lexer;
mod parser;

pub use expr::{Expr, Test};
pub use lexer::MAX_LABEL_LENGTH;
pub use parser::ParseError;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(Expr);

impl Selector {
    /// Selects everything: `all()`.
    pub fn all() -> Self {
        Self(Expr::All)
    }

    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parser::parse(text).map(Self)
    }

    /// Returns whether the selector selects an object with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches_with(|label| labels.get(label).map(String::as_str))
    }

    /// Does the same for labels that a function returns, for example labels of a pod and of its namespace together.
    pub fn matches_with<'a>(&self, labels: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.matches(&labels)
    }

    pub fn expr(&self) -> &Expr {
        &self.0
    }
}

impl From<Expr> for Selector {
    fn from(expr: Expr) -> Self {
        Self(expr)
    }
}

impl FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

/// Prints Calico's canonical form: double quotes, set members sorted, parentheses around `&&` and `||` lists.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests;
