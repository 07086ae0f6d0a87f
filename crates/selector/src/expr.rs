// SPDX-License-Identifier: Apache-2.0
//! The expression tree: evaluation and canonical text.

use std::collections::BTreeSet;
use std::fmt;

/// A part of a selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expr {
    /// `all()`
    All,
    /// `global()`: selects everything. In the namespace selector of a policy it means objects without a namespace.
    Global,
    /// `has(label)`
    Has(String),
    /// A label compared with one or more values.
    Label(String, Test),
    Not(Box<Expr>),
    /// Two or more expressions.
    And(Vec<Expr>),
    /// Two or more expressions.
    Or(Vec<Expr>),
}

/// Comparison of the value of a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Test {
    Equals(String),
    /// True if the label is absent.
    Differs(String),
    Contains(String),
    StartsWith(String),
    EndsWith(String),
    In(BTreeSet<String>),
    /// True if the label is absent.
    NotIn(BTreeSet<String>),
}

impl Expr {
    /// Returns whether the expression is true. The function returns the value of a label, if there is one.
    pub fn matches<'a>(&self, labels: &impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::All | Self::Global => true,
            Self::Has(label) => labels(label).is_some(),
            Self::Label(label, test) => test.holds(labels(label)),
            Self::Not(expr) => !expr.matches(labels),
            Self::And(list) => list.iter().all(|expr| expr.matches(labels)),
            Self::Or(list) => list.iter().any(|expr| expr.matches(labels)),
        }
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let Some(value) = value else {
            return matches!(self, Self::Differs(_) | Self::NotIn(_));
        };
        match self {
            Self::Equals(text) => value == text,
            Self::Differs(text) => value != text,
            Self::Contains(text) => value.contains(text.as_str()),
            Self::StartsWith(text) => value.starts_with(text.as_str()),
            Self::EndsWith(text) => value.ends_with(text.as_str()),
            Self::In(set) => set.contains(value),
            Self::NotIn(set) => !set.contains(value),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all()"),
            Self::Global => f.write_str("global()"),
            Self::Has(label) => write!(f, "has({label})"),
            Self::Label(label, test) => write!(f, "{label} {test}"),
            Self::Not(expr) => write!(f, "!{expr}"),
            Self::And(list) => list_of(f, list, " && "),
            Self::Or(list) => list_of(f, list, " || "),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equals(text) => write!(f, "== {}", Quoted(text)),
            Self::Differs(text) => write!(f, "!= {}", Quoted(text)),
            Self::Contains(text) => write!(f, "contains {}", Quoted(text)),
            Self::StartsWith(text) => write!(f, "starts with {}", Quoted(text)),
            Self::EndsWith(text) => write!(f, "ends with {}", Quoted(text)),
            Self::In(set) => set_of(f, "in", set),
            Self::NotIn(set) => set_of(f, "not in", set),
        }
    }
}

fn list_of(f: &mut fmt::Formatter<'_>, list: &[Expr], operator: &str) -> fmt::Result {
    f.write_str("(")?;
    for (i, expr) in list.iter().enumerate() {
        if i > 0 {
            f.write_str(operator)?;
        }
        write!(f, "{expr}")?;
    }
    f.write_str(")")
}

fn set_of(f: &mut fmt::Formatter<'_>, operator: &str, set: &BTreeSet<String>) -> fmt::Result {
    write!(f, "{operator} {{")?;
    for (i, text) in set.iter().enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        write!(f, "{comma}{}", Quoted(text))?;
    }
    f.write_str("}")
}

/// A string in quotes. There are no escapes, so the text decides which quotes are possible.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('"') { '\'' } else { '"' };
        write!(f, "{quote}{}{quote}", self.0)
    }
}
