// SPDX-License-Identifier: Apache-2.0
//! The sum over all test programs.

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub passed: usize,
    pub failed: usize,
    /// Programs that have started and not ended: a test that fails in its namespace shows the output
    /// of another program, that ran for it alone.
    running: usize,
}

impl Total {
    /// Looks for the first line of a test program, `running 3 tests`, and for the closing one,
    /// `test result: ok. 3 passed; 0 failed; …`.
    pub fn count(&mut self, line: &str) {
        let is_first = line.strip_prefix("running ").is_some_and(|rest| {
            rest.strip_suffix(" tests").or(rest.strip_suffix(" test")).is_some()
        });
        self.running += usize::from(is_first);
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.running = self.running.saturating_sub(1);
        if self.running > 0 {
            return;
        }
        let number = |what: &str| {
            let count = counts.split("; ").find_map(|part| part.strip_suffix(what));
            count.and_then(|count| count.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut total = Total::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out",
            "running 42 tests",
            "test a::b ... FAILED",
            "---- a::b stdout ----",
            "running 1 test",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 42 filtered out",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            total.count(line);
        }
        assert_eq!(total, Total { passed: 43, failed: 2, running: 0 });
    }
}
