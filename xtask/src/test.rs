// SPDX-License-Identifier: Apache-2.0
//! All tests, on a machine that may have nothing but Rust.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{check, cmd, invariants, setup};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave out formatting, lints and invariants
    #[arg(long)]
    no_check: bool,
    /// Passed to `cargo test`, such as `-p podwire-plugins bridge`
    #[arg(last = true)]
    cargo_args: Vec<String>,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let go_plugins = setup::run(workspace, &setup::Args { refresh: false })?;
    if !args.no_check {
        check::quick(workspace)?;
    }
    let program = workspace.build_plugin_program()?;
    invariants::of_plugin_program(&program)?;
    let not_run = fresh_list(&workspace.target_dir)?;
    let mut test = cargo_test(workspace, &args.cargo_args);
    test.env("PODWIRE_GO_PLUGINS", go_plugins);
    test.env("PODWIRE_CNI_BIN", program);
    test.env("PODWIRE_NOT_RUN", &not_run);
    let mut total = Total::default();
    let outcome = cmd::run_watched(&mut test, |line| total.count(line));
    report(&fs::read_to_string(&not_run)?);
    println!("\n{} passed, {} failed", total.passed, total.failed);
    outcome
}

/// The sum over all test programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    passed: u32,
    failed: u32,
}

impl Total {
    /// Looks for the closing line of a test program: `test result: ok. 3 passed; 0 failed; …`.
    fn count(&mut self, line: &str) {
        let Some((_, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        let number = |what: &str| {
            let count = counts.split("; ").find_map(|part| part.strip_suffix(what));
            count.and_then(|count| count.trim().parse::<u32>().ok()).unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
    }
}

fn cargo_test(workspace: &Workspace, extra: &[String]) -> Command {
    let mut test = cmd::cargo();
    test.args(["test", "--no-fail-fast", "--target", &workspace.triple]);
    // --workspace would win over a package that was asked for.
    let is_package = |arg: &String| arg.starts_with("-p") || arg.starts_with("--package");
    if !extra.iter().any(is_package) {
        test.arg("--workspace");
    }
    test.args(extra).current_dir(&workspace.root);
    test
}

/// The list that `testkit::not_run` adds to.
fn fresh_list(target_dir: &Path) -> Result<PathBuf> {
    let list = target_dir.join("not-run.txt");
    fs::write(&list, "").with_context(|| format!("empty {}", list.display()))?;
    Ok(list)
}

fn report(list: &str) {
    let lines: BTreeSet<&str> = list.lines().collect();
    if lines.is_empty() {
        return;
    }
    println!("\nnot run here ({}):", lines.len());
    for line in lines {
        let (name, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
        println!("  {name}: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut total = Total::default();
        for line in [
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out",
            "test result: FAILED. 40 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "test a::b ... ok",
        ] {
            total.count(line);
        }
        assert_eq!(total, Total { passed: 43, failed: 2 });
    }

    #[test]
    fn chosen_package_is_not_drowned_by_the_workspace() {
        let workspace = Workspace {
            root: "/w".into(),
            target_dir: "/w/target".into(),
            triple: "x86_64-unknown-linux-musl".into(),
        };
        let has_workspace = |extra: &[&str]| {
            let extra: Vec<String> = extra.iter().map(|&arg| arg.to_owned()).collect();
            cargo_test(&workspace, &extra).get_args().any(|arg| arg == "--workspace")
        };
        assert!(has_workspace(&[]));
        assert!(has_workspace(&["bridge"]));
        assert!(!has_workspace(&["-p", "podwire-cni", "bridge"]));
        assert!(!has_workspace(&["--package=podwire-cni"]));
    }
}
