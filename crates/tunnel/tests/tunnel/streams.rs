// SPDX-License-Identifier: Apache-2.0
//! TCP in both directions and UDP in large messages: the received bytes equal the sent ones.

use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU16;
use std::thread;
use std::time::Duration;

use kernel::socket::udp_gso::{Datagrams, GsoSocket};
use testkit::in_netns;

use crate::lab::{Node, nodes_with_tunnels};

const TIMEOUT: Duration = Duration::from_secs(60);
const MEGABYTE: usize = 1 << 20;

/// Sends `len` bytes in both directions at once over one connection and compares them.
pub fn exchange(from: &Node, to: &Node, address: &str, len: usize) {
    let at = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 7000);
    let listener = to.pod_netns().enter(|| TcpListener::bind(at)).unwrap().unwrap();
    let client = from.pod_netns().enter(|| TcpStream::connect_timeout(&at, TIMEOUT));
    let client = client.unwrap().unwrap();
    let (server, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        for (stream, seed) in [(&client, 1), (&server, 2)] {
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.set_write_timeout(Some(TIMEOUT)).unwrap();
            scope.spawn(move || send(stream, len, seed));
            scope.spawn(move || expect(stream, len, 3 - seed));
        }
    });
}

fn block(at: usize, seed: u8) -> Vec<u8> {
    (0..64_000_usize).map(|n| (n * 7 + (n >> 8) + at) as u8 ^ seed).collect()
}

fn send(mut stream: &TcpStream, len: usize, seed: u8) {
    for at in 0..len.div_ceil(64_000) {
        stream.write_all(&block(at, seed)).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

fn expect(mut stream: &TcpStream, len: usize, seed: u8) {
    let mut received = vec![0; 64_000];
    for at in 0..len.div_ceil(64_000) {
        stream.read_exact(&mut received).unwrap();
        assert!(received == block(at, seed), "block {at} differs");
    }
    assert_eq!(stream.read(&mut received).unwrap(), 0, "more than was sent");
}

#[test]
fn streams_arrive_unchanged_in_gso_packets() {
    in_netns(|| {
        let ([a, b], tunnels) = nodes_with_tunnels();
        exchange(&a, &b, &b.pod_v4(), 16 * MEGABYTE);
        exchange(&b, &a, &a.pod_v6(), 16 * MEGABYTE);
        for tunnel in &tunnels {
            let counts = tunnel.counts();
            for flow in [counts.sent, counts.received] {
                assert!(flow.large > 500, "{counts:?}");
                assert!(flow.bytes > 32 * MEGABYTE as u64, "{counts:?}");
                assert!(flow.packets > flow.large * 4, "{counts:?}");
            }
            let multicast = counts.dropped.multicast;
            assert_eq!(counts.dropped, tunnel::Dropped { multicast, ..Default::default() });
        }
    });
}

/// The tunnel's datagrams exceed the link's MTU, so the kernel fragments each of them.
#[test]
fn streams_arrive_over_a_smaller_link_mtu() {
    in_netns(|| {
        let ([a, b], tunnels) = nodes_with_tunnels();
        for node in [&a, &b] {
            node.ip("link set eth0 mtu 1300");
        }
        exchange(&a, &b, &b.pod_v4(), MEGABYTE);
        for tunnel in &tunnels {
            assert_eq!(tunnel.counts().dropped.not_sent, 0, "{:?}", tunnel.counts());
        }
    });
}

#[test]
fn datagrams_of_all_sizes_arrive() {
    in_netns(|| {
        let ([a, b], _tunnels) = nodes_with_tunnels();
        for (from, to) in [(a.pod_v4(), b.pod_v4()), (a.pod_v6(), b.pod_v6())] {
            let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 7001);
            let receiver = b.pod_netns().enter(|| UdpSocket::bind(at(&to))).unwrap().unwrap();
            let sender = a.pod_netns().enter(|| UdpSocket::bind(at(&from))).unwrap().unwrap();
            receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut received = vec![0; 65_536];
            for size in (0..3000).step_by(97).chain([1424, 1425, 1444, 1445, 9000, 60_000]) {
                let bytes = &block(size, 5)[..size];
                sender.send_to(bytes, at(&to)).unwrap();
                let len = receiver.recv(&mut received).unwrap();
                assert!(&received[..len] == bytes, "{size} bytes from {from}");
            }
        }
    });
}

/// The kernel delivers such a message to the tunnel as one GSO packet, if it can.
#[test]
fn gso_message_arrives_as_single_datagrams() {
    in_netns(|| {
        let ([a, b], _tunnels) = nodes_with_tunnels();
        for (from, to) in [(a.pod_v4(), b.pod_v4()), (a.pod_v6(), b.pod_v6())] {
            let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 7002);
            let receiver = b.pod_netns().enter(|| UdpSocket::bind(at(&to))).unwrap().unwrap();
            let sender = a.pod_netns().enter(|| GsoSocket::open(at(&from))).unwrap().unwrap();
            receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
            let bytes = block(0, 9);
            let parts = [IoSlice::new(&bytes[..12_345]), IoSlice::new(&bytes[12_345..30_500])];
            let message = Datagrams { to: at(&to), size: NonZeroU16::new(1000), parts: &parts };
            assert_eq!(sender.send(&[message]).unwrap(), 1);
            let mut received = vec![0; 65_536];
            for expected in bytes[..30_500].chunks(1000) {
                let len = receiver.recv(&mut received).unwrap();
                assert_eq!(&received[..len], expected);
            }
        }
    });
}
