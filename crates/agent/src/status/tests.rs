// SPDX-License-Identifier: Apache-2.0
//! Reports to a hub, and what the status shows of them.

use serde_json::json;

use super::*;

pub(super) fn network() -> NetworkStatus {
    NetworkStatus {
        owner: "podwire".into(),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        backend: "vxlan".into(),
        pod_mtu: 1450,
        lease: LeaseStatus {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            public: vec!["192.0.2.1".parse().unwrap()],
        },
        underlay: UnderlayStatus {
            name: "eth0".into(),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            mtu: 1500,
        },
    }
}

fn peer(name: &str) -> PeerStatus {
    PeerStatus {
        name: name.into(),
        subnets: vec!["10.244.2.0/24".parse().unwrap()],
        public: vec!["192.0.2.2".parse().unwrap()],
        backend: "vxlan".into(),
        route: RouteMode::Tunnel,
        path: PathStatus::default(),
    }
}

fn rejected(peer: &str, reason: &str) -> RejectedPeerStatus {
    RejectedPeerStatus { peer: peer.into(), subnet: None, reason: reason.into() }
}

/// The hub of a node that has joined a network.
fn joined_hub() -> StatusHub {
    let hub = StatusHub::new("a", "etcd");
    hub.set_network(Some(network()));
    hub
}

/// Returns readiness and health after some time without a report.
fn after(hub: &StatusHub, time: Duration) -> (Readiness, Health) {
    let (state, now) = (hub.lock(), Instant::now() + time);
    (readiness::readiness(&state, now), readiness::health(&state, now))
}

fn failed_kinds(hub: &StatusHub) -> Vec<ConditionKind> {
    hub.summary().problems.into_keys().collect()
}

#[test]
fn node_is_ready_when_it_has_joined() {
    let hub = StatusHub::new("a", "etcd");
    assert!(!hub.readiness().is_ready);
    hub.set_network(Some(network()));
    assert!(hub.readiness().is_ready);
    hub.set_network(None);
    assert!(!hub.readiness().is_ready);
}

#[test]
fn store_is_named_until_its_first_answer() {
    let hub = StatusHub::new("a", "etcd");
    assert_eq!(hub.status().store.reachable, None);
    assert_eq!(hub.readiness().reasons[1], "store: etcd has not answered yet");
    hub.clear_problem(ConditionKind::Store);
    assert_eq!(hub.status().store.reachable, Some(true));
    assert_eq!(hub.readiness().reasons.len(), 1);
}

#[test]
fn every_problem_before_joining_is_a_reason() {
    for kind in ConditionKind::ALL {
        let hub = StatusHub::new("a", "etcd");
        hub.set_problem(kind, "missing");
        let reason = format!("{}: missing", kind.name());
        assert_eq!(hub.readiness().reasons[1..], [reason]);
        assert!(hub.health().is_healthy, "waiting is no fault of the agent");
    }
}

#[test]
fn condition_of_a_joined_node_is_a_reason_or_warning() {
    use ConditionKind::{Bridge, Kernel, Lease, Rules, Underlay};
    for kind in ConditionKind::ALL {
        let hub = joined_hub();
        hub.set_problem(kind, "broken");
        let readiness = hub.readiness();
        let is_reason = [Lease, Underlay, Kernel, Rules, Bridge].contains(&kind);
        assert_eq!(readiness.is_ready, !is_reason, "{kind:?}");
        assert_eq!(readiness.warnings.is_empty(), is_reason, "{kind:?}");
        let keeps_cni_conf = !is_reason || kind == Bridge;
        assert_eq!(readiness.keeps_cni_conf, keeps_cni_conf, "{kind:?}");
        hub.clear_problem(kind);
        let ready = Readiness { is_ready: true, keeps_cni_conf: true, ..Readiness::default() };
        assert_eq!(hub.readiness(), ready, "{kind:?}");
    }
}

