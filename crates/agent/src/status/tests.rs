// SPDX-License-Identifier: Apache-2.0
//! What is posted is what is read.

use std::slice;

use serde_json::json;

use super::*;

fn session() -> Session {
    Session {
        mark: "podwire 10.244.0.0/16".into(),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        backend: "vxlan".into(),
        pod_mtu: 1450,
        lease: Lease {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            public: vec!["192.0.2.1".parse().unwrap()],
        },
        underlay: Underlay {
            name: "eth0".into(),
            addresses: vec!["192.0.2.1".parse().unwrap()],
            mtu: 1500,
        },
    }
}

fn peer(name: &str, public: &str) -> Peer {
    Peer {
        name: name.into(),
        subnets: vec!["10.244.2.0/24".parse().unwrap()],
        public: vec![public.parse().unwrap()],
        backend: "vxlan".into(),
        way: Way::Tunnel,
        path: Path::default(),
    }
}

fn ready_hub() -> StatusHub {
    let hub = StatusHub::new("a", "etcd");
    hub.set_session(Some(session()));
    hub
}

/// As it would be judged after some time in which nothing happens.
fn later(hub: &StatusHub, after: Duration) -> (Readiness, Health) {
    let (state, now) = (hub.lock(), Instant::now() + after);
    (readiness::readiness(&state, now), readiness::health(&state, now))
}

#[test]
fn a_node_is_ready_once_it_is_part_of_the_network() {
    let hub = StatusHub::new("a", "etcd");
    assert_eq!(hub.status().store.reachable, None, "nobody knows yet");
    assert_eq!(hub.readiness().reasons[1], "store: etcd has not answered yet");
    hub.set_problem(ConditionKind::Config, "no net-conf.json");
    let readiness = hub.readiness();
    assert!(!readiness.is_ready);
    assert_eq!(
        readiness.reasons,
        ["this node is not part of the network yet", "config: no net-conf.json"]
    );
    assert!(hub.health().is_healthy, "it waits, which is no fault of the agent");
    hub.set_session(Some(session()));
    let readiness = hub.readiness();
    assert!(readiness.is_ready);
    assert_eq!(readiness.warnings, ["config: no net-conf.json"]);
}

#[test]
fn each_problem_makes_the_node_unfit_or_is_a_warning() {
    for part in ConditionKind::ALL {
        let hub = ready_hub();
        hub.set_problem(part, "broken");
        let readiness = hub.readiness();
        let unfit = [
            ConditionKind::Lease,
            ConditionKind::Underlay,
            ConditionKind::Kernel,
            ConditionKind::Rules,
            ConditionKind::Bridge,
        ];
        let is_warning = !unfit.contains(&part);
        assert_eq!(readiness.is_ready, is_warning, "{part:?}");
        assert_eq!(readiness.warnings.is_empty(), !is_warning, "{part:?}");
        let keeps_cni_conf = is_warning || part == ConditionKind::Bridge;
        assert_eq!(readiness.keeps_cni_conf, keeps_cni_conf, "{part:?}");
        hub.clear_problem(part);
        let ready = Readiness { is_ready: true, keeps_cni_conf: true, ..Readiness::default() };
        assert_eq!(hub.readiness(), ready);
    }
}

#[test]
fn without_the_store_a_node_is_ready_until_its_lease_ends() {
    let hub = ready_hub();
    hub.set_lease_left(Some(Duration::from_secs(100)));
    hub.set_problem(ConditionKind::Store, "connection refused");
    let (readiness, _) = later(&hub, Duration::from_secs(10));
    assert!(readiness.is_ready, "{readiness:?}");
    let left = readiness.holds_for.unwrap();
    assert!(left <= Duration::from_secs(90) && left > Duration::from_secs(80), "{left:?}");
    let (readiness, health) = later(&hub, Duration::from_secs(101));
    assert!(!readiness.is_ready);
    assert_eq!(readiness.reasons, ["the lease has run out, and could not be renewed"]);
    assert_eq!(readiness.holds_for, None);
    hub.set_lease_left(Some(Duration::from_secs(200)));
    assert!(later(&hub, Duration::from_secs(101)).0.is_ready);
    assert!(health.reasons.iter().all(|reason| !reason.contains("store")), "{health:?}");
    let shown = hub.status().store;
    assert_eq!(shown.reachable, Some(false));
    hub.clear_problem(ConditionKind::Store);
    assert_eq!(hub.status().store.reachable, Some(true));
    assert!(hub.status().store.since >= shown.since);
}

#[test]
fn an_agent_is_healthy_while_its_loop_lives_and_repairs_work() {
    let hub = ready_hub();
    hub.set_problem(ConditionKind::Rules, "no permission");
    assert!(later(&hub, Duration::from_secs(44)).1.is_healthy);
    let (_, health) = later(&hub, Duration::from_secs(61));
    assert_eq!(
        health.reasons,
        ["event loop stalled for 61 s", "rules: not repaired for 61 s: no permission"]
    );
    hub.set_problem(ConditionKind::Rules, "still no permission");
    let (_, health) = later(&hub, Duration::from_secs(61));
    assert!(health.reasons[1].contains("61 s: still"), "{health:?}");
    hub.clear_problem(ConditionKind::Rules);
    hub.set_problem(ConditionKind::Store, "gone");
    assert!(later(&hub, Duration::from_secs(40)).1.is_healthy);
}

