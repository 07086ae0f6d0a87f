// SPDX-License-Identifier: Apache-2.0
//! Multicast and broadcast packets, with `socat` at the other end of a veth pair.

use std::net::UdpSocket;
use std::time::Duration;

use kernel::socket::multicast::{self, BUFFER_LEN, MulticastSocket};
use kernel::{Family, MacAddr, Netlink};
use testkit::{Ns, in_netns, require, wait_some};

use super::{index_of, ip, ip_json};

const TIMEOUT: Duration = Duration::from_secs(20);

fn connected() -> (Netlink, Ns) {
    let other = Ns::new("other");
    Ns::here().connect("v0", &other, "v1");
    ip("addr add 10.9.0.1/24 dev v0");
    other.ip(&["addr", "add", "10.9.0.2/24", "dev", "v1"]);
    other.ip(&["addr", "add", "fd09::2/64", "dev", "v1", "nodad"]);
    other.ip(&["route", "add", "default", "dev", "v1"]);
    (Netlink::open().unwrap(), other)
}

fn open(nl: &Netlink, family: Family) -> MulticastSocket {
    let mac: MacAddr =
        ip_json(&Ns::here(), "link show v0")["address"].as_str().unwrap().parse().unwrap();
    MulticastSocket::open(index_of(nl, "v0"), mac, family).unwrap()
}

fn send(other: &Ns, word: &str, socket: &str) {
    other.exec("sh", &["-c", &format!("printf {word} | socat -u - {socket},so-bindtodevice=v1")]);
}

/// Returns the payload of the next UDP packet after an IP header of this length; its checksum must
/// be valid.
fn next(socket: &MulticastSocket, header: usize) -> String {
    let mut buffer = vec![0; BUFFER_LEN];
    loop {
        let received = wait_some(TIMEOUT, || socket.receive(&mut buffer).unwrap()).unwrap();
        assert!(!received.is_unsegmented);
        let packet = &buffer[received.packet];
        let protocol = if header == 20 { packet[9] } else { packet[6] };
        if protocol != 17 {
            continue;
        }
        let addresses = if header == 20 { 12..20 } else { 8..40 };
        let udp = &packet[header..];
        let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0));
        let sum: u64 = udp.chunks(2).map(word).sum::<u64>()
            + packet[addresses].chunks(2).map(word).sum::<u64>()
            + 17
            + udp.len() as u64;
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{packet:?}");
        return String::from_utf8_lossy(&udp[8..]).into_owned();
    }
}

#[test]
fn only_multicast_and_broadcast_are_received() {
    in_netns(|| {
        require!(Program("socat"));
        let (nl, other) = connected();
        let [v4, v6] = Family::ALL.map(|family| open(&nl, family));
        send(&other, "one", "UDP4-DATAGRAM:10.9.0.1:5000");
        send(&other, "group", "UDP4-DATAGRAM:239.1.2.3:5000");
        assert_eq!(next(&v4, 20), "group");
        send(&other, "all", "UDP4-DATAGRAM:255.255.255.255:5000,broadcast");
        assert_eq!(next(&v4, 20), "all");
        send(&other, "group6", "UDP6-DATAGRAM:[ff15::42]:5000");
        assert_eq!(next(&v6, 40), "group6");
        let mut buffer = vec![0; BUFFER_LEN];
        assert_eq!(v4.receive(&mut buffer).unwrap(), None);
    });
}

#[test]
fn packet_with_any_source_address_is_sent() {
    in_netns(|| {
        let (nl, other) = connected();
        let bind = || UdpSocket::bind("0.0.0.0:5000").unwrap();
        let socket = kernel::Netns::open(other.path()).unwrap().enter(bind).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        // 10.9.0.77:5000 to broadcast, UDP without a checksum.
        let mut packet =
            vec![0x45, 0, 0, 32, 0, 0, 0, 0, 1, 17, 0, 0, 10, 9, 0, 77, 255, 255, 255, 255];
        let sum: u32 = packet.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend([0x13, 0x88, 0x13, 0x88, 0, 12, 0, 0]);
        packet.extend(b"word");
        open(&nl, Family::V4).send(kernel::socket::packet::BROADCAST, &packet).unwrap();
        let mut buffer = [0; 16];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from.to_string().as_str()), (&b"word"[..], "10.9.0.77:5000"));
    });
}

#[test]
fn ignored_interface_delivers_no_packets() {
    in_netns(|| {
        require!(Program("socat"));
        let (nl, other) = connected();
        let socket = multicast::fragmenting_udp("0.0.0.0:5000".parse().unwrap()).unwrap();
        let receive = || {
            let mut buffer = [0; 16];
            let (len, _) = wait_some(TIMEOUT, || socket.recv_from(&mut buffer).ok()).unwrap();
            String::from_utf8_lossy(&buffer[..len]).into_owned()
        };
        send(&other, "before", "UDP4-DATAGRAM:10.9.0.1:5000");
        assert_eq!(receive(), "before");
        multicast::ignore_interface(&socket, index_of(&nl, "v0")).unwrap();
        send(&other, "ignored", "UDP4-DATAGRAM:10.9.0.1:5000");
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        own.send_to(b"after", "127.0.0.1:5000").unwrap();
        assert_eq!(receive(), "after");
    });
}
