// SPDX-License-Identifier: Apache-2.0
//! Network cards that should fill in checksums and do not look into tunnels, as some hypervisors' do: only
//! the outer checksum is right, and all TCP and UDP in a tunnel is dropped by the receiver. Each node's
//! `eth0` is a TUN interface here, and this program is the cards and the wire.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use agent::path::{Checksum, Command, Pace};
use kernel::Netns;
use kernel::poll::wait_readable;
use kernel::tun::{NewTun, open_queues};
use testkit::{Ns, in_netns, require};

use super::lab::{Checker, sh, through_tunnel, tunnel};

const VNET_HEADER: usize = 10; // linux/virtio_net.h, struct virtio_net_hdr
const NEEDS_CSUM: u8 = 1; // linux/virtio_net.h, VIRTIO_NET_HDR_F_NEEDS_CSUM
const OUTER_UDP: usize = 20;

/// Which checksums a card fills in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Card {
    All,
    OuterOnly,
}

fn nodes(card: Card) -> [Ns; 2] {
    let nodes = ["node-1", "node-2"].map(Ns::new);
    let mut ends = Vec::new();
    for (node, n) in nodes.iter().zip([1, 2]) {
        let tun = NewTun { name: "eth0".parse().unwrap(), queues: 1, offload: true };
        let end = Netns::open(node.path()).unwrap().enter(|| open_queues(&tun)).unwrap().unwrap();
        ends.extend(end);
        let other = 3 - n;
        sh(
            node,
            &format!(
                "ip link set lo up
                ip link set eth0 mtu 1500 up
                ip addr add 192.0.2.{n} peer 192.0.2.{other} dev eth0"
            ),
        );
        tunnel(node, n, &format!("192.0.2.{n}"), &format!("192.0.2.{other}"));
    }
    std::thread::spawn(move || be_wire(&ends, card));
    nodes
}

/// Carries packets from one end to the other for as long as both are there.
fn be_wire(ends: &[File], card: Card) {
    let mut packet = vec![0; 65_546];
    loop {
        let ready =
            wait_readable(&[ends[0].as_fd(), ends[1].as_fd()], Some(Duration::from_secs(1)));
        for from in ready.unwrap().into_iter().enumerate().filter(|(_, is)| *is).map(|(at, _)| at) {
            match (&ends[from]).read(&mut packet) {
                Ok(len) if len > VNET_HEADER => {
                    finish(&mut packet[..len], card);
                    // One that is down takes nothing, which is what wires are like.
                    let _ = (&ends[1 - from]).write(&packet[..len]);
                }
                Ok(_) => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

/// What the card does before a packet is on the wire, where nothing says any more what was left to it.
fn finish(packet: &mut [u8], card: Card) {
    let (header, bytes) = packet.split_at_mut(VNET_HEADER);
    let at = |offset: usize| usize::from(u16::from_ne_bytes([header[offset], header[offset + 1]]));
    let (start, offset) = (at(6), at(8));
    if header[0] & NEEDS_CSUM != 0 && (card == Card::All || start == OUTER_UDP) {
        let sum: u64 = bytes[start..]
            .chunks(2)
            .map(|w| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0)))
            .sum();
        let folded = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
        let folded = (folded & 0xffff) + (folded >> 16);
        let checksum = (!(folded as u16)).to_be_bytes();
        bytes[start + offset..start + offset + 2].copy_from_slice(&checksum);
    }
    header.fill(0);
}

/// Whether a program on the first node gets through to one on the second.
fn tcp_passes(nodes: &[Ns; 2]) -> bool {
    let _server = nodes[1].start("socat", &["TCP-LISTEN:7,reuseaddr,fork", "SYSTEM:echo hello"]);
    testkit::wait_for("the server", Duration::from_secs(30), || {
        nodes[1].exec("ss", &["-Hltn"]).contains(":7 ")
    });
    let answer = nodes[0].try_exec("socat", &["-u", "TCP:10.244.2.0:7,connect-timeout=5", "-"]);
    answer.is_ok_and(|answer| answer.contains("hello"))
}

fn offload(node: &Ns) -> String {
    let features = node.exec("ethtool", &["-k", "flannel.1"]);
    let line = features.lines().find(|line| line.contains("tx-checksum-ip-generic"));
    line.unwrap().trim().to_owned()
}

#[test]
fn wrong_checksums_are_seen_and_repaired() {
    in_netns(|| {
        require!(Program("socat"), Program("ethtool"));
        let nodes = nodes(Card::OuterOnly);
        nodes[0].exec("ping", &["-c", "1", "-W", "5", "10.244.2.0"]);
        assert!(!tcp_passes(&nodes), "the fault is there");
        let mut checkers = nodes.each_ref().map(|node| Checker::start(node, Pace::default()));
        checkers[0].tell(Command::Watch(through_tunnel("10.244.2.0")));
        let verdict = checkers[0].next();
        assert_eq!(verdict.checksum, Checksum::Repaired, "{verdict:?}");
        assert_eq!(verdict.route_mtu(), None);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: off");
        // The way back is the other node's business.
        checkers[1].tell(Command::Watch(through_tunnel("10.244.1.0")));
        assert_eq!(checkers[1].next().checksum, Checksum::Repaired);
        assert!(tcp_passes(&nodes));
        // It stays so, and other peers behind the same device need nothing.
        checkers[0].tell(Command::CheckAll);
        assert_eq!(checkers[0].next().checksum, Checksum::Right);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: off");
    });
}

#[test]
fn right_checksums_are_left_to_the_card() {
    in_netns(|| {
        require!(Program("socat"), Program("ethtool"));
        let nodes = nodes(Card::All);
        assert!(tcp_passes(&nodes));
        let mut checker = Checker::start(&nodes[0], Pace::default());
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        assert_eq!(checker.next().checksum, Checksum::Right);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: on");
    });
}

/// Silence is not taken for wrong checksums.
#[test]
fn firewalls_are_not_taken_for_wrong_checksums() {
    in_netns(|| {
        require!(Program("nft"), Program("ethtool"));
        let nodes = nodes(Card::All);
        let mut checker = Checker::start(&nodes[0], Pace::default());
        sh(
            &nodes[1],
            "nft add table inet deaf
            nft add chain inet deaf in '{ type filter hook input priority 0; }'
            nft add rule inet deaf in iifname flannel.1 udp dport 33434 drop",
        );
        checker.tell(Command::Watch(through_tunnel("10.244.2.0")));
        let verdict = checker.next();
        assert_eq!((verdict.reachable, verdict.checksum), (true, Checksum::Unknown));
        // A firewall that answers is as good as a kernel that does.
        sh(
            &nodes[1],
            "nft flush chain inet deaf in
            nft add rule inet deaf in iifname flannel.1 udp dport 33434 \
                reject with icmp type admin-prohibited",
        );
        checker.tell(Command::CheckAll);
        assert_eq!(checker.next().checksum, Checksum::Right);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: on");
    });
}
