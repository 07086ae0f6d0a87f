// SPDX-License-Identifier: Apache-2.0
//! Events: the agent's own changes cause no comparison, and unrelated changes by other programs
//! do not either.

use std::time::{Duration, Instant};

use agent::dataplane::routes::{self, EventImpact, Reconciler, Report};
use agent::status::RepairKind;
use kernel::Received;
use kernel::events::{Events, Object, Topic};
use testkit::{in_netns, wait_for};

use super::node::{SOON, ip, is_unchanged, make_eth0, network, open, options, remove, set};
use super::repairs::block_on;

const VXLAN: &str = r#"{"Type": "vxlan"}"#;
const HOST_GW: &str = r#"{"Type": "host-gw"}"#;

/// Returns the number of pending events and their impact.
fn pending_impact(events: &mut Events, reconciler: &Reconciler) -> (usize, EventImpact) {
    let mut count = 0;
    let mut impact = EventImpact::default();
    let deadline = Instant::now() + Duration::from_millis(200);
    loop {
        let received = events.receive(deadline, |event| {
            // A device is not as desired until its last attribute is set.
            if !matches!(&event.object, Object::Link(link) if link.name.as_str() == "flannel.1") {
                count += 1;
                impact = impact.and(reconciler.impact(&event));
            }
        });
        match received.unwrap() {
            Received::Events => {}
            Received::Deadline => return (count, impact),
            Received::Overrun => panic!("events lost"),
        }
    }
}

#[test]
fn own_changes_cause_no_comparison() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        for backend in [VXLAN, HOST_GW, r#"{"Type": "vxlan", "DirectRouting": true}"#] {
            let mut reconciler = open();
            let mut events = Events::listen(&Topic::ALL).unwrap();
            reconciler.set_network(network(backend, 2..200));
            let (count, impact) = pending_impact(&mut events, &reconciler);
            assert!(count > 200, "{backend}: {count}");
            assert_eq!(impact, EventImpact::default(), "{backend}");
            reconciler.set_peers(vec![set(backend, 300), remove(2), remove(3)]);
            let (count, impact) = pending_impact(&mut events, &reconciler);
            assert!(count >= 6, "{backend}: {count}");
            assert_eq!(impact, EventImpact::default(), "{backend}");
            reconciler.remove_all();
        }
    });
}

#[test]
fn unrelated_events_cause_no_comparison() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let mut reconciler = open();
        reconciler.set_network(network(r#"{"Type": "vxlan", "DirectRouting": true}"#, 2..9));
        let mut events = Events::listen(&Topic::ALL).unwrap();
        for command in [
            "link add veth1 type veth peer name pod1",
            "link set veth1 up",
            "link add cni0 type bridge",
            "address add 10.0.1.1/24 dev cni0",
            "link set cni0 up",
            "link set veth1 master cni0",
            "route add 10.0.1.5/32 dev cni0",
            "route add 10.0.3.0/24 dev cni0 metric 77",
            "route add 192.0.2.0/24 dev cni0",
            "neigh add 10.0.1.5 lladdr 02:00:00:00:00:05 dev cni0 nud permanent",
            "neigh add 172.16.0.99 lladdr 02:00:00:00:00:05 dev eth0 nud permanent",
            "address add 192.0.2.9/32 dev flannel.1",
            "link delete veth1",
        ] {
            ip(command);
        }
        let (count, impact) = pending_impact(&mut events, &reconciler);
        assert!(count > 10, "{count}");
        assert_eq!(impact, EventImpact::default());
        ip("route add 172.16.0.5/32 via 172.16.0.99");
        let (_, impact) = pending_impact(&mut events, &reconciler);
        assert_eq!(impact, EventImpact { on_link: true, ..EventImpact::default() });
    });
}

