// SPDX-License-Identifier: Apache-2.0
//! Path MTU and reachability.

use std::time::Duration;

use agent::path_check::{Checksum, Command, PathCheck, ProbeIntervals, Target};
use agent::supervisor::Heartbeat;
use kernel::Netns;
use testkit::{in_netns, require, wait_some};
use tokio::sync::mpsc::unbounded_channel;

use super::lab::{Checker, FULL, Lab, OFTEN, ONCE, sh, through_tunnel};

/// The router drops large packets silently.
const DROP_LARGE: &str = "nft add table inet narrow
    nft add chain inet narrow pass '{ type filter hook forward priority 0; }'
    nft add rule inet narrow pass meta length '>' 1400 drop";

/// The router counts forwarded packets.
const COUNT: &str = "nft add table inet count
    nft add chain inet count pass '{ type filter hook forward priority 0; }'
    nft add rule inet count pass counter";

fn packets(lab: &Lab) -> u32 {
    let chain = sh(&lab.router, "nft list chain inet count pass");
    let (_, behind) = chain.split_once("packets ").unwrap();
    behind.split(' ').next().unwrap().parse().unwrap()
}

/// Returns the number of packets for one check of each family on a good path.
fn packets_for_good_paths() -> u32 {
    let lab = Lab::with_tunnel();
    sh(&lab.router, COUNT);
    let mut checker = Checker::start(&lab.nodes[0], ProbeIntervals::default());
    for address in ["10.244.2.0", "fd44:2::"] {
        checker.send(Command::Watch(through_tunnel(address)));
        let result = checker.next();
        assert!(result.reachable && result.round_trip.is_some(), "{result:?}");
        assert_eq!(result.path_mtu, Some(FULL));
        assert_eq!(result.route_mtu(), None);
        assert_eq!(result.checksum, Checksum::Right);
    }
    // The same target again causes no check.
    checker.send(Command::Watch(through_tunnel("10.244.2.0")));
    assert!(checker.is_quiet());
    packets(&lab)
}

/// The kernel limits the rate of ICMP errors, so some datagrams may be sent twice. The cheapest of five runs counts.
#[test]
fn good_path_takes_three_packets_of_each_node() {
    in_netns(|| {
        let costs: Vec<u32> = (0..5).map(|_| packets_for_good_paths()).collect();
        assert_eq!(costs.iter().min(), Some(&12), "{costs:?}");
    });
}

/// An agent that is busy for longer than the timeout must not take waiting answers for lost.
#[test]
fn answer_read_after_the_deadline_counts() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        sh(&lab.router, COUNT);
        let (commands, command_receiver) = unbounded_channel();
        let (result_sender, mut results) = unbounded_channel();
        let mut check = PathCheck::new(ONCE, command_receiver, result_sender);
        commands.send(Command::Watch(through_tunnel("10.244.2.0"))).unwrap();
        let busy = async {
            while results.is_empty() {
                wait_some(Duration::from_millis(1100), || None::<()>);
                tokio::task::yield_now().await;
            }
            drop(commands);
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let heartbeat = Heartbeat::unsupervised();
        let run = || runtime.block_on(async { tokio::join!(check.run(&heartbeat), busy) });
        Netns::open(lab.nodes[0].path()).unwrap().enter(run).unwrap().0.unwrap();
        assert_eq!(results.try_recv().unwrap().path_mtu, Some(FULL));
        // Three requests and their answers. A request that was taken for lost would add two.
        assert!(packets(&lab) < 8, "{}", packets(&lab));
    });
}

#[test]
fn mtu_of_a_path_that_drops_silently_is_found() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::with_tunnel();
        sh(&lab.router, DROP_LARGE);
        let mut checker = Checker::start(&lab.nodes[0], OFTEN);
        for address in ["10.244.2.0", "fd44:2::"] {
            checker.send(Command::Watch(through_tunnel(address)));
            // 1400 minus the outer IPv4, UDP and VXLAN headers and the inner Ethernet header.
            let result =
                checker.wait("a result for the address", |result| result.peer.ends_with(address));
            assert_eq!(result.route_mtu(), Some(1350), "{result:?}");
            assert_eq!(result.checksum, Checksum::Right, "{result:?}");
        }
        // The kernel's cached path MTU and the route's MTU do not limit the probes.
        sh(
            &lab.nodes[0],
            "ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink mtu 1350",
        );
        sh(&lab.router, "nft flush ruleset");
        let is_v4 = |peer: &str| peer.ends_with("10.244.2.0");
        checker.wait("path_mtu == FULL", |result| {
            is_v4(&result.peer) && result.path_mtu == Some(FULL)
        });
    });
}

#[test]
fn uncommon_path_mtu_is_found_to_the_byte() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::with_tunnel();
        sh(&lab.router, &DROP_LARGE.replace("1400", "1387"));
        let mut checker = Checker::start(&lab.nodes[0], ProbeIntervals::default());
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        assert_eq!(checker.next().route_mtu(), Some(1337));
    });
}

/// Without a tunnel the router reports its MTU by ICMP.
#[test]
fn mtu_reported_by_a_router_is_found() {
    in_netns(|| {
        let lab = Lab::new();
        for (place, device) in [(&lab.router, "to-2"), (&lab.nodes[1], "eth0")] {
            place.ip(&["link", "set", device, "mtu", "1391"]);
        }
        let mut checker = Checker::start(&lab.nodes[0], ProbeIntervals::default());
        for address in ["192.0.2.2", "2001:db8:2::2"] {
            checker.send(Command::Watch(Target {
                overhead: 0,
                full: 1500,
                device: None,
                ..through_tunnel(address)
            }));
            let result = checker.next();
            assert_eq!(result.route_mtu(), Some(1391), "{result:?}");
        }
    });
}

