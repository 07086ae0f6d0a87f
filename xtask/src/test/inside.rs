// SPDX-License-Identifier: Apache-2.0
//! Selects the tests for the emulated machine and runs all of them in one start.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::not_run::NotRun;
use super::total::Total;
use crate::cmd;
use crate::machine::{Job, Kernel, Session};

/// Name prefix of tests that always run in the machine too.
const PREFIX: &str = "vm_";

/// Time limit of one test in seconds; emulation is ten times slower.
const DEADLINE: &str = "900";

const NOT_RUN: &str = "not-run.txt";

/// Results from the machine.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) total: Total,
    /// Tests that could not run there either.
    pub(crate) not_run: NotRun,
}

/// Environment of the tests.
#[derive(Debug)]
pub(crate) struct Env<'a> {
    pub(crate) go_plugins: &'a Path,
    /// podwire-cni as shipped.
    pub(crate) program: &'a Path,
}

/// A test program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Built {
    program: PathBuf,
    /// Directory of its package, in which tests run.
    dir: PathBuf,
}

/// Whether the name of a test, without its modules, has the prefix.
pub(crate) fn is_meant_for_machine(test: &str) -> bool {
    test.rsplit("::").next().is_some_and(|name| name.starts_with(PREFIX))
}

/// The test programs that this `cargo test` builds.
pub(crate) fn built(mut cargo_test: Command) -> Result<Vec<Built>> {
    cargo_test.env("CARGO_TERM_QUIET", "true");
    cargo_test.args(["--no-run", "--message-format=json"]);
    let messages = cmd::read(&mut cargo_test)?;
    Ok(messages.lines().filter_map(built_program).collect())
}

fn built_program(message: &str) -> Option<Built> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let program = message["executable"].as_str().filter(|_| is_test)?.into();
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(Built { program, dir })
}

/// Runs the tests of these programs that `is_chosen` accepts.
pub(crate) fn run(
    kernel: Kernel,
    programs: &[Built],
    env: &Env<'_>,
    is_chosen: impl Fn(&str) -> bool,
) -> Result<Inside> {
    let session = Session::new(kernel)?;
    let not_run = session.file(NOT_RUN);
    let (mut jobs, mut expected) = (Vec::new(), 0);
    for built in programs {
        let mut tests = tests(built)?;
        tests.retain(|test| is_chosen(test));
        if tests.is_empty() {
            continue;
        }
        expected += tests.len();
        jobs.push(job(built, tests, env)?.env_path("PODWIRE_NOT_RUN", &not_run)?);
    }
    if jobs.is_empty() {
        return Ok(Inside::default());
    }
    let mut total = Total::default();
    let status = session.run(&jobs, |line| total.count(line))?;
    let (not_run, _) = NotRun::read(&session.read(NOT_RUN)?);
    let ended = total.passed + total.failed;
    // A name that matches no test would not be noticed otherwise.
    ensure!(status != 0 || ended == expected, "only {ended} of {expected} tests ran");
    // A program that crashed prints no summary.
    total.failed = total.failed.max(usize::from(status != 0));
    total.passed = total.passed.saturating_sub(not_run.len());
    Ok(Inside { total, not_run })
}

fn tests(built: &Built) -> Result<Vec<String>> {
    let list = cmd::read(cmd::command(&built.program).args(["--list", "--format=terse"]))?;
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn job(built: &Built, tests: Vec<String>, env: &Env<'_>) -> Result<Job> {
    let program =
        built.program.to_str().context("the path of the target directory is not UTF-8")?;
    let words = [program.to_owned(), "--exact".to_owned()].into_iter().chain(tests);
    Job::new(&built.dir, words.collect())
        .env_path("CARGO_MANIFEST_DIR", &built.dir)?
        .env_path("PODWIRE_GO_PLUGINS", env.go_plugins)?
        .env("PODWIRE_TEST_DEADLINE", DEADLINE)
        .env_path("PODWIRE_CNI_BIN", env.program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_marks_tests_for_the_machine() {
        assert!(is_meant_for_machine("vm_vlan_is_created"));
        assert!(is_meant_for_machine("compare::vlan::vm_plain"));
        assert!(!is_meant_for_machine("vm_lab::plain"));
        assert!(!is_meant_for_machine("compare::a_vm_"));
    }

    #[test]
    fn only_test_programs_are_selected() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml",
            "profile":{"test":true},"executable":"/t/a-1"}"#;
        let built = Built { program: "/t/a-1".into(), dir: "/w/a".into() };
        assert_eq!(built_program(test), Some(built));
        assert_eq!(built_program(&test.replace("true", "false")), None);
        assert_eq!(built_program(&test.replace("\"/t/a-1\"", "null")), None);
        assert_eq!(built_program("Compiling"), None);
    }
}
