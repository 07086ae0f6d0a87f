// SPDX-License-Identifier: Apache-2.0
//! Two relays that exchange datagrams in memory.

use super::*;
use crate::multicast::packet::tests::udp;

fn subnets(n: u8) -> Vec<IpNet> {
    [format!("10.244.{n}.0/24"), format!("fd44:{n}::/64")].map(|net| net.parse().unwrap()).into()
}

fn address(n: u8) -> IpAddr {
    IpAddr::from([10, 244, n, 1])
}

fn peer(n: u8) -> Peer {
    Peer { name: format!("node-{n}"), subnets: subnets(n) }
}

struct Two {
    nodes: [Relay; 2],
    counters: Counters,
    now: Instant,
}

impl Two {
    fn new() -> Self {
        let now = Instant::now();
        let mut nodes = [1, 2].map(|n| Relay::new(subnets(n), now));
        for (node, other) in nodes.iter_mut().zip([2, 1]) {
            node.set_bridge(true);
            assert_eq!(node.set_peer(peer(other)), Some(address(other)));
            assert_eq!(node.set_peer(peer(other)), None);
        }
        Self { nodes, counters: Counters::default(), now }
    }

    /// A pod of the second node joins or leaves a group, and the first node gets the announcement.
    fn join(&mut self, group: &str, joins: bool) {
        let kind = if joins { 4 } else { 3 };
        let [a, b, c, d] = group.parse::<std::net::Ipv4Addr>().unwrap().octets();
        let report = [
            0x46, 0xc0, 0, 40, 0, 0, 0x40, 0, 1, 2, 0, 0, 10, 244, 2, 2, 224, 0, 0, 22, 0x94, 4, 0,
            0, //
            0x22, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0, a, b, c, d,
        ];
        let done = self.nodes[1].handle_pod_packet(&report, self.now, &self.counters);
        assert_eq!(done, FromPod::Groups { have_changed: true, must_query: false });
        self.announce();
    }

    fn announce(&mut self) {
        let announcement = self.nodes[1].announcement().unwrap();
        let done =
            self.nodes[0].handle_datagram(address(2), &announcement, self.now, &self.counters);
        assert_eq!(done, FromPeer::Nothing);
    }

