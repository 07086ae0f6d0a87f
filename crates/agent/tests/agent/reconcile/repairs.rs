// SPDX-License-Identifier: Apache-2.0
//! The dataplane thread repairs changes by other programs.

use std::time::Duration;

use agent::dataplane::routes::{self, PeerUpdate, Report, RoutesDataplane};
use testkit::{in_netns, wait_for};
use tokio::sync::mpsc::UnboundedReceiver;

use super::node::{
    SOON, forwarding, ip, is_unchanged, make_eth0, network, options, public, remove,
};

const VXLAN: &str = r#"{"Type": "vxlan"}"#;

/// An interval without periodic comparisons.
const NEVER: Duration = Duration::from_secs(100_000);

struct Lab {
    thread: RoutesDataplane,
    reports: UnboundedReceiver<Report>,
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

impl Lab {
    fn new(backend: &str) -> Self {
        make_eth0();
        let (thread, reports) = routes::start(options(), NEVER).unwrap();
        let network = network(backend, 2..5);
        let outcome = block_on(thread.run(move |one| one.set_network(network))).unwrap();
        assert_eq!((&outcome.failures, &outcome.conflicts), (&vec![], &vec![]));
        Self { thread, reports }
    }

    /// All compared state.
    fn shown() -> String {
        let link = ip("-d link show dev flannel.1");
        // The index changes if the device is re-created.
        let link = link.split_once(": ").unwrap().1.to_owned();
        let parts = [
            link,
            ip("-o -4 address show dev flannel.1").split_once(": ").unwrap().1.to_owned(),
            ip("-4 route show proto 112"),
            ip("neigh show nud permanent"),
            forwarding().join("\n"),
            ip("nexthop show"),
        ];
        let lines = |part: &String| {
            let mut lines: Vec<String> = part.lines().map(|line| line.trim().to_owned()).collect();
            lines.sort();
            lines.join("\n")
        };
        parts.iter().map(lines).collect::<Vec<_>>().join("\n--\n")
    }

    fn assert_repaired_after(&mut self, what: &str, breaking: impl FnOnce()) {
        let before = Self::shown();
        while self.reports.try_recv().is_ok() {}
        breaking();
        let mut report = block_on(self.reports.recv()).unwrap();
        while matches!(report, Report::Compared { .. }) {
            report = block_on(self.reports.recv()).unwrap();
        }
        let Report::Repaired(outcome) = report else { panic!("{what}: {report:?}") };
        assert!(!outcome.changes.is_empty() && outcome.failures.is_empty(), "{what}: {outcome:?}");
        let mut now = String::new();
        wait_for(&format!("the repair after {what}"), SOON, || {
            now = testkit::try_run("ip", &["link", "show", "dev", "flannel.1"])
                .map_or_else(|why| why, |_| Self::shown());
            now == before
        });
    }

    /// Checks that the kernel state is as desired.
    fn assert_converged(&mut self) {
        let outcome = block_on(self.thread.run(|one| one.compare())).unwrap();
        assert!(is_unchanged(&outcome), "{outcome:?}");
    }
}

#[test]
fn every_part_of_vxlan_is_repaired() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let mut lab = Lab::new(VXLAN);
        for what in [
            "link delete flannel.1",
            "link set flannel.1 down",
            "link set flannel.1 mtu 1400",
            "link set flannel.1 address 02:12:34:56:78:9a",
            "link set flannel.1 alias other",
            "link set flannel.1 down name other",
            "link set flannel.1 type vxlan id 1 learning",
            "address del 10.0.1.0/32 dev flannel.1",
            "address add 10.0.99.0/32 dev flannel.1",
            "route del 10.0.3.0/24",
            "route replace 10.0.3.0/24 dev eth0 proto 112",
            "route add 10.0.99.0/24 dev flannel.1 proto boot",
            "nexthop flush proto 112",
            "neigh del 10.0.3.0 dev flannel.1",
            "neigh replace 10.0.3.0 lladdr 02:12:34:56:78:9a dev flannel.1 nud permanent",
            "neigh replace 10.0.99.0 lladdr 02:12:34:56:78:9a dev flannel.1 nud permanent",
        ] {
            lab.assert_repaired_after(what, || drop(ip(what)));
        }
        let mac = super::node::mac(3);
        let public = public(3).to_string();
        let bridge = |args: &str| {
            testkit::run("bridge", &args.split_whitespace().collect::<Vec<_>>());
        };
        for what in [
            format!("fdb del {mac} dev flannel.1 dst {public} self"),
            format!("fdb replace {mac} dev flannel.1 dst 172.16.0.77 self"),
            "fdb add 02:12:34:56:78:9a dev flannel.1 dst 172.16.0.77 self".to_owned(),
        ] {
            lab.assert_repaired_after(&what, || bridge(&what));
        }
        lab.assert_converged();
    });
}

