// SPDX-License-Identifier: Apache-2.0
//! TCP throughput of the UDP tunnel, compared with a loop of one packet per system call.

use anyhow::{Context, Result};

use super::latency::in_turn;
use super::plan::Plan;
use super::print_step;
use super::results::{Results, Throughput, Who};
use crate::cmd;

/// Duration of each connection.
const SECONDS: &str = "2";

pub(crate) fn measure(plan: &Plan, results: &mut Results) -> Result<()> {
    results.udp = [Who::Naive, Who::Ours].map(|who| Throughput { who, bits: Vec::new() }).into();
    for round in 0..plan.effort.udp {
        print_step("TCP over UDP tunnels");
        for &at in in_turn(&[0, 1], round) {
            let through = &mut results.udp[at];
            through.bits.push(measure_once(plan, through.who)?);
        }
    }
    Ok(())
}

fn measure_once(plan: &Plan, who: Who) -> Result<f64> {
    let name = if who == Who::Naive { "naive" } else { "ours" };
    let text = cmd::read(cmd::command(&plan.udp_path).args([name, SECONDS]))?;
    text.trim().parse().with_context(|| format!("parse the output of udp-path {name}: {text:?}"))
}
