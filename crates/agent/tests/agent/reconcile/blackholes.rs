// SPDX-License-Identifier: Apache-2.0
//! Blackhole routes drop traffic to unused addresses of the node's subnet, never to those of a bridge, and are removed
//! when they are not desired.

use overlay::plan::Network;
use testkit::{Ns, in_netns};

use super::node::{ip, is_unchanged, make_eth0, network, open};

const HOST_GW: &str = r#"{"Type": "host-gw"}"#;

/// Blackhole routes with metric and protocol, as `ip` prints them.
fn blackholes() -> Vec<String> {
    let mut found = Vec::new();
    for family in ["-4", "-6"] {
        let routes = Ns::here().ip_json(&[family, "route", "show", "type", "blackhole"]);
        for route in routes.as_array().unwrap() {
            let text = |key: &str| route[key].to_string().replace('"', "");
            found.push(format!("{} {} {}", text("dst"), text("metric"), text("protocol")));
        }
    }
    found
}

/// The network of node 1, which has one peer.
fn with_blackholes(enabled: bool) -> Network {
    let mut network = network(HOST_GW, 2..3);
    network.set_own_blackholes(enabled);
    network
}

#[test]
fn blackhole_gives_way_to_bridge_and_follows_setting() {
    in_netns(|| {
        make_eth0();
        let mut reconciler = open();
        let outcome = reconciler.set_network(with_blackholes(true));
        assert_eq!((outcome.failures, outcome.conflicts), (vec![], vec![]));
        assert_eq!(blackholes(), ["10.0.1.0/24 4294967295 112"]);
        assert!(is_unchanged(&reconciler.compare()));
        assert!(Ns::here().try_exec("ip", &["route", "get", "10.0.1.7"]).is_err());
        // The bridge's route wins in any order.
        ip("link add cni0 type bridge");
        ip("addr add 10.0.1.1/24 dev cni0");
        ip("link set cni0 up");
        assert!(ip("route get 10.0.1.7").contains("dev cni0"));
        ip("route del blackhole 10.0.1.0/24");
        assert!(!is_unchanged(&reconciler.compare()));
        assert_eq!(blackholes(), ["10.0.1.0/24 4294967295 112"]);
        assert!(ip("route get 10.0.1.7").contains("dev cni0"));
        assert!(is_unchanged(&reconciler.compare()));
        reconciler.set_network(with_blackholes(false));
        assert_eq!(blackholes(), [""; 0]);
    });
}

#[test]
fn stale_blackholes_are_removed_and_others_stay() {
    in_netns(|| {
        make_eth0();
        // Of an earlier subnet, of flannel, of another network, and of other programs.
        ip("route add blackhole 10.0.9.0/24 metric 4294967295 proto 112");
        ip("route add blackhole 10.0.1.0/24");
        ip("route add blackhole 192.0.2.0/24");
        ip("-6 route add blackhole fd05::/64 metric 4294967295 proto 112");
        ip("route add blackhole 10.0.8.0/24 proto static");
        let mut reconciler = open();
        let shown = || {
            let changes = open().dry_run(&mut with_blackholes(true).into()).unwrap().changes;
            let shown = changes.iter().map(ToString::to_string);
            shown.filter(|change| change.contains("blackhole")).collect::<Vec<_>>()
        };
        let expected = [
            "set route blackhole 10.0.1.0/24",
            "remove route blackhole 10.0.1.0/24",
            "remove route blackhole 10.0.9.0/24",
        ];
        assert_eq!(shown(), expected);
        let outcome = reconciler.set_network(with_blackholes(true));
        assert_eq!((outcome.failures, outcome.conflicts), (vec![], vec![]));
        assert_eq!(
            blackholes(),
            [
                "10.0.1.0/24 4294967295 112",
                "10.0.8.0/24 null static",
                "192.0.2.0/24 null boot",
                "fd05::/64 4294967295 112",
            ]
        );
        assert_eq!(shown(), [""; 0]);
        reconciler.remove_all();
        assert_eq!(blackholes().len(), 3);
    });
}
