// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test`: runs all tests on a machine that may have nothing but Rust.

mod inside;
mod not_run;
mod total;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

use anyhow::{Context, Result, ensure};

use self::inside::Inside;
use self::not_run::NotRun;
use self::total::Total;
use crate::machine::Kernel;
use crate::workspace::Workspace;
use crate::{check, cmd, invariants, kubernetes, setup};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Skip formatting, lints and invariants
    #[arg(long)]
    no_check: bool,
    /// Skip the emulated machine; tests that cannot run on this kernel are only listed
    #[arg(long)]
    no_vm: bool,
    /// Arguments for `cargo test`, such as `-p podwire-plugins bridge`
    #[arg(last = true)]
    cargo_args: Vec<String>,
}

/// Variable for the number of tests that run in parallel.
const THREADS: &str = "RUST_TEST_THREADS";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let ready = setup::run(workspace, &setup::Args { refresh: false })?;
    if !args.no_check {
        check::quick(workspace)?;
    }
    let program = workspace.build_plugin_program()?;
    invariants::check_plugin_program(&program)?;
    let list = create_list(&workspace.target_dir)?;
    let mut test = cargo_test(workspace, &args.cargo_args);
    test.env("PODWIRE_GO_PLUGINS", &ready.go_plugins);
    test.env("PODWIRE_CNI_BIN", &program);
    test.env("PODWIRE_NOT_RUN", &list);
    if env::var_os(THREADS).is_none() {
        test.env(THREADS, threads().to_string());
    }
    if let Some(programs) = kubernetes::find(&workspace.target_dir) {
        test.env("PODWIRE_KUBERNETES", programs);
    }
    let mut total = Total::default();
    let outcome = cmd::run_watched(&mut test, |line| total.count(line));
    let (mut not_run, by_choice) = NotRun::read(&fs::read_to_string(&list)?);
    // cargo counts a test that was not run as passed.
    total.passed = total.passed.saturating_sub(not_run.len() + by_choice.len());
    let Some(kernel) = ready.kernel.filter(|_| !args.no_vm) else {
        not_run.extend(by_choice);
        print_summary(&total, &Inside { not_run, ..Inside::default() });
        return outcome;
    };
    let inside_env = inside::Env { go_plugins: &ready.go_plugins, program: &program };
    let inside = in_machine(workspace, args, kernel, &inside_env, &not_run)?;
    by_choice.print();
    print_summary(&total, &inside);
    outcome?;
    ensure!(inside.total.failed == 0, "tests failed in the emulated machine");
    ensure!(
        inside.not_run.is_empty(),
        "some tests could run neither here nor in the emulated machine"
    );
    Ok(())
}

/// Runs the tests that could not run here, and those that are meant for the machine.
fn in_machine(
    workspace: &Workspace,
    args: &Args,
    kernel: Kernel,
    env: &inside::Env<'_>,
    not_run: &NotRun,
) -> Result<Inside> {
    // Arguments after `--` are for the test programs.
    let for_cargo = args.cargo_args.split(|arg| arg == "--").next().unwrap_or_default();
    let built = inside::built(cargo_test(workspace, for_cargo))?;
    // A test that was requested by name is in the list if it was not run.
    let is_everything = args.cargo_args.is_empty();
    inside::run(kernel, &built, env, |test| {
        not_run.has(test) || is_everything && inside::is_meant_for_machine(test)
    })
}

/// Two per CPU: tests spend half of their time waiting for the kernel and for packets.
fn threads() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

fn print_summary(here: &Total, inside: &Inside) {
    inside.not_run.print();
    println!(
        "\n{} passed ({} of them in the emulated machine), {} failed",
        here.passed + inside.total.passed,
        inside.total.passed,
        here.failed + inside.total.failed
    );
}

fn cargo_test(workspace: &Workspace, extra: &[String]) -> Command {
    let mut test = cmd::cargo();
    test.args(["test", "--no-fail-fast", "--target", &workspace.triple]);
    // --workspace would override a requested package.
    let is_package = |arg: &String| arg.starts_with("-p") || arg.starts_with("--package");
    if !extra.iter().any(is_package) {
        test.arg("--workspace");
    }
    test.args(extra).current_dir(&workspace.root);
    test
}

/// Creates the empty list to which `testkit::not_run` appends.
fn create_list(target_dir: &Path) -> Result<PathBuf> {
    let list = target_dir.join("not-run.txt");
    fs::write(&list, "").with_context(|| format!("create {}", list.display()))?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_package_disables_workspace() {
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