    /// Forwards a packet of a pod of the first node. Returns the consequence on the second node, if it gets there.
    fn forward(&mut self, packet: &[u8]) -> Option<FromPeer> {
        match self.nodes[0].handle_pod_packet(packet, self.now, &self.counters) {
            FromPod::Send { datagram, to } => {
                assert_eq!(to, [address(2)]);
                Some(self.nodes[1].handle_datagram(address(1), &datagram, self.now, &self.counters))
            }
            FromPod::Nothing => None,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn group_is_forwarded_while_it_has_a_member() {
    let mut two = Two::new();
    let packet = udp("10.244.1.2", "239.1.2.3", b"hello");
    assert_eq!(two.forward(&packet), None);
    two.join("239.1.2.3", true);
    let Some(FromPeer::Deliver { family, mac, packet: delivered }) = two.forward(&packet) else {
        panic!()
    };
    assert_eq!((family, mac.to_string().as_str()), (Family::V4, "01:00:5e:01:02:03"));
    assert_eq!(delivered, packet);
    assert_eq!(two.forward(&udp("10.244.1.2", "239.1.2.4", b"hello")), None);
    two.join("239.1.2.3", false);
    assert_eq!(two.forward(&packet), None);
}

#[test]
fn broadcast_is_forwarded_to_nodes_with_pods() {
    let mut two = Two::new();
    let packet = udp("10.244.1.2", "255.255.255.255", b"hello");
    assert_eq!(two.forward(&packet), None, "no announcement yet");
    two.announce();
    assert!(matches!(two.forward(&packet), Some(FromPeer::Deliver { .. })));
    two.now += INTEREST_TIMEOUT * 2;
    assert_eq!(two.forward(&packet), None, "announcement expired");
    two.nodes[1].set_bridge(false);
    two.announce();
    assert_eq!(two.forward(&packet), None);
}

#[test]
fn query_is_answered_with_an_announcement() {
    let mut two = Two::new();
    let query = two.nodes[1].query().unwrap();
    let done = two.nodes[0].handle_datagram(address(2), &query, two.now, &two.counters);
    assert_eq!(done, FromPeer::Announce(address(2)));
}

#[test]
fn forged_datagram_is_dropped() {
    let mut two = Two::new();
    two.join("239.1.2.3", true);
    let good = udp("10.244.1.2", "239.1.2.3", b"hello");
    let datagram = |subnet: &str, packet: &[u8]| {
        protocol::encode(subnet.parse().unwrap(), &Message::Packet(packet))
    };
    let mut check = |from: u8, datagram: &[u8], reason: DropReason| {
        let before = two.counters.dropped(reason);
        let done = two.nodes[1].handle_datagram(address(from), datagram, two.now, &two.counters);
        assert_eq!(done, FromPeer::Nothing);
        assert_eq!(two.counters.dropped(reason), before + 1);
    };
    // Sender address of another node; unknown subnet; own subnet.
    check(3, &datagram("10.244.1.0/24", &good), DropReason::Forged);
    check(1, &datagram("10.244.3.0/24", &good), DropReason::Stranger);
    check(1, &datagram("10.244.2.0/24", &good), DropReason::Stranger);
    // Packets of other pods, unicast packets, a query, garbage.
    for packet in [
        udp("10.244.2.9", "239.1.2.3", b"hello"),
        udp("192.0.2.1", "239.1.2.3", b"hello"),
        udp("10.244.1.2", "10.244.2.2", b"hello"),
        udp("10.244.1.2", "10.244.2.255", b"hello"),
        udp("10.244.1.2", "224.0.0.5", b"hello"),
        crate::multicast::igmp::igmp_query().1,
        b"garbage".to_vec(),
        good[..20].to_vec(),
    ] {
        check(1, &datagram("10.244.1.0/24", &packet), DropReason::Forged);
    }
    check(1, b"something else", DropReason::Unknown);
    let mut later = datagram("10.244.1.0/24", &good);
    later[4] = 2;
    check(1, &later, DropReason::Unknown);
}

#[test]
fn flood_is_limited() {
    let mut two = Two::new();
    two.join("239.1.2.3", true);
    let packet = udp("10.244.1.2", "239.1.2.3", b"hello");
    let forwarded = (0..20_000).filter(|_| two.forward(&packet).is_some()).count();
    assert_eq!(forwarded, 5_000);
    assert_eq!(two.counters.dropped(DropReason::Rate), 15_000);
}

#[test]
fn removed_peer_gets_no_packets() {
    let mut two = Two::new();
    two.join("239.1.2.3", true);
    two.nodes[0].remove_peer("node-2");
    assert_eq!(two.forward(&udp("10.244.1.2", "239.1.2.3", b"hello")), None);
    assert_eq!(two.nodes[0].addresses(), [] as [IpAddr; 0]);
}

#[test]
fn subnet_taken_over_by_another_peer_stays_with_it() {
    let mut relay = Relay::new(subnets(1), Instant::now());
    relay.set_peer(peer(2));
    let successor = Peer { name: "successor".into(), subnets: subnets(2) };
    relay.set_peer(successor.clone());
    relay.remove_peer("node-2");
    for subnet in successor.subnets {
        assert_eq!(relay.by_subnet.get(&subnet).map(String::as_str), Some("successor"));
    }
    relay.remove_peer("successor");
    assert!(relay.by_subnet.is_empty());
}

/// A scan of all subnets for each peer would take more than a minute here.
#[test]
fn many_peers_removed_leave_no_subnet() {
    let peer = |n: u32| {
        let subnet = IpNet::new(Ipv4Addr::from(0x0b00_0000 + (n << 8)).into(), 24).unwrap();
        Peer { name: format!("node-{n}"), subnets: vec![subnet] }
    };
    let mut relay = Relay::new(subnets(1), Instant::now());
    for n in 0..50_000 {
        relay.set_peer(peer(n));
    }
    for n in 0..50_000 {
        relay.remove_peer(&format!("node-{n}"));
    }
    assert!(relay.addresses().is_empty());
    assert!(relay.by_subnet.is_empty());
}

#[test]
fn peer_address_has_a_family_that_both_nodes_have() {
    let [v4, v6] = [0, 1].map(|at| vec![subnets(1)[at]]);
    let reached = |own: &Vec<IpNet>| Relay::new(own.clone(), Instant::now()).set_peer(peer(2));
    assert_eq!(reached(&v4), Some(address(2)));
    assert_eq!(reached(&v6), Some("fd44:2::1".parse().unwrap()));
    let mut node = Relay::new(v4, Instant::now());
    let other = Peer { subnets: v6, ..peer(2) };
    assert_eq!(node.set_peer(other), None);
    assert_eq!(node.addresses(), [] as [IpAddr; 0]);
}

#[test]
fn rate_limit_allows_bursts_and_stops_floods() {
    let start = Instant::now();
    let mut limit = RateLimit::new(start);
    let passed = (0..10_000).filter(|_| limit.take(1, start)).count();
    assert_eq!(passed, 5_000);
    let later = start + Duration::from_millis(100);
    let passed = (0..10_000).filter(|_| limit.take(1, later)).count();
    assert_eq!(passed, 2_000);
    assert!(limit.take(9_999, later + Duration::from_secs(9)));
    assert!(!limit.take(1, later + Duration::from_secs(9)));
}
