// SPDX-License-Identifier: Apache-2.0
//! Sequential calls: VERSION, loopback, bridge with host-local, and both floors.

use std::ops::Range;
use std::time::Instant;

use anyhow::Result;

use super::call::Call;
use super::lab::{Lab, Subject};
use super::plan::Effort;
use super::print_step;
use super::results::{
    BRIDGE_ADD, BRIDGE_DEL, BRIDGE_DEL_DONE, LOOPBACK_ADD, Results, VERSION, Who,
};

/// Calls that are not measured; they create the bridge and fill the page cache.
const WARM_UP: usize = 3;

/// Rounds whose namespaces exist at the same time. The loop runs once at the end of each group, so that
/// its process is warm.
const GROUP: usize = 10;

pub(crate) fn measure(lab: &Lab, effort: &Effort, results: &mut Results) -> Result<()> {
    print_step("VERSION");
    version(lab, effort.calls, results)?;
    print_step(LOOPBACK_ADD);
    loopback(lab, effort.calls, results)?;
    print_step("bridge+host-local ADD and DEL, and the floor");
    bridge(lab, effort.calls, results)
}

fn version(lab: &Lab, calls: usize, results: &mut Results) -> Result<()> {
    for round in 0..WARM_UP + calls {
        for subject in in_turn(&lab.subjects(), round) {
            let micros = Call::plugin(subject, "bridge", "VERSION", &lab.version_conf).time()?;
            if round >= WARM_UP {
                results.push(VERSION, subject.who, micros);
            }
        }
    }
    Ok(())
}

fn loopback(lab: &Lab, calls: usize, results: &mut Results) -> Result<()> {
    let pods = lab.make_pods("lo-", 2 * (WARM_UP + calls))?;
    let mut fresh = (0..).map(|at| pods.path(at));
    for round in 0..WARM_UP + calls {
        for subject in in_turn(&lab.subjects(), round) {
            let netns = fresh.next().unwrap_or_default();
            let call = Call::plugin(subject, "loopback", "ADD", &lab.loopback_conf);
            let micros = call.attachment("bench", &netns).time()?;
            if round >= WARM_UP {
                results.push(LOOPBACK_ADD, subject.who, micros);
            }
        }
    }
    pods.remove()
}

/// What is measured in one turn of the bridge.
#[derive(Debug, Clone, Copy)]
enum Turn<'a> {
    Plugin(&'a Subject),
    Floor,
}

/// Measures in groups of rounds, because many namespaces slow the kernel down.
fn bridge(lab: &Lab, calls: usize, results: &mut Results) -> Result<()> {
    let mut warm_up = Results::default();
    bridge_rounds(lab, 0..WARM_UP, &mut warm_up)?;
    lab.put_bridges_in_use()?;
    for first in (0..calls).step_by(GROUP) {
        bridge_rounds(lab, first..(first + GROUP).min(calls), results)?;
    }
    Ok(())
}

fn bridge_rounds(lab: &Lab, rounds: Range<usize>, results: &mut Results) -> Result<()> {
    let turns = [Turn::Plugin(&lab.go), Turn::Plugin(&lab.ours), Turn::Floor];
    let pods = lab.make_pods("br-", rounds.len() * (turns.len() + 1))?;
    let mut fresh = (0..).map(|at| pods.path(at));
    for round in rounds.clone() {
        for turn in in_turn(&turns, round) {
            let netns = fresh.next().unwrap_or_default();
            attach_and_detach(lab, *turn, &netns, results)?;
        }
    }
    let rest: Vec<String> = fresh.take(rounds.len()).collect();
    for micros in lab.floor_loop(&rest)? {
        results.push(BRIDGE_ADD, Who::Loop, micros);
    }
    pods.remove()
}

/// Measures ADD and DEL, then waits until the kernel is idle.
fn attach_and_detach(lab: &Lab, turn: Turn<'_>, netns: &str, results: &mut Results) -> Result<()> {
    let (who, add, del) = match turn {
        Turn::Plugin(subject) => {
            let call = |verb| Call::bridge(subject, verb, netns);
            (subject.who, call("ADD"), call("DEL"))
        }
        Turn::Floor => (Who::Floor, lab.floor_add(netns), lab.floor_del()),
    };
    results.push(BRIDGE_ADD, who, add.time()?);
    let start = Instant::now();
    results.push(BRIDGE_DEL, who, del.time()?);
    lab.settle()?;
    results.push(BRIDGE_DEL_DONE, who, start.elapsed().as_secs_f64() * 1e6);
    Ok(())
}

/// Rotates the order each round, so that no program always follows the same one.
pub(crate) fn in_turn<T>(all: &[T], round: usize) -> impl Iterator<Item = &T> {
    all.iter().cycle().skip(round % all.len()).take(all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_rotates_each_round() {
        let order = |round| in_turn(&[1, 2, 3], round).copied().collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(5)], [[1, 2, 3], [2, 3, 1], [3, 1, 2]]);
    }
}
