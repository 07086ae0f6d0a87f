// SPDX-License-Identifier: Apache-2.0
//! The list of tests that could not run, as `testkit::not_run` writes it.

use std::collections::BTreeMap;

/// Names and reasons.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NotRun(BTreeMap<String, String>);

impl NotRun {
    /// One line for each test; one that is there twice counts once.
    pub fn read(list: &str) -> NotRun {
        let entry = |line: &str| {
            let (name, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
            (name.to_owned(), reason.to_owned())
        };
        NotRun(list.lines().map(entry).collect())
    }

    pub fn has(&self, test: &str) -> bool {
        self.0.contains_key(test)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn print(&self) {
        if self.0.is_empty() {
            return;
        }
        println!("\nnot run ({}):", self.0.len());
        for (name, reason) in &self.0 {
            println!("  {name}: {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_counts_once() {
        let list = NotRun::read("a::b\tno vlan\na::b\tno vlan\nc\n");
        assert_eq!(list.len(), 2);
        assert!(list.has("a::b") && list.has("c") && !list.has("a"));
    }
}
