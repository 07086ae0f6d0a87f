// SPDX-License-Identifier: Apache-2.0
//! Blackhole routes drop traffic to unused addresses, never to those of a bridge, and are removed when not needed.

use agent::blackhole::settle;
use kernel::Netlink;
use testkit::{Ns, in_netns};

use crate::rules::nets;

fn ip(words: &str) -> String {
    Ns::here().ip(&words.split_whitespace().collect::<Vec<_>>())
}

/// Blackhole routes with metric and protocol, as `ip` prints them.
fn shown() -> Vec<String> {
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

#[test]
fn blackholes_follow_the_subnet() {
    in_netns(|| {
        let nl = Netlink::open().unwrap();
        let networks = nets(&["10.5.0.0/16", "fd05::/48"]);
        let settle = |subnets: &[&str], takes_over| {
            settle(&nl, &networks, &nets(subnets), takes_over).unwrap()
        };
        ip("route add blackhole 10.5.1.0/24");
        ip("-6 route add blackhole fd05:0:0:1::/64");
        ip("route add blackhole 192.0.2.0/24");
        let told = settle(&["10.5.1.0/24", "fd05:0:0:1::/64"], true);
        assert_eq!(told.len(), 4, "{told:?}");
        assert_eq!(
            shown(),
            [
                "10.5.1.0/24 4294967295 112",
                "192.0.2.0/24 null boot",
                "fd05:0:0:1::/64 4294967295 112",
            ]
        );
        assert_eq!(settle(&["10.5.1.0/24", "fd05:0:0:1::/64"], true), [""; 0]);
        // The bridge's route wins in any order.
        ip("link add cni0 type bridge");
        ip("addr add 10.5.1.1/24 dev cni0");
        ip("-6 addr add fd05:0:0:1::1/64 dev cni0 nodad");
        ip("link set cni0 up");
        assert!(ip("route get 10.5.1.7").contains("dev cni0"));
        assert!(ip("-6 route get fd05:0:0:1::7").contains("dev cni0"));
        ip("link del cni0");
        assert!(Ns::here().try_exec("ip", &["route", "get", "10.5.1.7"]).is_err());
        // The node gets a different subnet, then none.
        let told = settle(&["10.5.2.0/24"], false);
        assert_eq!(
            told,
            [
                "add blackhole 10.5.2.0/24",
                "remove blackhole 10.5.1.0/24",
                "remove blackhole fd05:0:0:1::/64",
            ]
        );
        settle(&[], false);
        assert_eq!(shown(), ["192.0.2.0/24 null boot"]);
    });
}
