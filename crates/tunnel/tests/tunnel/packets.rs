// SPDX-License-Identifier: Apache-2.0
//! Single packets: sizes, TTL, ICMP errors, changes of peers.

use testkit::in_netns;

use crate::lab::{MTU, nodes, nodes_with_tunnels, ping, ping_sizes};

#[test]
fn packets_of_all_sizes_arrive() {
    in_netns(|| {
        let ([a, b], _tunnels) = nodes_with_tunnels();
        let fits = MTU - 28;
        let sizes = [0, 1, 8, 56, 57, 1000, fits - 1, fits, fits + 1, 3000, 9001, 65_507];
        ping_sizes(&a.pod, &b.pod_v4(), &sizes);
        ping_sizes(&b.pod, &a.pod_v4(), &sizes);
        let fits = MTU - 48;
        let sizes = [0, 1, 57, 1000, fits, fits + 1, 9001, 60_000];
        ping_sizes(&a.pod, &b.pod_v6(), &sizes);
        ping_sizes(&b.pod, &a.pod_v6(), &sizes);
    });
}

#[test]
fn too_large_packet_with_df_gets_the_mtu() {
    in_netns(|| {
        let ([a, b], _tunnels) = nodes_with_tunnels();
        a.set_pod_mtu(1500);
        let fits = MTU - 28;
        ping(&a.pod, &format!("-M do -s {fits} {}", b.pod_v4())).unwrap();
        let error = ping(&a.pod, &format!("-M do -s {} {}", fits + 1, b.pod_v4())).unwrap_err();
        assert!(error.contains("mtu = 1472") || error.contains("mtu=1472"), "{error}");
        let fits = MTU - 48;
        ping(&a.pod, &format!("-M do -s {fits} {}", b.pod_v6())).unwrap();
        let error = ping(&a.pod, &format!("-M do -s {} {}", fits + 1, b.pod_v6())).unwrap_err();
        assert!(error.contains("mtu=1472") || error.contains("mtu = 1472"), "{error}");
        // Without DF the node fragments the packet.
        ping(&a.pod, &format!("-M dont -s 1472 {}", b.pod_v4())).unwrap();
    });
}

/// The first node, the tunnel and the second node decrement the TTL once each.
#[test]
fn tunnel_decrements_ttl_and_reports_expiry() {
    in_netns(|| {
        let ([a, b], tunnels) = nodes_with_tunnels();
        for to in [b.pod_v4(), b.pod_v6()] {
            let error = ping(&a.pod, &format!("-t 2 {to}")).unwrap_err();
            let texts = ["Time to live exceeded", "Hop limit"];
            assert!(texts.iter().any(|text| error.contains(text)), "{error}");
            ping(&a.pod, &format!("-t 3 {to}")).unwrap_err();
            let answer = ping(&a.pod, &format!("-t 4 {to}")).unwrap();
            assert!(answer.contains("ttl=61"), "{answer}");
        }
        assert_eq!(tunnels[0].counts().dropped.expired, 2);
        assert_eq!(tunnels[1].counts().dropped.expired, 0);
    });
}

#[test]
fn packet_to_unknown_peer_gets_unreachable() {
    in_netns(|| {
        let ([a, _b], tunnels) = nodes_with_tunnels();
        let error = ping(&a.pod, "10.244.9.2").unwrap_err();
        assert!(error.contains("Destination Net Unreachable"), "{error}");
        let error = ping(&a.pod, "fd44:9::2").unwrap_err();
        assert!(error.contains("Destination unreachable: No route"), "{error}");
        assert_eq!(tunnels[0].counts().dropped.no_route, 2);
    });
}

#[test]
fn replaced_peers_take_effect_at_once() {
    in_netns(|| {
        let ([a, b], [tunnel, _other]) = nodes_with_tunnels();
        ping(&a.pod, &b.pod_v4()).unwrap();
        assert_eq!(tunnel.set_peers(&[]), []);
        ping(&a.pod, &b.pod_v4()).unwrap_err();
        let mut peers = b.peers().to_vec();
        peers[1].via = "[2001:db8::2]:8285".parse().unwrap();
        // An IPv4 socket cannot reach the second peer; the first one works.
        assert_eq!(tunnel.set_peers(&peers), [peers[1]]);
        ping(&a.pod, &b.pod_v4()).unwrap();
        ping(&a.pod, &b.pod_v6()).unwrap_err();
    });
}

#[test]
fn changed_peer_leaves_other_peers_unchanged() {
    in_netns(|| {
        let ([a, b], [tunnel, _other]) = nodes_with_tunnels();
        let [v4, v6] = b.peers();
        assert_eq!(tunnel.change_peers(&[v4.prefix], &[]), []);
        ping(&a.pod, &b.pod_v4()).unwrap_err();
        ping(&a.pod, &b.pod_v6()).unwrap();
        let unreachable = tunnel::Peer { via: "[2001:db8::2]:8285".parse().unwrap(), ..v6 };
        assert_eq!(tunnel.change_peers(&[], &[v4, unreachable]), [unreachable]);
        ping(&a.pod, &b.pod_v4()).unwrap();
        ping(&a.pod, &b.pod_v6()).unwrap_err();
    });
}

#[test]
fn tunnel_over_ipv6_carries_both_families() {
    in_netns(|| {
        let [a, b] = nodes();
        let listen = ["[2001:db8::1]:8285", "[2001:db8::2]:8285"].map(|at| at.parse().unwrap());
        let tunnels: Vec<_> = [&a, &b]
            .into_iter()
            .zip(listen)
            .map(|(node, listen)| {
                let config = tunnel::Config { listen, ..node.config() };
                let tunnel = node.netns().enter(|| tunnel::Tunnel::start(&config));
                let tunnel = tunnel.unwrap().unwrap();
                node.set_up_device();
                node.ip("link set flannel0 mtu 1452");
                node.set_pod_mtu(1452);
                tunnel
            })
            .collect();
        for (at, other) in [(0, &b), (1, &a)] {
            let peers = other.peers().map(|peer| tunnel::Peer { via: listen[1 - at], ..peer });
            assert_eq!(tunnels[at].set_peers(&peers), []);
        }
        ping_sizes(&a.pod, &b.pod_v4(), &[0, 1424, 9000]);
        ping_sizes(&a.pod, &b.pod_v6(), &[0, 1404, 9000]);
    });
}