#[test]
fn underlay_change_is_reported() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let mut lab = Lab::new(VXLAN);
        for what in [
            "link set eth0 mtu 1400",
            "address add 172.16.0.9/12 dev eth0",
            "address del 172.16.0.1/12 dev eth0",
        ] {
            while lab.reports.try_recv().is_ok() {}
            ip(what);
            let is_underlay = |report: Report| report == Report::UnderlayChanged;
            wait_for(what, SOON, || lab.reports.try_recv().is_ok_and(is_underlay));
        }
    });
}

/// The kernel keeps the MTU of a route that is replaced through the same next hop.
#[test]
fn route_mtu_is_removed_when_the_path_recovers() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let mut lab = Lab::new(VXLAN);
        let subnet = "10.0.3.0/24".parse().unwrap();
        let route = || ip("-4 route show 10.0.3.0/24 proto 112");
        for mtu in [Some(1300), None, Some(1400), Some(1300), None] {
            let name = "node-3".to_owned();
            let update = PeerUpdate::PathMtu { name, subnet, mtu };
            let run = lab.thread.run(move |one| one.set_peers(vec![update]));
            let outcome = block_on(run).unwrap();
            assert_eq!(outcome.failures, []);
            let shown = route();
            let found = shown.split_whitespace().skip_while(|word| *word != "mtu").nth(1);
            assert_eq!(found.map(str::to_owned), mtu.map(|mtu: u32| mtu.to_string()), "{shown}");
            assert_eq!(ip("nexthop show proto 112").lines().count(), 3);
        }
        lab.assert_converged();
    });
}

/// The overlay controller reads reports when it has handled its commands, and ignores what is outdated then.
#[test]
fn report_is_older_than_outcome_of_later_command() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let mut lab = Lab::new(VXLAN);
        ip("route del 10.0.3.0/24");
        let route = || ip("route show 10.0.3.0/24");
        wait_for("the repair", SOON, || route().contains("flannel.1"));
        let later = block_on(lab.thread.run(|one| one.compare())).unwrap();
        let mut report = block_on(lab.reports.recv()).unwrap();
        while !matches!(report, Report::Repaired(_)) {
            report = block_on(lab.reports.recv()).unwrap();
        }
        let Report::Repaired(earlier) = report else { unreachable!() };
        assert!(earlier.at.is_some() && earlier.at < later.at, "{earlier:?} {later:?}");
    });
}

/// A command reports the conflict. A comparison without changes reports its end.
#[test]
fn end_of_a_conflict_is_reported() {
    in_netns(|| {
        make_eth0();
        let every = Duration::from_millis(100);
        let (thread, mut reports) = routes::start(options(), every).unwrap();
        ip("link add other type bridge");
        ip("link set other up");
        ip("route add 10.0.2.0/24 dev other proto static");
        let network = network(r#"{"Type": "host-gw"}"#, 2..4);
        // Both in one command, so that there is no comparison in between.
        let outcome = block_on(thread.run(move |one| {
            one.set_network(network);
            one.set_peers(vec![remove(2)])
        }));
        let outcome = outcome.unwrap();
        assert_eq!(outcome.conflicts.len(), 1, "{outcome:?}");
        wait_for("a report without the conflict", SOON, || {
            let report = reports.try_recv().ok();
            matches!(report, Some(Report::Repaired(outcome)) if is_unchanged(&outcome))
        });
    });
}

/// Comparisons with and without changes are reported.
#[test]
fn each_comparison_is_reported() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let every = Duration::from_millis(100);
        let (thread, mut reports) = routes::start(options(), every).unwrap();
        let network = network(VXLAN, 2..5);
        let outcome = block_on(thread.run(move |one| one.set_network(network))).unwrap();
        assert_eq!(outcome.failures, []);
        let mut wait = |wanted: usize| {
            wait_for(&format!("a comparison with {wanted} changes"), SOON, || {
                let report = reports.try_recv();
                matches!(report, Ok(Report::Compared { changes, .. }) if changes == wanted)
            });
        };
        wait(0);
        wait(0);
        ip("route del 10.0.3.0/24");
        wait(1);
        wait(0);
    });
}