#[test]
fn lost_store_leaves_node_ready_until_lease_expires() {
    let hub = joined_hub();
    hub.set_lease_left(Some(Duration::from_secs(100)));
    hub.set_problem(ConditionKind::Store, "connection refused");
    let (readiness, _) = after(&hub, Duration::from_secs(10));
    assert!(readiness.is_ready, "{readiness:?}");
    let left = readiness.holds_for.unwrap();
    assert!(left <= Duration::from_secs(90) && left > Duration::from_secs(80), "{left:?}");
    let (readiness, _) = after(&hub, Duration::from_secs(101));
    assert_eq!(readiness.reasons, ["the lease has expired and could not be renewed"]);
    assert_eq!((readiness.is_ready, readiness.holds_for), (false, None));
    hub.set_lease_left(Some(Duration::from_secs(200)));
    assert!(after(&hub, Duration::from_secs(101)).0.is_ready);
}

#[test]
fn store_condition_sets_store_reachability() {
    let hub = joined_hub();
    hub.set_problem(ConditionKind::Store, "connection refused");
    let lost = hub.status().store;
    assert_eq!(lost.reachable, Some(false));
    hub.set_problem(ConditionKind::Store, "timeout");
    assert_eq!(hub.status().store, lost, "`since` is the time of the change");
    hub.clear_problem(ConditionKind::Store);
    let found = hub.status().store;
    assert!(found.reachable == Some(true) && found.since >= lost.since, "{found:?}");
}

#[test]
fn missing_heartbeat_makes_the_agent_unhealthy() {
    let hub = joined_hub();
    assert!(after(&hub, Duration::from_secs(44)).1.is_healthy);
    assert_eq!(after(&hub, Duration::from_secs(61)).1.reasons, ["event loop stalled for 61 s"]);
}

#[test]
fn failed_repair_makes_agent_unhealthy_after_a_minute() {
    for kind in ConditionKind::ALL {
        let hub = joined_hub();
        hub.set_problem(kind, "no permission");
        let is_repair = [ConditionKind::Kernel, ConditionKind::Rules].contains(&kind);
        let reasons = |time| after(&hub, Duration::from_secs(time)).1.reasons;
        assert_eq!(reasons(40), [""; 0]);
        assert_eq!(reasons(61).len(), 1 + usize::from(is_repair), "{kind:?}");
        if is_repair {
            hub.set_problem(kind, "still no permission");
            let reason = format!("{}: not repaired for 61 s: still no permission", kind.name());
            assert_eq!(reasons(61)[1], reason, "a new text does not restart the minute");
        }
        hub.clear_problem(kind);
        assert_eq!(reasons(61).len(), 1, "{kind:?}");
    }
}

#[test]
fn failed_controller_is_a_warning_then_unhealthy() {
    let hub = joined_hub();
    hub.controller_failed("nat", "no memory".into());
    hub.controller_failed("nat", "panicked".into());
    let (readiness, health) = after(&hub, Duration::from_secs(40));
    assert!(readiness.is_ready && health.is_healthy);
    assert_eq!(readiness.warnings, ["controller nat is being restarted: panicked"]);
    let (_, health) = after(&hub, Duration::from_secs(61));
    assert_eq!(health.reasons[1], "controller nat has failed for 61 s: panicked");
    hub.controller_running("nat");
    assert!(after(&hub, Duration::from_secs(40)).1.is_healthy);
    let nat = &hub.summary().controllers["nat"];
    assert_eq!((nat.restarts, &nat.failure), (2, &None));
}

#[test]
fn file_condition_lasts_until_every_file_is_written() {
    let hub = joined_hub();
    let (first, second) = (Path::new("/a"), Path::new("/b"));
    hub.report_file(first, Err("disk full".into()));
    hub.report_file(second, Err("read-only".into()));
    assert_eq!(hub.summary().problems[&ConditionKind::Files].text, "disk full; read-only");
    hub.report_file(first, Ok(()));
    assert_eq!(hub.summary().problems[&ConditionKind::Files].text, "read-only");
    hub.report_file(second, Ok(()));
    assert_eq!(failed_kinds(&hub), []);
}

