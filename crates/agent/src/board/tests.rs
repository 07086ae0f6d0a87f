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

fn ready_board() -> Board {
    let board = Board::new("a", "etcd");
    board.set_session(Some(session()));
    board
}

/// As it would be judged after some time in which nothing happens.
fn later(board: &Board, after: Duration) -> (Readiness, Health) {
    let (state, now) = (board.lock(), Instant::now() + after);
    (verdict::readiness(&state, now), verdict::health(&state, now))
}

#[test]
fn a_node_is_ready_once_it_is_part_of_the_network() {
    let board = Board::new("a", "etcd");
    assert_eq!(board.status().store.reachable, None, "nobody knows yet");
    assert_eq!(board.readiness().reasons[1], "store: etcd has not answered yet");
    board.problem(Part::Config, "no net-conf.json");
    let readiness = board.readiness();
    assert!(!readiness.is_ready);
    assert_eq!(
        readiness.reasons,
        ["this node is not part of the network yet", "config: no net-conf.json"]
    );
    assert!(board.health().is_healthy, "it waits, which is no fault of the agent");
    board.set_session(Some(session()));
    let readiness = board.readiness();
    assert!(readiness.is_ready);
    assert_eq!(readiness.warnings, ["config: no net-conf.json"]);
}

#[test]
fn each_problem_makes_the_node_unfit_or_is_a_warning() {
    for part in Part::ALL {
        let board = ready_board();
        board.problem(part, "broken");
        let readiness = board.readiness();
        let unfit = [Part::Lease, Part::Underlay, Part::Kernel, Part::Rules, Part::Bridge];
        let is_warning = !unfit.contains(&part);
        assert_eq!(readiness.is_ready, is_warning, "{part:?}");
        assert_eq!(readiness.warnings.is_empty(), !is_warning, "{part:?}");
        let keeps_cni_conf = is_warning || part == Part::Bridge;
        assert_eq!(readiness.keeps_cni_conf, keeps_cni_conf, "{part:?}");
        board.solved(part);
        let ready = Readiness { is_ready: true, keeps_cni_conf: true, ..Readiness::default() };
        assert_eq!(board.readiness(), ready);
    }
}

#[test]
fn without_the_store_a_node_is_ready_until_its_lease_ends() {
    let board = ready_board();
    board.set_lease_left(Some(Duration::from_secs(100)));
    board.problem(Part::Store, "connection refused");
    let (readiness, _) = later(&board, Duration::from_secs(10));
    assert!(readiness.is_ready, "{readiness:?}");
    let left = readiness.holds_for.unwrap();
    assert!(left <= Duration::from_secs(90) && left > Duration::from_secs(80), "{left:?}");
    let (readiness, health) = later(&board, Duration::from_secs(101));
    assert!(!readiness.is_ready);
    assert_eq!(readiness.reasons, ["the lease has run out, and could not be renewed"]);
    assert_eq!(readiness.holds_for, None);
    board.set_lease_left(Some(Duration::from_secs(200)));
    assert!(later(&board, Duration::from_secs(101)).0.is_ready);
    assert!(health.reasons.iter().all(|reason| !reason.contains("store")), "{health:?}");
    let shown = board.status().store;
    assert_eq!(shown.reachable, Some(false));
    board.solved(Part::Store);
    assert_eq!(board.status().store.reachable, Some(true));
    assert!(board.status().store.since >= shown.since);
}

#[test]
fn an_agent_is_healthy_while_its_loop_lives_and_repairs_work() {
    let board = ready_board();
    board.problem(Part::Rules, "no permission");
    assert!(later(&board, Duration::from_secs(44)).1.is_healthy);
    let (_, health) = later(&board, Duration::from_secs(61));
    assert_eq!(
        health.reasons,
        [
            "no sign of life of the agent's loop for 61 s",
            "rules: not repaired for 61 s: no permission"
        ]
    );
    board.problem(Part::Rules, "still no permission");
    let (_, health) = later(&board, Duration::from_secs(61));
    assert!(health.reasons[1].contains("61 s: still"), "{health:?}");
    board.solved(Part::Rules);
    board.problem(Part::Store, "gone");
    assert!(later(&board, Duration::from_secs(40)).1.is_healthy);
}

