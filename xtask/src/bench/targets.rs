// SPDX-License-Identifier: Apache-2.0
//! Performance targets.

use super::agent::{Agents, BACKENDS, BLOCKS};
use super::chain::AT_ONCE;
use super::mappings::LEVELS;
use super::results::{
    BRIDGE_ADD, CHAIN_ADD, CHAIN_DEL, Results, Who, grouped, host_local, mappings,
};
use super::routed::{CALICO_ADD, PTP_ADD};

/// A ratio with a bound on one side.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) bound: Bound,
    /// `None` if it was not measured.
    pub(crate) measured: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    pub(crate) fn is_met(&self) -> bool {
        self.measured.is_some_and(|ratio| match self.bound {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        })
    }
}

/// All targets, from medians of the same run.
pub(crate) fn targets(results: &Results) -> Vec<Target> {
    let bridge = |who| results.median(BRIDGE_ADD, who);
    let growth = |verb| {
        let at = |taken| results.median(&host_local(verb, taken), Who::Ours);
        ratio(at(50_000), at(0))
    };
    let udp = |who| results.udp(who).map(|[_, median, _]| median);
    let mut all = chain_targets(results);
    all.extend([
        target(
            "bridge+host-local ADD: times faster than Go",
            Bound::AtLeast(8.0),
            ratio(bridge(Who::Go), bridge(Who::Ours)),
        ),
        target(
            "bridge+host-local ADD: times the floor (process)",
            Bound::AtMost(1.8),
            ratio(bridge(Who::Ours), bridge(Who::Floor)),
        ),
        target(
            "host-local ADD with 50 000 reserved: times its cost with none",
            Bound::AtMost(1.5),
            growth("ADD"),
        ),
        target(
            "host-local DEL with 50 000 reserved: times its cost with none",
            Bound::AtMost(1.5),
            growth("DEL"),
        ),
        target(
            "TCP over the UDP tunnel: times the naive loop",
            Bound::AtLeast(4.0),
            ratio(udp(Who::Ours), udp(Who::Naive)),
        ),
    ]);
    all.extend(agent_targets(&results.agents));
    all.extend(pool_targets(results));
    all
}

fn pool_targets(results: &Results) -> Vec<Target> {
    let (agents, ours) = (&results.agents, |case| results.median(case, Who::Ours));
    let listed = |agent: &super::agent::Agent| agent.listed;
    vec![
        target(
            "calico+calico-ipam ADD through the agent: times ptp+host-local",
            Bound::AtMost(1.3),
            ratio(ours(CALICO_ADD), ours(PTP_ADD)),
        ),
        target(
            "one assignment with 50 000 assigned: times its cost with none",
            Bound::AtMost(1.2),
            ratio(agents.assignment(true), agents.assignment(false)),
        ),
        target(
            "1 000 blocks, list to kernel: times 1 000 flannel peers",
            Bound::AtMost(1.1),
            ratio(agents.block(listed), agents.crowd(BLOCKS, listed)),
        ),
    ]
}

fn target(what: &str, bound: Bound, measured: Option<f64>) -> Target {
    Target { what: what.to_owned(), bound, measured }
}

fn agent_targets(agents: &Agents) -> Vec<Target> {
    let slower = |backend| {
        let median = |who| agents.tcp(backend, who).map(|[_, median, _]| median);
        ratio(median(Who::Ours), median(Who::ByHand))
    };
    let listed = |peers| agents.crowd(peers, |agent| agent.listed);
    let mut all = Vec::new();
    for store in ["embedded", "etcd"] {
        let what = format!("two agents started together to the first ping, {store}: ms");
        all.push(target(&what, Bound::AtMost(150.0), agents.start(store, true)));
    }
    for (peers, most) in [(1_000, 50.0), (5_000, 200.0)] {
        let what = format!("{} peers, list to kernel: ms", grouped(peers as u64));
        all.push(target(&what, Bound::AtMost(most), listed(peers)));
    }
    let growth = ratio(agents.change(5_000), agents.change(10));
    all.extend([
        target("memory with 1 000 peers: MB", Bound::AtMost(20.0), agents.memory(1_000)),
        target("one more peer with 5 000: times its cost with 10", Bound::AtMost(1.2), growth),
        target(
            "idle with 1 000 peers: % of a CPU",
            Bound::AtMost(0.1),
            agents.crowd(1_000, |agent| agent.idle),
        ),
    ]);
    for backend in BACKENDS {
        let what = format!("TCP over {backend}: times the throughput by hand");
        all.push(target(&what, Bound::AtLeast(0.95), slower(backend)));
    }
    all
}

fn chain_targets(results: &Results) -> Vec<Target> {
    let faster = |case, who| ratio(results.median(case, Who::Go), results.median(case, who));
    let apart = |verb| {
        let at = |level: &usize| results.median(&mappings(verb, *level), Who::Ours);
        let all: Option<Vec<f64>> = LEVELS.iter().map(at).collect();
        let all = all?;
        let (least, most) =
            (all.iter().copied().reduce(f64::min), all.iter().copied().reduce(f64::max));
        ratio(most, least)
    };
    let burst = results.bulk(CHAIN_ADD, AT_ONCE, Who::Ours);
    let burst = burst.filter(|bulk| bulk.failures == 0).and_then(|bulk| bulk.per_second());
    vec![
        target(
            "full chain ADD: times faster than Go",
            Bound::AtLeast(25.0),
            faster(CHAIN_ADD, Who::Ours),
        ),
        target(
            "full chain DEL: times faster than Go",
            Bound::AtLeast(20.0),
            faster(CHAIN_DEL, Who::Ours),
        ),
        target(
            "full chain ADD as one plugin: times faster than Go",
            Bound::AtLeast(50.0),
            faster(CHAIN_ADD, Who::Whole),
        ),
        target("full chain ADD, 32 in parallel: per second", Bound::AtLeast(300.0), burst),
        target(
            "portmap ADD with 10, 1 000 and 10 000 mappings: slowest ÷ fastest",
            Bound::AtMost(1.3),
            apart("ADD"),
        ),
        target(
            "portmap DEL with 10, 1 000 and 10 000 mappings: slowest ÷ fastest",
            Bound::AtMost(1.3),
            apart("DEL"),
        ),
    ]
}

pub(crate) fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    Some(above? / below.filter(|below| *below > 0.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive() {
        fn check(bound: Bound, measured: Option<f64>, expected: bool) {
            let target = Target { what: String::new(), bound, measured };
            assert_eq!(target.is_met(), expected, "{target:?}");
        }
        check(Bound::AtLeast(8.0), Some(8.0), true);
        check(Bound::AtLeast(8.0), Some(7.9), false);
        check(Bound::AtMost(1.8), Some(1.8), true);
        check(Bound::AtMost(1.8), Some(1.9), false);
        check(Bound::AtMost(1.8), None, false);
    }

    #[test]
    fn ratios_come_from_the_same_run() {
        let mut results = Results::default();
        for (who, micros) in [(Who::Go, 9000.0), (Who::Ours, 900.0), (Who::Floor, 600.0)] {
            results.push(BRIDGE_ADD, who, micros);
        }
        let measured: Vec<_> = targets(&results).iter().map(|target| target.measured).collect();
        assert_eq!(measured[6..11], [Some(10.0), Some(1.5), None, None, None]);
    }
}
