// SPDX-License-Identifier: Apache-2.0
//! Sockets for an interface without an address, with `socat` at the other end.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use kernel::daemon::is_from_root;
use kernel::poll::wait_readable;
use kernel::socket::packet::{self, IcmpSender, PacketSocket};
use kernel::{Family, MacAddr, Netlink};
use testkit::{Ns, in_netns, run, wait_for, wait_some};

use super::{index_of, ip, ip_json, name};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Broadcasts one word by UDP from the other end, with these source and destination ports.
fn broadcast(other: &Ns, from: u16, to: u16, word: &str) {
    let target =
        format!("UDP-DATAGRAM:255.255.255.255:{to},broadcast,sourceport={from},so-bindtodevice=v1");
    other.exec("sh", &["-c", &format!("printf {word} | socat -u - {target}")]);
}

fn connected() -> (Netlink, Ns) {
    let other = Ns::new("other");
    Ns::here().connect("v0", &other, "v1");
    other.ip(&["addr", "add", "10.9.0.2/24", "dev", "v1"]);
    (Netlink::open().unwrap(), other)
}

#[test]
fn packets_to_one_port_arrive_without_an_address() {
    in_netns(|| {
        let (nl, other) = connected();
        let socket = PacketSocket::open(index_of(&nl, "v0"), 68).unwrap();
        let mut buffer = [0; 2048];
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        broadcast(&other, 67, 69, "other-port");
        broadcast(&other, 67, 68, "mine");
        let ready = wait_readable(&[socket.as_fd()], Some(TIMEOUT)).unwrap();
        assert_eq!(ready, [true]);
        let (length, from) = socket.receive(&mut buffer).unwrap().unwrap();
        assert!(buffer[..length].ends_with(b"mine"), "{:?}", &buffer[..length]);
        assert_eq!(buffer[0], 0x45, "first byte of the IPv4 header");
        let mac = ip_json(&other, "link show v1")["address"].as_str().unwrap().to_owned();
        assert_eq!(from.to_string(), mac);
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        assert_eq!(wait_readable(&[socket.as_fd()], Some(Duration::ZERO)).unwrap(), [false]);
    });
}

#[test]
fn packet_is_sent_to_a_mac_address() {
    in_netns(|| {
        let (nl, other) = connected();
        ip("addr add 10.9.0.1/24 dev v0");
        let socket = PacketSocket::open(index_of(&nl, "v0"), 68).unwrap();
        let receiver = Receiver::open(&other);
        let mac: MacAddr =
            ip_json(&other, "link show v1")["address"].as_str().unwrap().parse().unwrap();
        // 10.9.0.1:68 to 10.9.0.2:67, UDP without a checksum.
        let mut udp = vec![0, 68, 0, 67, 0, 12, 0, 0];
        udp.extend(b"word");
        let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
        let sum: u32 = packet.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(udp);
        socket.send(mac, &packet).unwrap();
        let (word, from) = receiver.receive();
        assert_eq!((word.as_str(), from.as_str()), ("word", "10.9.0.1:68"));
    });
}

/// A UDP socket bound to the interface at the other end.
struct Receiver(std::net::UdpSocket);

impl Receiver {
    fn open(ns: &Ns) -> Self {
        let ns = kernel::Netns::open(ns.path()).unwrap();
        let local = "0.0.0.0:67".parse().unwrap();
        Self(ns.enter(|| packet::udp(name("v1"), local)).unwrap().unwrap())
    }

    fn receive(&self) -> (String, String) {
        let mut buffer = [0; 64];
        let received = wait_some(TIMEOUT, || self.0.recv_from(&mut buffer).ok());
        let (length, from) = received.expect("a packet arrives");
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), from.to_string())
    }
}

#[test]
fn open_on_missing_interface_fails() {
    in_netns(|| {
        let error = PacketSocket::open(kernel::IfIndex(77), 68).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        let error = packet::udp(name("gone"), "0.0.0.0:68".parse().unwrap()).unwrap_err();
        assert!(error.is_not_found() && error.to_string().contains("on gone"), "{error}");
    });
}

#[test]
fn peer_running_as_root_is_recognized() {
    in_netns(|| {
        let listener = UnixListener::bind("/run/s").unwrap();
        let _caller = UnixStream::connect("/run/s").unwrap();
        assert!(is_from_root(listener.accept().unwrap().0).unwrap());
    });
}

/// The kernel counts an echo reply even without a request.
#[test]
fn icmp_message_is_sent() {
    fn counted(key: &str) -> u32 {
        let text = run("nstat", &["-asz", key]);
        let line = text.lines().find(|line| line.contains(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
    in_netns(|| {
        for (family, to, reply, key) in [
            (Family::V4, "127.0.0.1", [0, 0, 0xff, 0xfe, 0, 0, 0, 1], "IcmpInEchoReps"),
            (Family::V6, "::1", [129, 0, 0, 0, 0, 0, 0, 1], "Icmp6InEchoReplies"),
        ] {
            let sender = IcmpSender::open(family).unwrap();
            let before = counted(key);
            sender.send(to.parse().unwrap(), &reply).unwrap();
            wait_for("the counter of echo replies grows", TIMEOUT, || counted(key) == before + 1);
        }
    });
}
