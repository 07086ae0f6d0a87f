// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask bench`: measures the Go plugins, podwire, and a minimal program in one run and in turn,
//! so that all see the same noise. This process builds the programs and writes the report; a second
//! process of xtask measures, in its own network and mount namespaces.

mod agent;
mod agent_tables;
mod call;
mod chain;
mod facts;
mod host_local;
mod lab;
mod latency;
mod mappings;
mod memory;
mod parallel;
mod plan;
mod report;
mod results;
mod routed;
mod sizes;
mod stats;
mod svg;
mod table;
mod targets;
mod udp;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use self::plan::{Effort, Plan};
use self::results::Results;
use crate::workspace::Workspace;
use crate::{cmd, go_plugins};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run fewer repetitions, for tuning; takes some minutes and does not write to docs/
    #[arg(long)]
    quick: bool,
    /// Write all measurements to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure nothing; report the results of an earlier --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "json"])]
    from: Option<PathBuf>,
    /// Measure this program instead of building podwire-cni
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

impl Args {
    /// Whether the command builds and measures nothing.
    pub(crate) fn only_reports(&self) -> bool {
        self.from.is_some()
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct InsideArgs {
    plan: PathBuf,
}

/// Time limit of the measuring process, in seconds.
const DEADLINE: &str = "3000";

/// Mounts a `/sys` for the new network namespace, and an empty `/run` in memory for all files except
/// those of the measurements on disk.
const PREPARE: &str = "
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/lock
ip link set lo up
exec \"$@\"
";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let results = match &args.from {
        Some(file) => read(file)?,
        None => measure(workspace, args)?,
    };
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_string_pretty(&results)?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    print!("{}", report::for_terminal(&results));
    if !args.quick {
        let docs = workspace.root.join("docs");
        fs::create_dir_all(&docs)?;
        fs::write(docs.join("benchmark.md"), report::markdown(&results))?;
        fs::write(docs.join("benchmark.svg"), svg::chart(&results))?;
        println!("\nwritten: docs/benchmark.md, docs/benchmark.svg");
    }
    Ok(())
}

/// The measuring process inside the namespaces.
pub(crate) fn run_inside(args: &InsideArgs) -> Result<()> {
    let plan: Plan = serde_json::from_str(&fs::read_to_string(&args.plan)?)?;
    let lab = lab::Lab::set_up(&plan)?;
    let mut results = Results::default();
    print_step("sizes and memory");
    results.sizes = sizes::measure(&lab)?;
    results.memory = memory::measure(&lab)?;
    latency::measure(&lab, &plan.effort, &mut results)?;
    host_local::measure(&lab, &plan, &mut results)?;
    parallel::measure(&lab, &plan.effort, &mut results)?;
    chain::measure(&lab, &plan.effort, &mut results)?;
    mappings::measure(&lab, &plan.effort, &mut results)?;
    udp::measure(&plan, &mut results)?;
    routed::measure(&lab, &plan, &mut results)?;
    agent::measure(&plan, &mut results)?;
    fs::write(&plan.results, serde_json::to_string(&results)?).context("write the results")
}

fn print_step(what: &str) {
    eprintln!("measuring: {what}");
}

fn measure(workspace: &Workspace, args: &Args) -> Result<Results> {
    let go = go_plugins::ensure(&workspace.target_dir, false)?;
    let ours = match &args.program {
        Some(program) => program.canonicalize()?,
        None => workspace.build_plugin_program()?,
    };
    let floor = build_floor(workspace)?;
    let udp_path = build_udp_path(workspace)?;
    let [podwire, node_path] = build_agent(workspace)?;
    // On the disk of the target directory.
    let work = tempfile::tempdir_in(&workspace.target_dir)?;
    let effort = if args.quick { Effort::quick() } else { Effort::full() };
    let plan = Plan {
        go: go.dir,
        ours,
        floor,
        udp_path,
        podwire,
        node_path,
        programs: work.path().join("programs"),
        disk: work.path().join("disk"),
        results: work.path().join("results.json"),
        effort,
    };
    let file = work.path().join("plan.json");
    fs::write(&file, serde_json::to_string(&plan)?)?;
    let facts = facts::gather(&go.version, args.quick, may_be_real_time())?;
    let status = inside(&file, facts.is_real_time)?.status()?;
    ensure!(status.success(), "the measuring process failed: {status}");
    Ok(Results { facts, ..read(&plan.results)? })
}

fn read(file: &Path) -> Result<Results> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", file.display()))
}

/// Real-time priority: on a busy machine the time slices of other processes (4 ms) would dominate.
const REAL_TIME: [&str; 3] = ["chrt", "--rr", "1"];

fn may_be_real_time() -> bool {
    let [program, args @ ..] = REAL_TIME;
    cmd::output(cmd::command(program).args(args).arg("true")).is_ok_and(|o| o.status.success())
}

fn inside(plan: &Path, real_time: bool) -> Result<Command> {
    let mut command = cmd::command("timeout");
    // In the foreground, so that Ctrl-C reaches it.
    command.args(["--foreground", "-k", "5", DEADLINE]);
    command.args(if real_time { &REAL_TIME[..] } else { &[] });
    command.args(["unshare", "--net", "--mount"]);
    command.args(["sh", "-ec", PREPARE, "sh"]).arg(env::current_exe()?);
    command.arg("bench-inside").arg(plan);
    Ok(command)
}

fn build_floor(workspace: &Workspace) -> Result<PathBuf> {
    build(workspace, "plugin", "floor")
}

/// With the profile of the agent, whose tunnel it measures.
fn build_udp_path(workspace: &Workspace) -> Result<PathBuf> {
    build(workspace, "shipped", "udp-path")
}

/// Builds podwire as shipped together with the program that measures it.
fn build_agent(workspace: &Workspace) -> Result<[PathBuf; 2]> {
    let mut build = cmd::cargo();
    build.args(["build", "--profile", "shipped", "--target", &workspace.triple]);
    build.args(["-p", "podwire", "-p", "xtask", "--features", "xtask/nodes"]);
    build.args(["--bin", "podwire", "--bin", "node-path"]);
    cmd::run(build.current_dir(&workspace.root))?;
    let dir = workspace.target_dir.join(&workspace.triple).join("shipped");
    Ok(["podwire", "node-path"].map(|program| dir.join(program)))
}

fn build(workspace: &Workspace, profile: &str, program: &str) -> Result<PathBuf> {
    let mut build = cmd::cargo();
    build.args(["build", "--profile", profile, "--target", &workspace.triple]);
    build.args(["-p", "xtask", "--features", "floor", "--bin", program]);
    cmd::run(build.current_dir(&workspace.root))?;
    Ok(workspace.target_dir.join(&workspace.triple).join(profile).join(program))
}