#[test]
fn what_is_known_of_the_way_to_a_peer_is_kept_while_its_address_is() {
    let board = ready_board();
    let path = Path { path_mtu: Some(1400), problem: Some("small".into()), ..Path::default() };
    board.set_peers(vec![peer("b", "192.0.2.2"), peer("c", "192.0.2.3")]);
    board.set_path("b", path.clone());
    board.set_path("nobody", path.clone());
    board.set_peer(Peer { way: Way::Direct, ..peer("b", "192.0.2.2") });
    assert_eq!(board.peers()[0].path, path);
    board.set_peers(vec![peer("b", "192.0.2.2"), peer("a", "192.0.2.4")]);
    let names: Vec<String> = board.peers().into_iter().map(|peer| peer.name).collect();
    assert_eq!(names, ["a", "b"]);
    let counts = board.summary().peer_counts;
    assert_eq!(
        counts,
        PeerCounts { total: 2, tunnel: 2, with_problem: 1, ..PeerCounts::default() }
    );
    board.set_peer(peer("b", "192.0.2.9"));
    assert_eq!(board.peers()[1].path, Path::default());
    board.remove_peer("a");
    assert_eq!(board.peers().len(), 1);
}

#[test]
fn repairs_are_counted_and_the_last_ones_shown() {
    let board = ready_board();
    for at in 0..100 {
        board.repaired(Kind::Route, format!("set route {at}"));
    }
    board.repaired(Kind::Rules, "made the table again");
    let repairs = board.status().repairs;
    assert_eq!(repairs.counts[&Kind::Route], 100);
    assert_eq!(repairs.counts[&Kind::Device], 0, "each kind is there");
    assert_eq!(repairs.last.len(), LAST_REPAIRS);
    assert_eq!(repairs.last.last().unwrap().text, "made the table again");
    assert_eq!(repairs.last[0].text, "set route 69");
}

#[tokio::test]
async fn whoever_waits_is_told_of_readiness_and_not_of_peers() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    let board = Board::new("a", "etcd");
    let mut changes = board.changes();
    let mut is_told = || {
        let next = std::pin::pin!(changes.next());
        next.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    };
    assert!(!is_told());
    board.set_peer(peer("b", "192.0.2.2"));
    board.repaired(Kind::Route, "set route");
    board.solved(Part::Rules);
    assert!(!is_told());
    board.solved(Part::Store);
    assert!(is_told(), "it is known to answer now");
    board.solved(Part::Store);
    assert!(!is_told(), "that was known");
    board.clone().set_session(Some(session()));
    board.problem(Part::Kernel, "no");
    assert!(is_told(), "a change before the wait counts");
    assert!(!is_told(), "both were one");
    board.problem(Part::Kernel, "no");
    assert!(!is_told(), "that was known");
}

#[test]
fn status_reads_as_documented() {
    let board = ready_board();
    board.watched(7, 9);
    let path = Path {
        path_mtu: Some(1450),
        last_contact: Some(Time(std::time::UNIX_EPOCH + Duration::from_millis(1_500))),
        problem: None,
    };
    board.set_peer(Peer { path, ..peer("b", "192.0.2.2") });
    let refused = Refused {
        peer: "c".into(),
        subnet: None,
        reason: "the two nodes have no address family in common".into(),
    };
    assert_eq!(board.set_refused(vec![refused.clone()]), slice::from_ref(&refused), "to be logged");
    assert_eq!(board.set_refused(vec![refused]), [], "once");
    let status = board.status();
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
    let board = ready_board();
    let refused = |name: String| {
        let reason = format!("{name} is no subnet: {}", "x".repeat(100_000));
        Refused { peer: name, subnet: None, reason }
    };
    let names = (0..3000).map(|number| format!("{number:04} {}", "k".repeat(1000)));
    let fresh = board.set_refused(names.map(refused).collect());
    assert_eq!(fresh.len(), 3000);
    let warnings = board.readiness().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("3000 keys or subnets refused, the first: 0000 kkk"));
    assert!(warnings[0].len() < 2000, "{}", warnings[0].len());
    let status = board.status();
    assert_eq!((status.refused_total, status.peer_counts.refused), (3000, 3000));
    let page = serde_json::to_string(&status).unwrap();
    assert!(page.len() < 64_000, "{}", page.len());
    let peers = serde_json::to_string(&board.peers()).unwrap();
    assert!(peers.len() < 64_000, "{}", peers.len());
    board.problem(Part::Config, "é".repeat(100_000));
    let text = &board.status().problems[&Part::Config].text;
    assert!(text.len() < 600 && text.ends_with("… (200000 bytes)"), "{text}");
}

#[test]
fn a_few_refusals_are_told_one_by_one() {
    let board = ready_board();
    let refused = |name: u32| Refused { peer: name.to_string(), subnet: None, reason: "no".into() };
    board.set_refused((0..8).map(refused).collect());
    let warnings = board.readiness().warnings;
    assert_eq!(warnings.len(), 8);
    assert_eq!(warnings[7], "7 is not served: no");
}