#[test]
fn what_is_known_of_the_way_to_a_peer_is_kept_while_its_address_is() {
    let hub = ready_hub();
    let path = Path { path_mtu: Some(1400), problem: Some("small".into()), ..Path::default() };
    hub.set_peers(vec![peer("b", "192.0.2.2"), peer("c", "192.0.2.3")]);
    hub.set_path("b", path.clone());
    hub.set_path("nobody", path.clone());
    hub.set_peer(Peer { way: Way::Direct, ..peer("b", "192.0.2.2") });
    assert_eq!(hub.peers()[0].path, path);
    hub.set_peers(vec![peer("b", "192.0.2.2"), peer("a", "192.0.2.4")]);
    let names: Vec<String> = hub.peers().into_iter().map(|peer| peer.name).collect();
    assert_eq!(names, ["a", "b"]);
    let counts = hub.summary().peer_counts;
    assert_eq!(
        counts,
        PeerCounts { total: 2, tunnel: 2, with_problem: 1, ..PeerCounts::default() }
    );
    hub.set_peer(peer("b", "192.0.2.9"));
    assert_eq!(hub.peers()[1].path, Path::default());
    hub.remove_peer("a");
    assert_eq!(hub.peers().len(), 1);
}

#[test]
fn repairs_are_counted_and_the_last_ones_shown() {
    let hub = ready_hub();
    for at in 0..100 {
        hub.repaired(RepairKind::Route, format!("set route {at}"));
    }
    hub.repaired(RepairKind::Rules, "made the table again");
    let repairs = hub.status().repairs;
    assert_eq!(repairs.counts[&RepairKind::Route], 100);
    assert_eq!(repairs.counts[&RepairKind::Device], 0, "each kind is there");
    assert_eq!(repairs.last.len(), LAST_REPAIRS);
    assert_eq!(repairs.last.last().unwrap().text, "made the table again");
    assert_eq!(repairs.last[0].text, "set route 69");
}

#[tokio::test]
async fn whoever_waits_is_told_of_readiness_and_not_of_peers() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    let hub = StatusHub::new("a", "etcd");
    let mut changes = hub.changes();
    let mut is_told = || {
        let next = std::pin::pin!(changes.next());
        next.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    };
    assert!(!is_told());
    hub.set_peer(peer("b", "192.0.2.2"));
    hub.repaired(RepairKind::Route, "set route");
    hub.clear_problem(ConditionKind::Rules);
    assert!(!is_told());
    hub.clear_problem(ConditionKind::Store);
    assert!(is_told(), "it is known to answer now");
    hub.clear_problem(ConditionKind::Store);
    assert!(!is_told(), "that was known");
    hub.clone().set_session(Some(session()));
    hub.set_problem(ConditionKind::Kernel, "no");
    assert!(is_told(), "a change before the wait counts");
    assert!(!is_told(), "both were one");
    hub.set_problem(ConditionKind::Kernel, "no");
    assert!(!is_told(), "that was known");
}

#[test]
fn status_reads_as_documented() {
    let hub = ready_hub();
    hub.watched(7, 9);
    let path = Path {
        path_mtu: Some(1450),
        last_contact: Some(Time(std::time::UNIX_EPOCH + Duration::from_millis(1_500))),
        problem: None,
    };
    hub.set_peer(Peer { path, ..peer("b", "192.0.2.2") });
    let refused = Refused {
        peer: "c".into(),
        subnet: None,
        reason: "the two nodes have no address family in common".into(),
    };
    assert_eq!(hub.set_refused(vec![refused.clone()]), slice::from_ref(&refused), "to be logged");
    assert_eq!(hub.set_refused(vec![refused]), [], "once");
    let status = hub.status();
    let printed = serde_json::to_value(&status).unwrap();
    assert_eq!(
        printed["session"],
        json!({
            "mark": "podwire 10.244.0.0/16", "networks": ["10.244.0.0/16"], "backend": "vxlan",
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
            "problem": "it is refused: the two nodes have no address family in common",
        }])
    );
    assert_eq!(printed["repairs"]["counts"]["nexthop"], 0);
    assert_eq!(
        printed["warnings"],
        json!(["c is not served: the two nodes have no address family in common"])
    );
    let read: Status = serde_json::from_value(printed.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), printed);
}

/// Anybody who writes to the store could otherwise make the pages, and the probes that read them, as large as
/// they like.
#[test]
fn pages_stay_small_however_much_is_refused() {
    let hub = ready_hub();
    let refused = |name: String| {
        let reason = format!("{name} is no subnet: {}", "x".repeat(100_000));
        Refused { peer: name, subnet: None, reason }
    };
    let names = (0..3000).map(|number| format!("{number:04} {}", "k".repeat(1000)));
    let fresh = hub.set_refused(names.map(refused).collect());
    assert_eq!(fresh.len(), 3000);
    let warnings = hub.readiness().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("3000 keys or subnets refused, the first: 0000 kkk"));
    assert!(warnings[0].len() < 2000, "{}", warnings[0].len());
    let status = hub.status();
    assert_eq!((status.refused_total, status.peer_counts.refused), (3000, 3000));
    let page = serde_json::to_string(&status).unwrap();
    assert!(page.len() < 64_000, "{}", page.len());
    let peers = serde_json::to_string(&hub.peers()).unwrap();
    assert!(peers.len() < 64_000, "{}", peers.len());
    hub.set_problem(ConditionKind::Config, "é".repeat(100_000));
    let text = &hub.status().problems[&ConditionKind::Config].text;
    assert!(text.len() < 600 && text.ends_with("… (200000 bytes)"), "{text}");
}

#[test]
fn a_few_refusals_are_told_one_by_one() {
    let hub = ready_hub();
    let refused = |name: u32| Refused { peer: name.to_string(), subnet: None, reason: "no".into() };
    hub.set_refused((0..8).map(refused).collect());
    let warnings = hub.readiness().warnings;
    assert_eq!(warnings.len(), 8);
    assert_eq!(warnings[7], "7 is not served: no");
}
