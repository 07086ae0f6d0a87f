// SPDX-License-Identifier: Apache-2.0
//! Messages that hold many datagrams.

use std::io::{ErrorKind, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU16;
use std::time::Duration;

use kernel::socket::udp_gso::{Datagrams, GsoSocket, ReceiveBuffer};
use testkit::{in_netns, wait_some};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Receives until this many datagrams have arrived.
fn receive(socket: &GsoSocket, count: usize) -> Vec<Vec<u8>> {
    let (mut buffer, mut received) = (ReceiveBuffer::new(), Vec::new());
    let complete = wait_some(TIMEOUT, || {
        match socket.receive(&mut buffer) {
            Ok(_) => received.extend(buffer.datagrams().map(<[u8]>::to_vec)),
            Err(cause) => assert_eq!(cause.kind(), ErrorKind::WouldBlock),
        }
        (received.len() >= count).then_some(())
    });
    assert!(complete.is_some(), "only {} of {count} datagrams came", received.len());
    received
}

#[test]
fn gso_message_arrives_as_one_message() {
    in_netns(|| {
        for [here, there, plain] in [
            ["127.0.0.1:700", "127.0.0.1:701", "127.0.0.1:702"],
            ["[::1]:700", "[::1]:701", "[::1]:702"],
        ] {
            let at = |text: &str| text.parse::<SocketAddr>().unwrap();
            let (sender, receiver) =
                (GsoSocket::open(at(here)).unwrap(), GsoSocket::open(at(there)).unwrap());
            let bytes: Vec<u8> = (0..5300_u32).map(|n| n as u8).collect();
            let parts = [IoSlice::new(&bytes[..1234]), IoSlice::new(&bytes[1234..])];
            let message = Datagrams { to: at(there), size: NonZeroU16::new(1000), parts: &parts };
            assert_eq!(sender.send(&[message]).unwrap(), 1);
            let expected: Vec<_> = bytes.chunks(1000).map(<[u8]>::to_vec).collect();
            let mut buffer = ReceiveBuffer::new();
            let count = wait_some(TIMEOUT, || receiver.receive(&mut buffer).ok());
            assert_eq!(count, Some(1));
            assert_eq!(buffer.datagrams().collect::<Vec<_>>(), expected);

            // A plain socket receives single datagrams.
            let other = UdpSocket::bind(at(plain)).unwrap();
            other.set_read_timeout(Some(TIMEOUT)).unwrap();
            sender.send(&[Datagrams { to: at(plain), ..message }]).unwrap();
            let mut buffer = [0; 2000];
            for expected in &expected {
                let (len, from) = other.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..len], from), (&expected[..], at(here)));
            }
        }
    });
}

#[test]
fn messages_are_sent_up_to_the_first_failure() {
    in_netns(|| {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (sender, receiver) =
            (GsoSocket::open(at(700)).unwrap(), GsoSocket::open(at(701)).unwrap());
        let bytes: Vec<[u8; 1]> = (0..30_u8).map(|n| [n]).collect();
        let parts: Vec<_> = bytes.iter().map(|byte| [IoSlice::new(byte)]).collect();
        let to = |to: SocketAddr, parts| Datagrams { to, size: None, parts };
        let all: Vec<_> = parts.iter().map(|parts| to(at(701), parts)).collect();
        assert_eq!(sender.send(&all).unwrap(), 30);
        assert_eq!(receive(&receiver, 30), bytes);

        let nowhere = SocketAddr::from(([192, 0, 2, 9], 9));
        for failing in [0, 5, 8, 20] {
            let mut all = all.clone();
            all[failing].to = nowhere;
            match failing {
                0 => drop(sender.send(&all).unwrap_err()),
                _ => assert_eq!(sender.send(&all).unwrap(), failing),
            }
            assert_eq!(receive(&receiver, failing), bytes[..failing]);
        }
    });
}

#[test]
fn receive_does_not_block_and_taken_port_fails() {
    in_netns(|| {
        let socket = GsoSocket::open(([127, 0, 0, 1], 700).into()).unwrap();
        let empty = socket.receive(&mut ReceiveBuffer::new()).unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        let taken = UdpSocket::bind("127.0.0.1:701").unwrap();
        let error = GsoSocket::open(taken.local_addr().unwrap()).unwrap_err();
        assert!(error.to_string().contains("open UDP socket 127.0.0.1:701"), "{error}");
    });
}
