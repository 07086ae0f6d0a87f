// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask <command>`: the commands that developers and CI use.

mod apt_sources;
mod bench;
mod build;
mod check;
mod cmd;
mod debian;
mod elf;
mod go_plugins;
mod invariants;
mod kubernetes;
mod machine;
mod setup;
mod source;
mod test;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::setup::Needs;
use crate::workspace::Workspace;

/// Build, check and test podwire
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install programs that the tests need, and download the Go plugins and a kernel
    Setup(setup::Args),
    /// Run setup and check, build podwire-cni as shipped, and run all tests
    Test(test::Args),
    /// Run one command as root in an emulated machine with Debian's kernel, which supports features
    /// that the running kernel may lack (vlan, ipvlan, dummy, vrf, bridge VLANs)
    ///
    /// The command sees the files of this machine; its changes to them are discarded. `cargo xtask
    /// test` uses the emulated machine for all tests that cannot run on this kernel.
    Vm(vm::Args),
    /// Build a Kubernetes API server from Debian's sources, for the tests that need one; takes about
    /// ten minutes
    Kubernetes(kubernetes::Args),
    /// Check formatting, lints, documentation, and the invariants of ARCHITECTURE.md
    Check,
    /// Build the programs as shipped into target/dist
    Build,
    /// Run the benchmark against the Go plugins and a minimal program; writes docs/benchmark.*
    Bench(bench::Args),
    #[command(hide = true)]
    BenchInside(bench::InsideArgs),
}

fn main() -> ExitCode {
    let Err(error) = run(Args::parse().task) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because {cause}");
    }
    ExitCode::FAILURE
}

impl Task {
    /// What must be installed before the task can run.
    fn needs(&self) -> Needs {
        match self {
            Task::Setup(_) | Task::Test(_) | Task::Vm(_) => Needs::TEST,
            Task::Kubernetes(_) => Needs::SOURCES,
            Task::Check => Needs::CHECK,
            Task::Build => Needs::BUILD,
            Task::Bench(args) if args.only_reports() => Needs::NOTHING,
            Task::Bench(_) => Needs::BENCH,
            Task::BenchInside(_) => Needs::NOTHING,
        }
    }
}

fn run(task: Task) -> Result<()> {
    let workspace = Workspace::find()?;
    setup::ensure(&workspace, &task.needs())?;
    match task {
        Task::Setup(args) => setup::run(&workspace, &args).map(drop),
        Task::Test(args) => test::run(&workspace, &args),
        Task::Vm(args) => vm::run(&workspace, args),
        Task::Kubernetes(args) => kubernetes::run(&workspace, &args),
        Task::Check => check::all(&workspace),
        Task::Build => build::run(&workspace),
        Task::Bench(args) => bench::run(&workspace, &args),
        Task::BenchInside(args) => bench::run_inside(&args),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const README: &str = include_str!("../../README.md");
    const CONTRIBUTING: &str = include_str!("../../CONTRIBUTING.md");

    fn needs(words: &str) -> Needs {
        Args::try_parse_from(words.split(' '))
            .unwrap_or_else(|error| panic!("{error}"))
            .task
            .needs()
    }

    /// A new machine has neither the musl target nor a C compiler for it.
    #[test]
    fn documented_commands_install_their_compiler() {
        let named = [README, CONTRIBUTING].into_iter().flat_map(|text| text.split("cargo xtask "));
        let word = |rest: &'static str| rest.split(|c: char| !c.is_ascii_lowercase()).next();
        let commands: BTreeSet<&str> =
            named.skip(1).filter_map(word).filter(|word| !word.is_empty()).collect();
        for expected in ["bench", "build", "check", "kubernetes", "test", "vm"] {
            assert!(commands.contains(expected), "{commands:?}");
        }
        for command in commands {
            let words = if command == "vm" { "cargo-xtask vm -- true" } else { command };
            let needs = needs(&format!("cargo-xtask {}", words.trim_start_matches("cargo-xtask ")));
            let has = |program: &str| needs.programs.iter().any(|(one, _)| *one == program);
            if command == "kubernetes" {
                assert!(has("dpkg-source") && !needs.target, "kubernetes builds Go, not Rust");
                continue;
            }
            assert!(needs.target && has("musl-gcc"), "{command}: {needs:?}");
            if ["check", "test"].contains(&command) {
                assert_eq!(needs.components, [("fmt", "rustfmt"), ("clippy", "clippy")]);
            }
        }
    }

    #[test]
    fn bench_report_needs_no_programs() {
        assert_eq!(needs("cargo-xtask bench --from results.json"), Needs::NOTHING);
        assert_eq!(needs("cargo-xtask bench --quick"), Needs::BENCH);
    }
}