#[test]
fn conditions_are_independent() {
    let hub = joined_hub();
    hub.report_result(ConditionKind::Kernel, Err("no device"));
    hub.report_result(ConditionKind::Rules, Err("no table"));
    assert_eq!(failed_kinds(&hub), [ConditionKind::Kernel, ConditionKind::Rules]);
    hub.report_result(ConditionKind::Kernel, Ok::<(), String>(()));
    assert_eq!(failed_kinds(&hub), [ConditionKind::Rules]);
}

#[test]
fn repairs_are_counted_and_the_last_ones_listed() {
    let hub = joined_hub();
    for at in 0..100 {
        hub.record_repair(RepairKind::Route, format!("set route {at}"));
    }
    hub.record_repair(RepairKind::Rules, "re-created the table");
    let repairs = hub.status().kernel.repairs;
    assert_eq!(repairs.counts[&RepairKind::Route], 100);
    assert_eq!(repairs.counts[&RepairKind::Device], 0, "every kind is listed");
    assert_eq!(repairs.last.len(), kernel::MAX_REPAIRS);
    assert_eq!(repairs.last.last().unwrap().text, "re-created the table");
    assert_eq!(repairs.last[0].text, "set route 69");
}

/// Returns whether a change was reported since the last call.
fn has_changed(changes: &mut Changes) -> bool {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    let next = std::pin::pin!(changes.next());
    next.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}

#[test]
fn peers_and_repairs_are_no_changes() {
    let hub = StatusHub::new("a", "etcd");
    let mut changes = hub.changes();
    hub.set_peer(peer("b"));
    hub.record_repair(RepairKind::Route, "set route");
    hub.heartbeat();
    assert!(!has_changed(&mut changes));
}

#[test]
fn changes_of_conditions_are_reported_once() {
    let hub = StatusHub::new("a", "etcd");
    let mut changes = hub.changes();
    hub.clear_problem(ConditionKind::Rules);
    assert!(!has_changed(&mut changes), "no problem was reported before");
    hub.clear_problem(ConditionKind::Store);
    assert!(has_changed(&mut changes), "the first answer of the store");
    hub.clear_problem(ConditionKind::Store);
    assert!(!has_changed(&mut changes));
    hub.clone().set_network(Some(network()));
    hub.set_problem(ConditionKind::Kernel, "no");
    assert!(has_changed(&mut changes));
    assert!(!has_changed(&mut changes), "both changes are one");
    hub.set_problem(ConditionKind::Kernel, "no");
    assert!(!has_changed(&mut changes), "the same text");
    hub.set_problem(ConditionKind::Kernel, "still no");
    assert!(has_changed(&mut changes));
}

/// Every field of docs/health.md, also those that are null.
#[test]
fn status_has_the_documented_fields() {
    let hub = StatusHub::new("a", "etcd");
    hub.set_multicast(Arc::default());
    let printed = serde_json::to_value(hub.status()).unwrap();
    let fields: Vec<&str> = printed.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        [
            "compare",
            "conflicts",
            "conflictsTotal",
            "controllers",
            "healthy",
            "leaseUntil",
            "multicast",
            "node",
            "peerCounts",
            "peers",
            "problems",
            "ready",
            "reasons",
            "refused",
            "refusedTotal",
            "repairs",
            "session",
            "started",
            "store",
            "version",
            "warnings",
            "watch",
        ]
    );
    assert_eq!(printed["session"], json!(null));
    let counts = json!({"total": 0, "direct": 0, "tunnel": 0, "refused": 0, "withProblem": 0});
    assert_eq!(printed["peerCounts"], counts);
    let lost = &printed["multicast"]["lost"];
    assert_eq!(lost["rate"], 0, "{lost}");
}

