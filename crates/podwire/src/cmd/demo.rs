// SPDX-License-Identifier: Apache-2.0
//! `podwire demo`: nodes and pods in network namespaces of this machine, built with the real plugins
//! and the real agent. The demo removes everything in the end, also after an error or a signal.

mod cluster;
mod drawing;
mod http;
mod icmp;
mod lab;
mod probe;
mod progress;
mod run;
mod show;
mod single;

use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use serde_json::json;

use self::cluster::{Backend, Encapsulation, Mode};
use self::progress::Progress;
use self::run::{Cleaned, Run};
use crate::errors::{self, Hint, Usage};
use crate::output::{self, Format};
use crate::signals::StopSignal;

/// Run nodes and pods in private network namespaces, test the network, break it, remove it
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = "\
Examples:
  podwire demo                          three nodes with two pods each, over vxlan
  podwire demo --nodes 5 --pods 4       more nodes and pods
  podwire demo --backend host-gw        plain routes instead of a tunnel
  podwire demo --mode routed            addresses from a pool, as with Calico
  podwire demo --mode routed --encapsulation none
  podwire demo --nodes 1                a dual-stack bridge network on a single node
  podwire demo --keep                   keep everything for inspection
  podwire demo --clean                  remove kept and killed demos

Every pod pings every other pod, and one fetches a web page. Then the demo deletes an interface, which
the agent re-creates; a node leaves and another one joins. The network of this machine is not
touched: the nodes and the network between them are namespaces, too.")]
pub(crate) struct Demo {
    /// Number of nodes, each with an agent; a single node has none
    #[arg(long, default_value_t = 3, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(1..=8))]
    nodes: u16,
    /// Number of pods per node [default: 2, or 3 on a single node]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=30))]
    pods: Option<u16>,
    /// Where pods get their addresses from [default: bridged]
    #[arg(long, value_enum, value_name = "PODS")]
    mode: Option<Mode>,
    /// Backend between the nodes of bridged pods [default: vxlan]
    #[arg(long, value_enum, value_name = "NAME")]
    backend: Option<Backend>,
    /// Encapsulation between the nodes of routed pods [default: vxlan]
    #[arg(long, value_enum, value_name = "MODE", conflicts_with = "backend")]
    encapsulation: Option<Encapsulation>,
    /// Keep everything and print commands for inspection
    #[arg(long)]
    keep: bool,
    /// Remove earlier demos and exit
    #[arg(long, conflicts_with_all = ["keep", "nodes", "pods", "mode", "backend", "encapsulation"])]
    clean: bool,
}

pub(crate) fn run(args: Demo, format: Format) -> Result<()> {
    let pods = pods_per_node(args)?;
    check_backend(args)?;
    if !rustix::process::geteuid().is_root() {
        return Err(anyhow!("creating network namespaces requires root"))
            .hint(|| "try: sudo podwire demo".to_owned());
    }
    if args.clean {
        return clean(format);
    }
    let stop = StopSignal::catch()?;
    let run = Run::claim()?;
    let mut progress = Progress::new(format);
    let shown = match args.nodes {
        1 => single::build_and_show(pods, args.keep, &run, &stop, &mut progress),
        _ => cluster::build_and_show(args, pods, &run, &stop, &mut progress),
    };
    match shown {
        Ok(Ending::Keep) => run.keep(),
        Ok(Ending::Remove(started)) => {
            run.remove()?;
            progress
                .step("removed", &format!("everything, in {}", output::duration(started.elapsed())))
        }
        Err(error) => {
            drop(progress);
            match run.remove() {
                Ok(()) if stop.is_set() => bail!("interrupted, everything removed"),
                Ok(()) => {}
                // The error of the demo itself is the one to report.
                Err(error) => errors::warn(&format!("{error:#}; try: podwire demo --clean")),
            }
            Err(error)
        }
    }
}

/// What remains to be done after everything is shown.
#[derive(Debug)]
enum Ending {
    Keep,
    /// Removal started at this time.
    Remove(Instant),
}

/// The number of pods per node. All pods of a node are neighbours, and the kernel's neighbour table
/// has 1024 entries for all namespaces together.
fn pods_per_node(args: Demo) -> Result<u16> {
    // One more node joins in the end.
    let (min, nodes) = if args.nodes == 1 { (2, 1) } else { (1, u32::from(args.nodes) + 1) };
    let neighbours = |pods: u16| nodes * u32::from(pods) * (u32::from(pods) + 1);
    let max = (min..=30).take_while(|pods| neighbours(*pods) < 1000).last().unwrap_or(min);
    let pods = args.pods.unwrap_or(if args.nodes == 1 { 3 } else { 2 });
    if !(min..=max).contains(&pods) {
        let nodes = if args.nodes == 1 { "1 node".into() } else { format!("{} nodes", args.nodes) };
        let text = format!("--pods is {pods}: with {nodes}, {min} to {max} are allowed");
        return Err(Usage(text).into());
    }
    Ok(pods)
}

fn check_backend(args: Demo) -> Result<()> {
    let is_routed = args.mode == Some(Mode::Routed);
    let problem = match (args.nodes, args.backend) {
        (_, Some(backend)) if is_routed => format!(
            "--backend is {}: routed pods have no backend, pass --encapsulation",
            backend.name()
        ),
        (1, None) if is_routed => {
            "--mode is routed: a single node needs no pool, pass --nodes 2 to 8".to_owned()
        }
        (_, None) if !is_routed && args.encapsulation.is_some() => {
            "--encapsulation is for routed pods: pass --mode routed".to_owned()
        }
        (1, Some(backend)) => format!(
            "--backend is {}: a single node needs no backend, pass --nodes 2 to 8",
            backend.name()
        ),
        (_, Some(backend)) if args.keep && !backend.outlives_agent() => format!(
            "--keep is not possible with backend {}: its packets pass through the agents, which end with this command",
            backend.name()
        ),
        _ => return Ok(()),
    };
    Err(Usage(problem).into())
}

fn clean(format: Format) -> Result<()> {
    let cleaned = run::clean()?;
    if format == Format::Json {
        let shown = cleaned.iter().map(|demo| match demo {
            Cleaned::Removed { id, namespaces } => json!({"demo": id, "namespaces": namespaces}),
            Cleaned::StillRunning { id } => json!({"demo": id, "running": true}),
        });
        return output::print_json(&shown.collect());
    }
    if cleaned.is_empty() {
        return output::print("nothing to remove\n");
    }
    for demo in cleaned {
        output::print(&match demo {
            Cleaned::Removed { id, namespaces } => {
                format!("demo {id}: {namespaces} namespaces removed\n")
            }
            Cleaned::StillRunning { id } => format!("demo {id}: still running, not removed\n"),
        })?;
    }
    Ok(())
}