/// The gateway to one peer is a local address, which the kernel refuses.
#[test]
fn failed_peer_does_not_block_others_and_is_retried() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        ip("address add 10.0.3.0/32 dev lo");
        let never = Duration::from_secs(100_000);
        let (thread, mut reports) = routes::start(options(), never).unwrap();
        let network = network(VXLAN, 2..6);
        let outcome = block_on(thread.run(|one| one.set_network(network))).unwrap();
        let failures: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
        assert!(failures.iter().all(|text| text.contains("10.0.3.0")), "{failures:?}");
        assert!(!failures.is_empty());
        assert_eq!(ip("route show proto 112").lines().count(), 3);
        // The report comes after the events of the agent's own changes.
        wait_for("a report", SOON, || reports.try_recv().is_ok());
        ip("address del 10.0.3.0/32 dev lo");
        wait_for("the fourth route", SOON, || ip("route show proto 112").lines().count() == 4);
        wait_for("a report of the retry", SOON, || {
            let report = reports.try_recv().ok();
            matches!(report, Some(Report::Retried(outcome)) if outcome.failures.is_empty())
        });
    });
}

#[test]
fn comparison_finds_changes_without_events() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let mut reconciler = open();
        reconciler.set_network(network(VXLAN, 2..4));
        // There is no event listener here.
        ip("route del 10.0.3.0/24");
        let outcome = reconciler.compare();
        let kinds: Vec<RepairKind> = outcome.changes.iter().map(RepairKind::from).collect();
        assert_eq!(kinds, [RepairKind::Route], "{outcome:?}");
        assert!(ip("route show 10.0.3.0/24").contains("flannel.1"));
    });
}

#[test]
fn underlay_address_change_keeps_the_device() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        let mut reconciler = open();
        reconciler.set_network(network(VXLAN, 2..4));
        let index = |text: String| text.split(':').next().unwrap().to_owned();
        let before = index(ip("-o link show flannel.1"));
        ip("address add 172.16.9.9/12 dev eth0");
        ip("link set eth0 mtu 1400");
        let conf = super::node::conf(VXLAN);
        let mut underlay = super::node::underlay();
        underlay.addresses.v4 = Some("172.16.9.9".parse().unwrap());
        let peers = [2, 3].map(|n| (format!("node-{n}"), (0, super::node::lease(&conf, n))));
        let own = super::node::lease(&conf, 1);
        let network = overlay::plan::Network::new(conf, own, underlay, peers.into()).unwrap();
        let outcome = reconciler.set_network(network);
        assert_eq!((outcome.changes.len(), outcome.failures.len()), (2, 0), "{outcome:?}");
        assert_eq!(outcome.pod_mtu, Some(1350));
        let shown = ip("-d link show flannel.1");
        assert!(shown.contains("mtu 1350 ") && shown.contains("local 172.16.9.9 "), "{shown}");
        assert_eq!(index(shown), before);
        assert!(is_unchanged(&reconciler.compare()));
    });
}

#[test]
fn extension_commands_are_reported_once() {
    in_netns(|| {
        make_eth0();
        let backend = r#"{"Type": "extension", "SubnetAddCommand": "true"}"#;
        let mut reconciler = open();
        let shown = |outcome: agent::dataplane::routes::Outcome| -> Vec<String> {
            outcome.changes.iter().map(ToString::to_string).collect()
        };
        let first = shown(reconciler.set_network(network(backend, 2..4)));
        assert_eq!(
            first,
            ["call SubnetAddCommand for 10.0.2.0/24", "call SubnetAddCommand for 10.0.3.0/24"]
        );
        assert_eq!(shown(reconciler.compare()), Vec::<String>::new());
        let gone = shown(reconciler.set_peers(vec![remove(2)]));
        assert_eq!(gone, ["call SubnetRemoveCommand for 10.0.2.0/24"]);
        assert_eq!(shown(reconciler.compare()), Vec::<String>::new());
    });
}

/// In a container that cannot write sysctls, the device is created all the same.
#[test]
fn device_without_accept_ra_is_no_failure() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        make_eth0();
        testkit::run(
            "sh",
            &[
                "-ec",
                "echo 1 > /proc/sys/net/ipv6/conf/default/accept_ra
            mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys",
            ],
        );
        let mut reconciler = open();
        let outcome = reconciler.set_network(network(VXLAN, 2..4));
        assert_eq!(outcome.failures, []);
        assert_eq!(testkit::run("cat", &["/proc/sys/net/ipv6/conf/flannel.1/accept_ra"]), "1\n");
        assert!(is_unchanged(&reconciler.compare()));
    });
}
