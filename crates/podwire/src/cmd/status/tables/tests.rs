// SPDX-License-Identifier: Apache-2.0
//! Printed tables of a status.

use agent::status::{
    ConditionKind, LeaseStatus, PathStatus, RejectedPeerStatus, RepairKind, RouteMode, StatusHub,
    UnderlayStatus,
};

use super::*;

fn peer(number: u8) -> PeerStatus {
    PeerStatus {
        name: format!("10.244.{number}.0-24"),
        subnets: vec![format!("10.244.{number}.0/24").parse().unwrap()],
        public: vec![[192, 0, 2, number].into()],
        backend: "vxlan".into(),
        route: RouteMode::Tunnel,
        path: PathStatus::default(),
    }
}

fn hub() -> StatusHub {
    let hub = StatusHub::new("blue", "etcd");
    hub.set_network(Some(NetworkStatus {
        owner: "m".into(),
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        backend: "vxlan".into(),
        pod_mtu: 1450,
        lease: LeaseStatus {
            subnets: vec!["10.244.1.0/24".parse().unwrap()],
            public: vec![[192, 0, 2, 1].into()],
        },
        underlay: UnderlayStatus {
            name: "eth0".into(),
            addresses: vec![[10, 0, 0, 1].into()],
            mtu: 1500,
        },
    }));
    hub
}

#[test]
fn ready_node_is_printed_as_tables() {
    let hub = hub();
    hub.set_lease_left(Some(Duration::from_secs(86_400)));
    hub.clear_problem(ConditionKind::Store);
    hub.set_watch(7, 7);
    hub.record_comparison(Duration::from_millis(3), 0);
    let path = PathStatus {
        path_mtu: Some(1450),
        last_contact: Some(Time::now()),
        problem: Some("too small".into()),
    };
    hub.set_peers(vec![peer(2), PeerStatus { path, route: RouteMode::Direct, ..peer(3) }]);
    hub.record_repair(RepairKind::Route, "set route 10.244.2.0/24");
    let rejected = RejectedPeerStatus { peer: "x".into(), subnet: None, reason: "no".into() };
    hub.set_rejected(vec![rejected]);
    let mut shown = hub.status();
    let then = shown.agent.started;
    shown.store.since = then;
    shown.kernel.comparison.as_mut().unwrap().at = then;
    shown.kernel.repairs.last[0].at = then;
    shown.peers.list[1].path.last_contact = Some(then);
    shown.membership.lease_until = Some(Time(then.0 + Duration::from_secs(86_400)));
    let expected = "\
blue: ready
  warning: x is not served: no

NETWORK        BACKEND  SUBNETS        POD MTU  LEASE ENDS
10.244.0.0/16  vxlan    10.244.1.0/24  1450     in 23 h

INTERFACE  ADDRESSES  MTU   REACHED AT
eth0       10.0.0.1   1500  192.0.2.1

STORE  REACHABLE       BEHIND  COMPARED                 REPAIRS  RUNS FOR
etcd   yes, for 100 s  0       100 s ago, took 3.00 ms  1        100 s

PEER           SUBNETS        ADDRESS    BACKEND  WAY      PATH MTU  LAST CONTACT  PROBLEM
10.244.3.0-24  10.244.3.0/24  192.0.2.3  vxlan    direct   1450      100 s ago     too small
x              -              -          -        refused  -         -             refused: no
10.244.2.0-24  10.244.2.0/24  192.0.2.2  vxlan    tunnel   -         -             -

REPAIRED  WHEN       WHAT
route     100 s ago  set route 10.244.2.0/24
";
    assert_eq!(status(&shown, then.0 + Duration::from_secs(100)), expected);
}

#[test]
fn waiting_node_prints_its_problem() {
    let hub = StatusHub::new("blue", "embedded");
    hub.set_problem(ConditionKind::Underlay, "no interface has an address");
    let text = status(&hub.status(), SystemTime::now());
    let expected = "\
blue: not ready
  because this node is not part of the network yet
  because underlay: no interface has an address

STORE";
    assert!(text.starts_with(expected), "{text}");
    assert!(!text.contains("PEER"), "{text}");
}

#[test]
fn many_peers_are_cut_off() {
    let hub = hub();
    hub.set_peers((2..=30).map(peer).collect());
    let text = status(&hub.status(), SystemTime::now());
    assert!(text.ends_with("and 19 more: podwire peers\n"), "{text}");
}
