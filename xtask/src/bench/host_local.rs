// SPDX-License-Identifier: Apache-2.0
//! host-local with a growing number of reserved addresses. The Go plugin reads every file on each call;
//! the cost of podwire must not grow.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::call::Call;
use super::lab::{Lab, Subject, ipam, network, place, write_conf};
use super::latency::in_turn;
use super::plan::{Level, Plan};
use super::print_step;
use super::results::{Results, Who, host_local};

/// A directory with reserved addresses, used by one set of plugins.
struct Filled<'a> {
    subject: &'a Subject,
    who: Who,
    level: Level,
    conf: PathBuf,
    /// Number of rounds in which it is measured.
    calls: usize,
}

pub(crate) fn measure(lab: &Lab, plan: &Plan, results: &mut Results) -> Result<()> {
    print_step("host-local with reserved addresses");
    let rounds = plan.effort.ipam;
    let pods = lab.make_pods("ipam-", 1)?;
    let netns = pods.path(0);
    let filled = fill_all(lab, plan)?;
    let (go, ours): (Vec<_>, Vec<_>) = filled.iter().partition(|one| one.who == Who::Go);
    for one in &filled {
        // Builds podwire's index; the first call is not measured.
        call(one, "warm-up", &netns, &mut Results::default())?;
    }
    for round in 0..rounds {
        let container = format!("bench-{round}");
        // All calls of podwire first: after a long call of Go the caches would be cold.
        for one in in_turn(&ours, round).chain(in_turn(&go, round)) {
            if is_due(round, rounds, one.calls) {
                call(one, &container, &netns, results)?;
            }
        }
    }
    pods.remove()
}

/// Spreads few calls evenly over many rounds.
fn is_due(round: usize, rounds: usize, calls: usize) -> bool {
    round * calls / rounds != (round + 1) * calls / rounds
}

fn call(one: &Filled<'_>, container: &str, netns: &str, results: &mut Results) -> Result<()> {
    for verb in ["ADD", "DEL"] {
        let call = Call::plugin(one.subject, "host-local", verb, &one.conf);
        let micros = call.attachment(container, netns).time()?;
        results.push(&host_local(verb, one.level.taken), one.who, micros);
    }
    Ok(())
}

fn fill_all<'a>(lab: &'a Lab, plan: &Plan) -> Result<Vec<Filled<'a>>> {
    let (levels, rounds) = (&plan.effort.levels, plan.effort.ipam);
    let memory = place("taken");
    let mut filled = Vec::new();
    for (at, &level) in levels.iter().enumerate() {
        let go_calls = level.go_calls.min(rounds);
        filled.push(filled_at(&lab.go, Who::Go, &memory, level, go_calls)?);
        filled.push(filled_at(&lab.ours, Who::Ours, &memory, level, rounds)?);
        if plan.effort.disk && (at == 0 || at + 1 == levels.len()) {
            filled.push(filled_at(&lab.ours, Who::OursOnDisk, &plan.disk, level, rounds)?);
        }
    }
    Ok(filled)
}

fn filled_at<'a>(
    subject: &'a Subject,
    who: Who,
    dir: &Path,
    level: Level,
    calls: usize,
) -> Result<Filled<'a>> {
    let name = format!("{}-{}", who.name().replace([' ', ','], ""), level.taken);
    let dir = dir.join(&name);
    fill(&dir.join(&name), subject.net, level.taken)?;
    let conf = network(&name, "host-local", &ipam(subject.net, &dir));
    let conf = write_conf(&name, &conf)?;
    Ok(Filled { subject, who, level, conf, calls })
}

/// Writes the files that this number of ADDs of the Go plugin creates.
fn fill(dir: &Path, net: u8, taken: usize) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    for at in 0..taken {
        let text = format!("filler-{at}\r\neth0");
        fs::write(dir.join(address(net, at).to_string()), text)?;
    }
    if let Some(last) = taken.checked_sub(1) {
        fs::write(dir.join("last_reserved_ip.0"), address(net, last).to_string())?;
    }
    Ok(())
}

/// The first address follows the network address and the gateway.
fn address(net: u8, at: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(10, net, 0, 2));
    Ipv4Addr::from(first + u32::try_from(at).expect("a /16 has fewer addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_calls_are_spread_over_all_rounds() {
        let due = |calls| (0..10).filter(|round| is_due(*round, 10, calls)).collect::<Vec<_>>();
        assert_eq!(due(0), Vec::<usize>::new());
        assert_eq!(due(2), [4, 9]);
        assert_eq!(due(10).len(), 10);
    }

    #[test]
    fn files_equal_those_of_the_go_plugin() {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), 1, 300).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("10.1.0.2"), "filler-0\r\neth0");
        assert_eq!(read("last_reserved_ip.0"), "10.1.1.45");
        assert_eq!(read("10.1.1.45"), "filler-299\r\neth0");
    }
}
