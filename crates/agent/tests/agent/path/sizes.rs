// SPDX-License-Identifier: Apache-2.0
//! What fits through, and who is there at all.

use std::time::Duration;

use agent::path::{Checksum, Command, Pace, Target, run};
use kernel::Netns;
use testkit::{in_netns, require, wait_some};
use tokio::sync::mpsc::unbounded_channel;

use super::lab::{Checker, FULL, Lab, OFTEN, ONCE, sh, through_tunnel};

/// Large packets vanish on the way, without a word.
const SWALLOW: &str = "nft add table inet narrow
    nft add chain inet narrow pass '{ type filter hook forward priority 0; }'
    nft add rule inet narrow pass meta length '>' 1400 drop";

/// Packets that pass the router are counted.
const COUNT: &str = "nft add table inet seen
    nft add chain inet seen pass '{ type filter hook forward priority 0; }'
    nft add rule inet seen pass counter";

fn packets(lab: &Lab) -> u32 {
    let seen = sh(&lab.router, "nft list chain inet seen pass");
    let (_, behind) = seen.split_once("packets ").unwrap();
    behind.split(' ').next().unwrap().parse().unwrap()
}

/// What it costs to find good paths of both families good.
fn packets_for_good_paths() -> u32 {
    let lab = Lab::with_tunnel();
    sh(&lab.router, COUNT);
    let mut checker = Checker::start(&lab.nodes[0], Pace::default());
    for address in ["10.244.2.0", "fd44:2::"] {
        checker.tell(Command::Watch(through_tunnel(address)));
        let verdict = checker.next();
        assert!(verdict.reachable && verdict.round_trip.is_some(), "{verdict:?}");
        assert_eq!(verdict.path_mtu, Some(FULL));
        assert_eq!(verdict.route_mtu(), None);
        assert_eq!(verdict.checksum, Checksum::Right);
    }
    // Told again, it is nothing new.
    checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
    assert!(checker.is_quiet());
    packets(&lab)
}

/// The kernel refuses only so many datagrams a second, for whomever: some may be sent twice.
#[test]
fn good_path_is_good_at_once_and_costs_three_packets_of_each_node() {
    in_netns(|| {
        let costs: Vec<u32> = (0..5).map(|_| packets_for_good_paths()).collect();
        assert_eq!(costs.iter().min(), Some(&12), "{costs:?}");
    });
}

/// Whoever is kept from looking for longer than answers are waited for finds them there.
#[test]
fn answers_that_are_looked_at_late_are_not_late() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        sh(&lab.router, COUNT);
        let (commands, told) = unbounded_channel();
        let (tell, mut verdicts) = unbounded_channel();
        commands.send(Command::Watch(through_tunnel("10.244.2.0"))).unwrap();
        let busy = async {
            while verdicts.is_empty() {
                wait_some(Duration::from_millis(1100), || None::<()>);
                tokio::task::yield_now().await;
            }
            drop(commands);
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let check = || runtime.block_on(async { tokio::join!(run(ONCE, told, tell), busy) });
        Netns::open(lab.nodes[0].path()).unwrap().enter(check).unwrap().0.unwrap();
        assert_eq!(verdicts.try_recv().unwrap().path_mtu, Some(FULL));
        // Of three requests and their answers; each that was taken for lost were two more.
        assert!(packets(&lab) < 8, "{}", packets(&lab));
    });
}

#[test]
fn narrow_path_that_swallows_is_measured_and_seen_to_widen() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::with_tunnel();
        sh(&lab.router, SWALLOW);
        let mut checker = Checker::start(&lab.nodes[0], OFTEN);
        for address in ["10.244.2.0", "fd44:2::"] {
            checker.tell(Command::Watch(through_tunnel(address)));
            // 1400 without the outer headers of IPv4, UDP and VXLAN, and the frame's own.
            let verdict = checker.wait("an MTU", |verdict| verdict.peer.ends_with(address));
            assert_eq!(verdict.route_mtu(), Some(1350), "{verdict:?}");
            assert_eq!(verdict.checksum, Checksum::Right, "{verdict:?}");
        }
        // What the kernel believes of the path, and a route's own MTU, are no hindrance.
        sh(
            &lab.nodes[0],
            "ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink mtu 1350",
        );
        sh(&lab.router, "nft flush ruleset");
        let is_v4 = |peer: &str| peer.ends_with("10.244.2.0");
        checker.wait("the full size", |verdict| {
            is_v4(&verdict.peer) && verdict.path_mtu == Some(FULL)
        });
    });
}

#[test]
fn size_that_nobody_would_guess_is_measured_to_the_byte() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::with_tunnel();
        sh(&lab.router, &SWALLOW.replace("1400", "1387"));
        let mut checker = Checker::start(&lab.nodes[0], Pace::default());
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        assert_eq!(checker.next().route_mtu(), Some(1337));
    });
}