/// VXLAN with DF: the kernel learns the tunnel's MTU from the router.
#[test]
fn mtu_below_a_tunnel_with_df_is_found() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        for (place, device) in [(&lab.router, "to-2"), (&lab.nodes[1], "eth0")] {
            place.ip(&["link", "set", device, "mtu", "1420"]);
        }
        for node in &lab.nodes {
            node.ip(&["link", "set", "flannel.1", "type", "vxlan", "df", "set"]);
        }
        let mut checker = Checker::start(&lab.nodes[0], ProbeIntervals::default());
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        assert_eq!(checker.next().route_mtu(), Some(1370));
    });
}

#[test]
fn unreachable_peer_and_its_return_are_reported() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        let mut checker = Checker::start(&lab.nodes[0], OFTEN);
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        checker.wait("reachable", |result| result.reachable);
        lab.nodes[1].ip(&["link", "set", "eth0", "down"]);
        let dead = checker.wait("unreachable", |result| !result.reachable);
        assert_eq!((dead.path_mtu, dead.route_mtu()), (None, None));
        assert_eq!(dead.checksum, Checksum::Unknown);
        lab.nodes[1].ip(&["link", "set", "eth0", "up"]);
        sh(&lab.nodes[1], "ip route replace default via 192.0.2.1");
        let alive = checker.wait("reachable", |result| result.reachable);
        assert_eq!(alive.path_mtu, Some(FULL));
    });
}

/// Returns a first node that found the second unreachable. The path works again.
fn unreachable_second_node(address: &str) -> (Lab, Checker) {
    let lab = Lab::with_tunnel();
    sh(
        &lab.router,
        "nft add table inet dead
        nft add chain inet dead pass '{ type filter hook forward priority 0; policy drop; }'",
    );
    let mut checker = Checker::start(&lab.nodes[0], ONCE);
    checker.send(Command::Watch(through_tunnel(address)));
    assert!(!checker.next().reachable);
    sh(&lab.router, "nft flush ruleset");
    (lab, checker)
}

#[test]
fn unreachable_peer_is_checked_when_it_is_heard() {
    in_netns(|| {
        require!(Program("nft"));
        let (_lab, mut checker) = unreachable_second_node("10.244.2.0");
        checker.send(Command::Heard("another".to_owned()));
        checker.send(Command::Heard("node-2 at 10.244.2.0".to_owned()));
        let alive = checker.next();
        assert_eq!((alive.reachable, alive.path_mtu), (true, Some(FULL)));
        // A reachable peer is not checked again.
        checker.send(Command::Heard("node-2 at 10.244.2.0".to_owned()));
        checker.send(Command::Watch(through_tunnel("fd44:2::")));
        assert!(checker.next().address.is_ipv6());
    });
}

/// If one of two nodes probes the other, the other need not wait for its own schedule.
#[test]
fn unreachable_peer_is_checked_when_it_says_hello() {
    in_netns(|| {
        require!(Program("nft"));
        for (address, own) in [("10.244.2.0", "10.244.1.0"), ("fd44:2::", "fd44:1::")] {
            let (lab, mut checker) = unreachable_second_node(address);
            // A plain ping is not a hello.
            lab.nodes[1].exec("ping", &["-c", "1", "-W", "5", own]);
            assert!(checker.is_quiet());
            let mut other = Checker::start(&lab.nodes[1], ONCE);
            other.send(Command::Watch(through_tunnel(own)));
            assert!(other.next().reachable);
            let alive = checker.next();
            assert_eq!((alive.reachable, alive.path_mtu), (true, Some(FULL)), "{address}");
        }
    });
}

#[test]
fn removed_peer_is_not_probed() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        let mut checker = Checker::start(&lab.nodes[0], OFTEN);
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        checker.send(Command::Watch(through_tunnel("fd44:2::")));
        checker.wait("an IPv4 result", |result| result.address.is_ipv4());
        checker.send(Command::Forget("node-2 at 10.244.2.0".to_owned()));
        // Pending results arrive before the second one.
        for _ in 0..2 {
            checker.wait("an IPv6 result", |result| result.address.is_ipv6());
        }
        for _ in 0..3 {
            assert!(checker.next().address.is_ipv6());
        }
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        checker.wait("an IPv4 result", |result| result.address.is_ipv4());
        checker.send(Command::Retain(vec!["node-2 at fd44:2::".to_owned()]));
        for _ in 0..2 {
            checker.wait("an IPv6 result", |result| result.address.is_ipv6());
        }
        for _ in 0..3 {
            assert!(checker.next().address.is_ipv6());
        }
    });
}

/// The supervisor calls `run` again after an error.
#[test]
fn restarted_check_keeps_its_targets() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        let (commands, command_receiver) = unbounded_channel();
        let (result_sender, mut results) = unbounded_channel();
        let mut check = PathCheck::new(ONCE, command_receiver, result_sender);
        commands.send(Command::Watch(through_tunnel("10.244.2.0"))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let heartbeat = Heartbeat::unsupervised();
        let run = || {
            runtime.block_on(async {
                for _ in 0..2 {
                    let result = tokio::select! {
                        ended = check.run(&heartbeat) => panic!("{ended:?}"),
                        result = results.recv() => result.unwrap(),
                    };
                    assert_eq!(result.path_mtu, Some(FULL));
                }
            });
        };
        Netns::open(lab.nodes[0].path()).unwrap().enter(run).unwrap();
    });
}
