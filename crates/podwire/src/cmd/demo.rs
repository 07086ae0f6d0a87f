// SPDX-License-Identifier: Apache-2.0
//! `podwire demo`: nodes with pods on this one machine, in namespaces of their own, through the real
//! plugins and the real agent. Whatever happens, nothing is left unless asked for.

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
use serde_json::json;

pub use self::cluster::Backend;
use self::progress::Progress;
use self::run::{Cleaned, Run};
use crate::cli::Demo;
use crate::interrupt::Stop;
use crate::output::{self, Format};
use crate::report::{self, Hint, Usage};

/// Does what the command line asks.
pub fn run(asked: Demo, format: Format) -> Result<()> {
    let pods = pods_per_node(asked)?;
    refuse_backend(asked)?;
    if !rustix::process::geteuid().is_root() {
        return Err(anyhow!("making network namespaces needs root"))
            .hint(|| "try: sudo podwire demo".to_owned());
    }
    if asked.clean {
        return clean(format);
    }
    let stop = Stop::catch()?;
    let run = Run::claim()?;
    let mut progress = Progress::new(format);
    let shown = match asked.nodes {
        1 => single::build_and_show(pods, asked.keep, &run, &stop, &mut progress),
        _ => cluster::build_and_show(asked, pods, &run, &stop, &mut progress),
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
                Ok(()) if stop.is_asked() => bail!("interrupted; everything is removed again"),
                Ok(()) => {}
                // The demo's own error is the one to tell.
                Err(error) => report::warn(&format!("{error:#}; try: podwire demo --clean")),
            }
            Err(error)
        }
    }
}

/// What is left to do when all has been shown.
#[derive(Debug)]
enum Ending {
    Keep,
    /// Removal began at this moment.
    Remove(Instant),
}

/// All pods of a node are neighbours, and the kernel remembers 1024 in all namespaces together.
fn pods_per_node(asked: Demo) -> Result<u16> {
    // One node more joins in the end.
    let (least, nodes) = if asked.nodes == 1 { (2, 1) } else { (1, u32::from(asked.nodes) + 1) };
    let neighbours = |pods: u16| nodes * u32::from(pods) * (u32::from(pods) + 1);
    let most = (least..=30).take_while(|pods| neighbours(*pods) < 1000).last().unwrap_or(least);
    let pods = asked.pods.unwrap_or(if asked.nodes == 1 { 3 } else { 2 });
    if !(least..=most).contains(&pods) {
        let nodes =
            if asked.nodes == 1 { "1 node".into() } else { format!("{} nodes", asked.nodes) };
        let text = format!("--pods is {pods}; with {nodes} allowed are {least} to {most}");
        return Err(Usage(text).into());
    }
    Ok(pods)
}

fn refuse_backend(asked: Demo) -> Result<()> {
    let why = match (asked.nodes, asked.backend) {
        (1, Some(backend)) => format!(
            "--backend is {}; with 1 node there is no other one to go to: allowed with --nodes 2 to 8",
            backend.name()
        ),
        (_, Some(backend)) if asked.keep && !backend.outlives_agent() => format!(
            "--keep does not go with backend {}: its packets pass through the agents, which end with this command",
            backend.name()
        ),
        _ => return Ok(()),
    };
    Err(Usage(why).into())
}

fn clean(format: Format) -> Result<()> {
    let cleaned = run::clean()?;
    if format == Format::Json {
        let shown = cleaned.iter().map(|one| match one {
            Cleaned::Removed { id, namespaces } => json!({"demo": id, "namespaces": namespaces}),
            Cleaned::StillRunning { id } => json!({"demo": id, "running": true}),
        });
        return output::print_json(&shown.collect());
    }
    if cleaned.is_empty() {
        return output::print("nothing to remove\n");
    }
    for one in cleaned {
        output::print(&match one {
            Cleaned::Removed { id, namespaces } => {
                format!("demo {id}: removed with {namespaces} namespaces\n")
            }
            Cleaned::StillRunning { id } => format!("demo {id}: is running, left alone\n"),
        })?;
    }
    Ok(())
}
