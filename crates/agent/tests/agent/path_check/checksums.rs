// SPDX-License-Identifier: Apache-2.0
//! Network cards with checksum offload that ignore tunnels, as those of some hypervisors: only the outer checksum is
//! right, and the receiver drops all TCP and UDP in a tunnel. Each node's `eth0` is a TUN interface, and this program
//! simulates the cards and the cable.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use agent::path_check::{Checksum, Command, ProbeIntervals};
use kernel::Netns;
use kernel::poll::wait_readable;
use kernel::tun::{NewTun, open_queues};
use testkit::{Ns, in_netns, require};

use super::lab::{Checker, sh, through_tunnel, tunnel};

const VNET_HEADER: usize = 10; // linux/virtio_net.h, struct virtio_net_hdr
const NEEDS_CSUM: u8 = 1; // linux/virtio_net.h, VIRTIO_NET_HDR_F_NEEDS_CSUM
const OUTER_UDP: usize = 20;

/// The checksums that a card computes.
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
    std::thread::spawn(move || forward(&ends, card));
    nodes
}

/// Forwards packets between both ends until one is closed.
fn forward(ends: &[File], card: Card) {
    let mut packet = vec![0; 65_546];
    loop {
        let ready =
            wait_readable(&[ends[0].as_fd(), ends[1].as_fd()], Some(Duration::from_secs(1)));
        for from in ready.unwrap().into_iter().enumerate().filter(|(_, is)| *is).map(|(at, _)| at) {
            match (&ends[from]).read(&mut packet) {
                Ok(len) if len > VNET_HEADER => {
                    compute_checksums(&mut packet[..len], card);
                    // An interface that is down accepts nothing.
                    let _ = (&ends[1 - from]).write(&packet[..len]);
                }
                Ok(_) => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

/// Computes the checksums that the kernel left to the card.
fn compute_checksums(packet: &mut [u8], card: Card) {
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

/// Whether TCP works from the first node to the second.
fn tcp_passes(nodes: &[Ns; 2]) -> bool {
    let _server = nodes[1].start("socat", &["TCP-LISTEN:7,reuseaddr,fork", "SYSTEM:echo hello"]);
    testkit::wait_for("the server to listen", Duration::from_secs(30), || {
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
fn wrong_checksums_are_repaired() {
    in_netns(|| {
        require!(Program("socat"), Program("ethtool"));
        let nodes = nodes(Card::OuterOnly);
        nodes[0].exec("ping", &["-c", "1", "-W", "5", "10.244.2.0"]);
        assert!(!tcp_passes(&nodes), "checksums are wrong");
        let mut checkers =
            nodes.each_ref().map(|node| Checker::start(node, ProbeIntervals::default()));
        checkers[0].send(Command::Watch(through_tunnel("10.244.2.0")));
        let result = checkers[0].next();
        assert_eq!(result.checksum, Checksum::Repaired, "{result:?}");
        assert_eq!(result.route_mtu(), None);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: off");
        // The other node repairs the opposite direction.
        checkers[1].send(Command::Watch(through_tunnel("10.244.1.0")));
        assert_eq!(checkers[1].next().checksum, Checksum::Repaired);
        assert!(tcp_passes(&nodes));
        // The repair stays in effect.
        checkers[0].send(Command::CheckAll);
        assert_eq!(checkers[0].next().checksum, Checksum::Right);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: off");
    });
}

#[test]
fn right_checksums_leave_offload_on() {
    in_netns(|| {
        require!(Program("socat"), Program("ethtool"));
        let nodes = nodes(Card::All);
        assert!(tcp_passes(&nodes));
        let mut checker = Checker::start(&nodes[0], ProbeIntervals::default());
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        assert_eq!(checker.next().checksum, Checksum::Right);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: on");
    });
}

#[test]
fn firewall_is_not_mistaken_for_wrong_checksums() {
    in_netns(|| {
        require!(Program("nft"), Program("ethtool"));
        let nodes = nodes(Card::All);
        let mut checker = Checker::start(&nodes[0], ProbeIntervals::default());
        sh(
            &nodes[1],
            "nft add table inet drops
            nft add chain inet drops in '{ type filter hook input priority 0; }'
            nft add rule inet drops in iifname flannel.1 udp dport 33434 drop",
        );
        checker.send(Command::Watch(through_tunnel("10.244.2.0")));
        let result = checker.next();
        assert_eq!((result.reachable, result.checksum), (true, Checksum::Unknown));
        // An ICMP error of the peer's firewall counts as an answer.
        sh(
            &nodes[1],
            "nft flush chain inet drops in
            nft add rule inet drops in iifname flannel.1 udp dport 33434 \
                reject with icmp type admin-prohibited",
        );
        checker.send(Command::CheckAll);
        assert_eq!(checker.next().checksum, Checksum::Right);
        assert_eq!(offload(&nodes[0]), "tx-checksum-ip-generic: on");
    });
}
