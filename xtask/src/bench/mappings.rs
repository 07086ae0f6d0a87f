// SPDX-License-Identifier: Apache-2.0
//! portmap with a growing number of mappings of other containers; its cost must not grow.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::call::Call;
use super::chain;
use super::lab::{Lab, place};
use super::latency::in_turn;
use super::plan::Effort;
use super::print_step;
use super::results::{Results, Who, mappings};
use crate::cmd;

/// Numbers of existing mappings.
pub(crate) const LEVELS: [usize; 3] = [10, 1_000, 10_000];
/// Empties the maps between two levels.
const FLUSH: &str = "flush map inet podwire ports4\nflush set inet podwire hairpin4\n\
                     flush set inet podwire owned\n";

pub(crate) fn measure(lab: &Lab, effort: &Effort, results: &mut Results) -> Result<()> {
    print_step("portmap with existing mappings");
    let pods = lab.make_pods("mappings-", 1)?;
    let netns = pods.path(0);
    let (conf, container) = chain::attach_for_portmap(lab, &netns)?;
    let call = |verb: &str| {
        let call = Call::plugin(&lab.ours, "portmap", verb, &conf);
        call.with_path().attachment(&container, &netns).time()
    };
    // Creates the table.
    call("ADD")?;
    call("DEL")?;
    let fillings = LEVELS.map(|level| Ok((level, write_filling(level)?)));
    let fillings: Vec<(usize, PathBuf)> = fillings.into_iter().collect::<Result<_>>()?;
    for round in 0..effort.mappings {
        for (level, filling) in in_turn(&fillings, round) {
            cmd::read(cmd::command("nft").arg("-f").arg(filling))?;
            // The first call after many changes is not measured.
            for verb in ["ADD", "DEL"] {
                call(verb)?;
                lab.settle()?;
            }
            for verb in ["ADD", "DEL"] {
                results.push(&mappings(verb, *level), Who::Ours, call(verb)?);
                lab.settle()?;
            }
        }
    }
    cmd::read(cmd::command("nft").args([FLUSH]))?;
    Call::bridge(&lab.ours, "DEL", &netns).time()?;
    lab.settle()?;
    pods.remove()
}

/// Writes the elements of this number of containers with one mapping each.
fn write_filling(level: usize) -> Result<PathBuf> {
    let (mut ports, mut pods, mut owned) = (String::new(), String::new(), String::new());
    for at in 0..level {
        let (high, low) = (at / 250, at % 250 + 2);
        write!(ports, "tcp . {} : 10.99.{high}.{low} . 80, ", 40_000 + at)?;
        write!(pods, "\"fill0\" . 10.99.{high}.{low}, ")?;
        write!(owned, "fd99::{at:x} . 512, ")?;
    }
    let mut text = FLUSH.to_owned();
    for (set, elements) in [("ports4", ports), ("hairpin4", pods), ("owned", owned)] {
        writeln!(text, "add element inet podwire {set} {{ {} }}", elements.trim_end_matches(", "))?;
    }
    let file = place(&format!("filling-{level}.nft"));
    fs::write(&file, text)?;
    Ok(file)
}
