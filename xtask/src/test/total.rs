// SPDX-License-Identifier: Apache-2.0
//! Counts passed and failed tests of all test programs.

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Number of tests of each running program. They nest: a failed test prints the output of the inner
    /// program that ran only this test and may have been killed.
    running: Vec<usize>,
}

impl Total {
    /// Looks for the first line of a test program, `running 3 tests`, and for its last one, `test
    /// result: ok. 3 passed; 0 failed; …`.
    pub(crate) fn count(&mut self, line: &str) {
        if let Some(tests) = first_line(line) {
            return self.running.push(tests);
        }
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        let number = |what: &str| {
            let count = counts.split("; ").find_map(|part| part.strip_suffix(what));
            count.and_then(|count| count.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        let (passed, failed) = (number("passed"), number("failed"));
        // The inner programs were killed.
        let own = self.running.iter().rposition(|tests| *tests == passed + failed);
        self.running.truncate(own.unwrap_or(0));
        if self.running.is_empty() {
            self.passed += passed;
            self.failed += failed;
        }
    }
}

fn first_line(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    rest.strip_suffix(" tests").or(rest.strip_suffix(" test"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_programs_are_added() {
        let mut total = Total::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out",
            "running 42 tests",
            "test a::b ... FAILED",
            "---- a::b stdout ----",
            "running 1 test",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 42 filtered out",
            "---- a::c stdout ----",
            "running 1 test",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            total.count(line);
        }
        assert_eq!(total, Total { passed: 43, failed: 2, running: Vec::new() });
    }
}