/// Without a tunnel the router's ICMP says what fits.
#[test]
fn narrow_path_of_a_router_that_tells_is_found() {
    in_netns(|| {
        let lab = Lab::new();
        for (place, device) in [(&lab.router, "to-2"), (&lab.nodes[1], "eth0")] {
            place.ip(&["link", "set", device, "mtu", "1391"]);
        }
        let mut checker = Checker::start(&lab.nodes[0], Pace::default());
        for address in ["192.0.2.2", "2001:db8:2::2"] {
            checker.tell(Command::Watch(Target {
                overhead: 0,
                full: 1500,
                device: None,
                ..through_tunnel(address)
            }));
            let verdict = checker.next();
            assert_eq!(verdict.route_mtu(), Some(1391), "{verdict:?}");
        }
    });
}

/// VXLAN with DF: the kernel learns of the router what the tunnel carries.
#[test]
fn narrow_path_below_a_tunnel_that_may_not_be_cut_is_found() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        for (place, device) in [(&lab.router, "to-2"), (&lab.nodes[1], "eth0")] {
            place.ip(&["link", "set", device, "mtu", "1420"]);
        }
        for node in &lab.nodes {
            node.ip(&["link", "set", "flannel.1", "type", "vxlan", "df", "set"]);
        }
        let mut checker = Checker::start(&lab.nodes[0], Pace::default());
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        assert_eq!(checker.next().route_mtu(), Some(1370));
    });
}

#[test]
fn dead_peer_is_told_and_so_is_its_return() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        let mut checker = Checker::start(&lab.nodes[0], OFTEN);
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        checker.wait("an answer", |verdict| verdict.reachable);
        lab.nodes[1].ip(&["link", "set", "eth0", "down"]);
        let dead = checker.wait("its end", |verdict| !verdict.reachable);
        assert_eq!((dead.path_mtu, dead.route_mtu()), (None, None));
        assert_eq!(dead.checksum, Checksum::Unknown);
        lab.nodes[1].ip(&["link", "set", "eth0", "up"]);
        sh(&lab.nodes[1], "ip route replace default via 192.0.2.1");
        let alive = checker.wait("its return", |verdict| verdict.reachable);
        assert_eq!(alive.path_mtu, Some(FULL));
    });
}

/// A first node with a verdict on the second: it does not answer. By now it would.
fn given_up(address: &str) -> (Lab, Checker) {
    let lab = Lab::with_tunnel();
    sh(
        &lab.router,
        "nft add table inet dead
        nft add chain inet dead pass '{ type filter hook forward priority 0; policy drop; }'",
    );
    let mut checker = Checker::start(&lab.nodes[0], ONCE);
    checker.tell(Command::Watch(through_tunnel(address)));
    assert!(!checker.next().reachable);
    sh(&lab.router, "nft flush ruleset");
    (lab, checker)
}

#[test]
fn dead_peer_is_checked_at_once_when_the_store_tells_of_it() {
    in_netns(|| {
        require!(Program("nft"));
        let (_lab, mut checker) = given_up("10.244.2.0");
        checker.tell(Command::Heard("another".to_owned()));
        checker.tell(Command::Heard("node-2 at 10.244.2.0".to_owned()));
        let alive = checker.next();
        assert_eq!((alive.reachable, alive.path_mtu), (true, Some(FULL)));
        // It is alive, which is no news any more.
        checker.tell(Command::Heard("node-2 at 10.244.2.0".to_owned()));
        checker.tell(Command::Watch(through_tunnel("fd44:2::")));
        assert!(checker.next().address.is_ipv6());
    });
}

/// Whichever of two nodes tries first, the other need not wait for its own turn.
#[test]
fn dead_peer_is_checked_at_once_when_it_knocks() {
    in_netns(|| {
        require!(Program("nft"));
        for (address, own) in [("10.244.2.0", "10.244.1.0"), ("fd44:2::", "fd44:1::")] {
            let (lab, mut checker) = given_up(address);
            // What is no knock is no news.
            lab.nodes[1].exec("ping", &["-c", "1", "-W", "5", own]);
            assert!(checker.is_quiet());
            let mut other = Checker::start(&lab.nodes[1], ONCE);
            other.tell(Command::Watch(through_tunnel(own)));
            assert!(other.next().reachable);
            let alive = checker.next();
            assert_eq!((alive.reachable, alive.path_mtu), (true, Some(FULL)), "{address}");
        }
    });
}

#[test]
fn peer_that_has_left_is_sent_nothing() {
    in_netns(|| {
        let lab = Lab::with_tunnel();
        let mut checker = Checker::start(&lab.nodes[0], OFTEN);
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        checker.tell(Command::Watch(through_tunnel("fd44:2::")));
        checker.wait("an answer", |verdict| verdict.address.is_ipv4());
        checker.tell(Command::Forget("node-2 at 10.244.2.0".to_owned()));
        // Whatever was on its way has come before the second of these.
        for _ in 0..2 {
            checker.wait("the other", |verdict| verdict.address.is_ipv6());
        }
        for _ in 0..3 {
            assert!(checker.next().address.is_ipv6());
        }
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        checker.wait("its return", |verdict| verdict.address.is_ipv4());
        checker.tell(Command::Retain(vec!["node-2 at fd44:2::".to_owned()]));
        for _ in 0..2 {
            checker.wait("the other", |verdict| verdict.address.is_ipv6());
        }
        for _ in 0..3 {
            assert!(checker.next().address.is_ipv6());
        }
    });
}