#[test]
fn status_round_trips_through_json() {
    let hub = joined_hub();
    hub.set_watch(7, 9);
    hub.set_lease_left(Some(Duration::from_secs(60)));
    hub.record_comparison(Duration::from_millis(3), 1);
    hub.record_repair(RepairKind::Nexthop, "add next hop");
    hub.set_problem(ConditionKind::Config, "none");
    hub.controller_failed("nat", "panicked".into());
    let path = PathStatus {
        path_mtu: Some(1450),
        last_contact: Some(Time(std::time::UNIX_EPOCH + Duration::from_millis(1_500))),
        problem: None,
    };
    hub.set_peer(PeerStatus { path, ..peer("b") });
    hub.set_rejected(vec![rejected("c", "the two nodes have no address family in common")]);
    let printed = serde_json::to_value(hub.status()).unwrap();
    assert_eq!(
        printed["session"],
        json!({
            "mark": "podwire", "networks": ["10.244.0.0/16"], "backend": "vxlan",
            "podMtu": 1450,
            "lease": {"subnets": ["10.244.1.0/24"], "public": ["192.0.2.1"]},
            "underlay": {"name": "eth0", "addresses": ["192.0.2.1"], "mtu": 1500},
        })
    );
    assert_eq!(printed["watch"], json!({"revision": 7, "behind": 2}));
    assert_eq!(
        printed["peers"],
        json!([{
            "name": "b", "subnets": ["10.244.2.0/24"], "public": ["192.0.2.2"], "backend": "vxlan",
            "way": "tunnel", "pathMtu": 1450, "lastContact": "1970-01-01T00:00:01.500Z",
        }, {
            "name": "c", "subnets": [], "public": [], "backend": "", "way": "refused",
            "problem": "refused: the two nodes have no address family in common",
        }])
    );
    assert_eq!(printed["repairs"]["counts"]["nexthop"], 1);
    assert_eq!(
        printed["warnings"][2],
        "c is not served: the two nodes have no address family in common"
    );
    let read: Status = serde_json::from_value(printed.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), printed);
}

#[test]
fn rejection_is_new_once() {
    let hub = joined_hub();
    let first = rejected("b", "invalid");
    assert_eq!(hub.set_rejected(vec![first.clone()]), std::slice::from_ref(&first));
    let second = rejected("c", "invalid");
    assert_eq!(hub.set_rejected(vec![first, second.clone()]), [second]);
    hub.set_rejected(Vec::new());
    assert_eq!(hub.set_rejected(vec![rejected("b", "invalid")]).len(), 1, "rejected again");
}

/// Otherwise any client of the store could make the pages, and the probes that read them, as large as it likes.
#[test]
fn pages_stay_small_with_many_long_rejections() {
    let hub = joined_hub();
    let long = |number| {
        let name = format!("{number:04} {}", "k".repeat(1000));
        let reason = format!("{name} is no subnet: {}", "x".repeat(100_000));
        rejected(&name, &reason)
    };
    assert_eq!(hub.set_rejected((0..3000).map(long).collect()).len(), 3000);
    let warnings = hub.readiness().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("3000 keys or subnets refused, the first: 0000 kkk"));
    assert!(warnings[0].len() < 2000, "{}", warnings[0].len());
    let status = hub.status();
    assert_eq!((status.peers.rejected_total, status.peers.counts.rejected), (3000, 3000));
    let page = serde_json::to_string(&status).unwrap();
    assert!(page.len() < 64_000, "{}", page.len());
    let peers = serde_json::to_string(&hub.peers()).unwrap();
    assert!(peers.len() < 64_000, "{}", peers.len());
}

#[test]
fn long_problem_is_shortened() {
    let hub = joined_hub();
    hub.set_problem(ConditionKind::Config, "é".repeat(100_000));
    let text = &hub.status().problems[&ConditionKind::Config].text;
    assert!(text.len() < 600 && text.ends_with("… (200000 bytes)"), "{text}");
}

#[test]
fn a_few_rejections_are_listed_one_by_one() {
    let hub = joined_hub();
    hub.set_rejected((0..8).map(|name: u32| rejected(&name.to_string(), "no")).collect());
    let warnings = hub.readiness().warnings;
    assert_eq!(warnings.len(), 8);
    assert_eq!(warnings[7], "7 is not served: no");
}
