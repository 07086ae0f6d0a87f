// SPDX-License-Identifier: Apache-2.0
//! The list of tests that could not run, written by `testkit::not_run`.

use std::collections::BTreeMap;

/// Suffix that `testkit::not_run_by_choice` adds for programs that are built only on request.
const BY_CHOICE: &str = "\tby choice";

/// Names of tests with reasons.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NotRun(BTreeMap<String, String>);

impl NotRun {
    /// Parses one line per test and drops duplicates. The second list contains the tests that need a
    /// program which is built only on request.
    pub(crate) fn read(list: &str) -> (NotRun, NotRun) {
        let entry = |line: &str| {
            let (name, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
            (name.to_owned(), reason.to_owned())
        };
        let (chosen, others): (Vec<_>, Vec<_>) =
            list.lines().partition(|line| line.ends_with(BY_CHOICE));
        let chosen = chosen.into_iter().filter_map(|line| line.strip_suffix(BY_CHOICE));
        (NotRun(others.into_iter().map(entry).collect()), NotRun(chosen.map(entry).collect()))
    }

    pub(crate) fn extend(&mut self, others: NotRun) {
        self.0.extend(others.0);
    }

    pub(crate) fn has(&self, test: &str) -> bool {
        self.0.contains_key(test)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn print(&self) {
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
    fn duplicate_test_counts_once() {
        let (list, _) = NotRun::read("a::b\tno vlan\na::b\tno vlan\nc\n");
        assert_eq!(list.len(), 2);
        assert!(list.has("a::b") && list.has("c") && !list.has("a"));
    }

    #[test]
    fn tests_by_choice_are_separate() {
        let (list, chosen) = NotRun::read("a\tno vlan\nk\tno API server\tby choice\n");
        assert!(list.has("a") && !list.has("k"));
        assert_eq!(chosen.0, BTreeMap::from([("k".to_owned(), "no API server".to_owned())]));
    }
}
