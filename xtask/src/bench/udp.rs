// SPDX-License-Identifier: Apache-2.0
//! TCP through a UDP tunnel: ours, and a loop that carries one packet a call, in turn.

use anyhow::{Context, Result};

use super::latency::in_turn;
use super::plan::Plan;
use super::results::{Results, Throughput, Who};
use super::say;
use crate::cmd;

/// Each connection.
const SECONDS: &str = "2";

pub fn measure(plan: &Plan, results: &mut Results) -> Result<()> {
    results.udp = [Who::Naive, Who::Ours].map(|who| Throughput { who, bits: Vec::new() }).into();
    for round in 0..plan.effort.udp {
        say("TCP through UDP tunnels");
        for &at in in_turn(&[0, 1], round) {
            let through = &mut results.udp[at];
            through.bits.push(one(plan, through.who)?);
        }
    }
    Ok(())
}

fn one(plan: &Plan, who: Who) -> Result<f64> {
    let name = if who == Who::Naive { "naive" } else { "ours" };
    let text = cmd::read(cmd::command(&plan.udp_path).args([name, SECONDS]))?;
    text.trim().parse().with_context(|| format!("what udp-path {name} printed: {text:?}"))
}
