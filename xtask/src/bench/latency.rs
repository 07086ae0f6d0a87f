// SPDX-License-Identifier: Apache-2.0
//! One call after the other: VERSION, loopback, bridge with host-local, and both floors.

use std::time::Instant;

use anyhow::Result;

use super::call::Call;
use super::lab::{Lab, Pods, Subject};
use super::plan::Effort;
use super::results::{
    BRIDGE_ADD, BRIDGE_DEL, BRIDGE_DEL_DONE, LOOPBACK_ADD, Results, VERSION, Who,
};
use super::say;

/// Calls before those that count: they make the bridge and fill the page cache.
const WARM_UP: usize = 3;

/// The loop's turns come in groups, or its process would be as cold as all others.
const LOOP_GROUP: usize = 10;

pub fn measure(lab: &Lab, effort: &Effort, results: &mut Results) -> Result<()> {
    say("VERSION");
    version(lab, effort.calls, results)?;
    say(LOOPBACK_ADD);
    loopback(lab, effort.calls, results)?;
    say("bridge+host-local ADD and DEL, and the floor");
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
    let mut fresh = 0..;
    for round in 0..WARM_UP + calls {
        for subject in in_turn(&lab.subjects(), round) {
            let netns = pods.path(fresh.next().unwrap_or_default());
            let call = Call::plugin(subject, "loopback", "ADD", &lab.loopback_conf);
            let micros = call.attachment("bench", &netns).time()?;
            if round >= WARM_UP {
                results.push(LOOPBACK_ADD, subject.who, micros);
            }
        }
    }
    pods.remove()
}

/// Who is measured in one round of the bridge.
#[derive(Debug, Clone, Copy)]
enum Turn<'a> {
    Plugin(&'a Subject),
    Floor,
}

fn bridge(lab: &Lab, calls: usize, results: &mut Results) -> Result<()> {
    let rounds = WARM_UP + calls;
    let turns = [Turn::Plugin(&lab.go), Turn::Plugin(&lab.ours), Turn::Floor];
    let pods = lab.make_pods("br-", rounds * (turns.len() + 1))?;
    let mut fresh = 0..;
    let mut warm_up = Results::default();
    for round in 0..rounds {
        let kept = if round < WARM_UP { &mut warm_up } else { &mut *results };
        for turn in in_turn(&turns, round) {
            let netns = pods.path(fresh.next().unwrap_or_default());
            attach_and_detach(lab, *turn, &netns, kept)?;
        }
        if (round + 1).is_multiple_of(LOOP_GROUP) {
            run_loop(lab, &pods, &mut fresh, results)?;
        }
    }
    pods.remove()
}

/// ADD and DEL by the clock, then a wait until the next one finds the kernel idle.
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

fn run_loop(
    lab: &Lab,
    pods: &Pods<'_>,
    fresh: &mut impl Iterator<Item = usize>,
    results: &mut Results,
) -> Result<()> {
    let namespaces: Vec<String> = fresh.take(LOOP_GROUP).map(|at| pods.path(at)).collect();
    for micros in lab.floor_loop(&namespaces)? {
        results.push(BRIDGE_ADD, Who::Loop, micros);
    }
    Ok(())
}

/// Another one begins each round, so that nobody always follows the same one.
pub fn in_turn<T>(all: &[T], round: usize) -> impl Iterator<Item = &T> {
    all.iter().cycle().skip(round % all.len()).take(all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_begins_once() {
        let order = |round| in_turn(&[1, 2, 3], round).copied().collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(5)], [[1, 2, 3], [2, 3, 1], [3, 1, 2]]);
    }
}
