// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask <command>`: the one set of commands for people and for CI.

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

use crate::workspace::Workspace;

/// Builds, checks and tests podwire.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what the tests need, if it is missing; fetch the Go plugins and a kernel
    Setup(setup::Args),
    /// Set up, check, build the plugin program as shipped and run all tests
    Test(test::Args),
    /// Run one command as root in an emulated machine with Debian's kernel, which has what the
    /// running one may lack (vlan, ipvlan, dummy, vrf, VLANs of a bridge)
    ///
    /// It sees this machine's files; what it writes is lost. `cargo xtask test` runs all tests in
    /// there that could not run here.
    Vm(vm::Args),
    /// Build an API server of Kubernetes from Debian's sources, in some ten minutes; where it is, the
    /// tests that need one are run
    Kubernetes(kubernetes::Args),
    /// Formatting, lints, documentation, and the invariants of ARCHITECTURE.md
    Check,
    /// Build the programs as they are shipped, into target/dist
    Build,
    /// Compare with the Go plugins and with the least that could be done; writes docs/benchmark.*
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

fn run(task: Task) -> Result<()> {
    let workspace = Workspace::find()?;
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
