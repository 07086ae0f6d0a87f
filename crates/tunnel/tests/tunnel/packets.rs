// SPDX-License-Identifier: Apache-2.0
//! Single packets: sizes, hops, senders that are told.

use testkit::in_netns;

use crate::lab::{MTU, nodes, ping, ping_sizes, two};

#[test]
fn packets_of_all_sizes_pass() {
    in_netns(|| {
        let ([a, b], _tunnels) = two();
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
fn what_may_not_be_cut_and_does_not_fit_is_told_its_size() {
    in_netns(|| {
        let ([a, b], _tunnels) = two();
        a.set_pod_mtu(1500);
        let fits = MTU - 28;
        ping(&a.pod, &format!("-M do -s {fits} {}", b.pod_v4())).unwrap();
        let told = ping(&a.pod, &format!("-M do -s {} {}", fits + 1, b.pod_v4())).unwrap_err();
        assert!(told.contains("mtu = 1472") || told.contains("mtu=1472"), "{told}");
        let fits = MTU - 48;
        ping(&a.pod, &format!("-M do -s {fits} {}", b.pod_v6())).unwrap();
        let told = ping(&a.pod, &format!("-M do -s {} {}", fits + 1, b.pod_v6())).unwrap_err();
        assert!(told.contains("mtu=1472") || told.contains("mtu = 1472"), "{told}");
        // What may be cut is, by the node.
        ping(&a.pod, &format!("-M dont -s 1472 {}", b.pod_v4())).unwrap();
    });
}

/// The node takes one, the tunnel one, the other node one.
#[test]
fn tunnel_takes_one_hop_and_tells_who_has_none_left() {
    in_netns(|| {
        let ([a, b], tunnels) = two();
        for to in [b.pod_v4(), b.pod_v6()] {
            let told = ping(&a.pod, &format!("-t 2 {to}")).unwrap_err();
            let words = ["Time to live exceeded", "Hop limit"];
            assert!(words.iter().any(|word| told.contains(word)), "{told}");
            ping(&a.pod, &format!("-t 3 {to}")).unwrap_err();
            let answer = ping(&a.pod, &format!("-t 4 {to}")).unwrap();
            assert!(answer.contains("ttl=61"), "{answer}");
        }
        assert_eq!(tunnels[0].counts().dropped.expired, 2);
        assert_eq!(tunnels[1].counts().dropped.expired, 0);
    });
}

#[test]
fn sender_is_told_where_no_node_has_the_address() {
    in_netns(|| {
        let ([a, _b], tunnels) = two();
        let told = ping(&a.pod, "10.244.9.2").unwrap_err();
        assert!(told.contains("Destination Net Unreachable"), "{told}");
        let told = ping(&a.pod, "fd44:9::2").unwrap_err();
        assert!(told.contains("Destination unreachable: No route"), "{told}");
        assert_eq!(tunnels[0].counts().dropped.no_route, 2);
    });
}

#[test]
fn peers_are_replaced_while_packets_pass() {
    in_netns(|| {
        let ([a, b], [tunnel, _other]) = two();
        ping(&a.pod, &b.pod_v4()).unwrap();
        assert_eq!(tunnel.set_peers(&[]), []);
        ping(&a.pod, &b.pod_v4()).unwrap_err();
        let mut peers = b.peers().to_vec();
        peers[1].via = "[2001:db8::2]:8285".parse().unwrap();
        // A socket of IPv4 does not reach it; the other peer is not held up.
        assert_eq!(tunnel.set_peers(&peers), [peers[1]]);
        ping(&a.pod, &b.pod_v4()).unwrap();
        ping(&a.pod, &b.pod_v6()).unwrap_err();
    });
}

#[test]
fn one_peer_changes_and_the_others_stay() {
    in_netns(|| {
        let ([a, b], [tunnel, _other]) = two();
        let [v4, v6] = b.peers();
        assert_eq!(tunnel.change_peers(&[v4.prefix], &[]), []);
        ping(&a.pod, &b.pod_v4()).unwrap_err();
        ping(&a.pod, &b.pod_v6()).unwrap();
        let unreached = tunnel::Peer { via: "[2001:db8::2]:8285".parse().unwrap(), ..v6 };
        assert_eq!(tunnel.change_peers(&[], &[v4, unreached]), [unreached]);
        ping(&a.pod, &b.pod_v4()).unwrap();
        ping(&a.pod, &b.pod_v6()).unwrap_err();
    });
}

#[test]
fn wire_may_be_of_ipv6() {
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
