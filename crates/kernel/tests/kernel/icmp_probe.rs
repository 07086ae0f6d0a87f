// SPDX-License-Identifier: Apache-2.0
//! Probe sockets, the echo listener and device features, with a peer at the other end of a veth
//! pair.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kernel::ethtool::{Ethtool, TX_CHECKSUM};
use kernel::socket::echo_listener::EchoListener;
use kernel::socket::icmp_probe::{ChecksumBy, IcmpError, ProbeSocket, Reason};
use kernel::{Family, Netlink};
use testkit::{Ns, in_netns, require, run, wait_some};

use super::{index_of, ip};

const TIMEOUT: Duration = Duration::from_secs(20);
const ENDS: [(Family, &str); 2] = [(Family::V4, "10.9.0.2"), (Family::V6, "fd09::2")];

fn connected() -> Ns {
    let other = Ns::new("other");
    Ns::here().connect("v0", &other, "v1");
    ip("addr add 10.9.0.1/24 dev v0");
    ip("addr add fd09::1/64 dev v0 nodad");
    other.ip(&["addr", "add", "10.9.0.2/24", "dev", "v1"]);
    other.ip(&["addr", "add", "fd09::2/64", "dev", "v1", "nodad"]);
    other
}

fn to(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 33_434)
}

#[test]
fn echo_reply_has_the_sent_payload() {
    in_netns(|| {
        let _other = connected();
        for (family, address) in ENDS {
            let socket = ProbeSocket::echo(family, 7).unwrap();
            let other_id = ProbeSocket::echo(family, 8).unwrap();
            let mut buffer = [0; 2000];
            assert_eq!(socket.receive(&mut buffer).unwrap(), None);
            socket.send(to(address), b"sent payload", ChecksumBy::Device).unwrap();
            let range = wait_some(TIMEOUT, || socket.receive(&mut buffer).unwrap()).unwrap();
            assert_eq!(&buffer[range], b"sent payload", "{address}");
            assert_eq!(other_id.receive(&mut buffer).unwrap(), None, "{address}");
        }
    });
}

#[test]
fn listener_receives_only_marked_requests() {
    in_netns(|| {
        let other = connected();
        for (family, address, own) in
            [(Family::V4, "10.9.0.2", "10.9.0.1"), (Family::V6, "fd09::2", "fd09::1")]
        {
            let listener = EchoListener::open(family, *b"knocking", 3).unwrap();
            // In hexadecimal: no mark, half of the mark, the whole mark.
            for pattern in ["00", "0102036b6e6f636bff", "0102036b6e6f636b696e67"] {
                assert_eq!(listener.receive().unwrap(), None, "{address} before {pattern}");
                // Fewer than 16 bytes, so that ping does not put a timestamp first.
                let args = &["-c", "1", "-W", "5", "-s", "11", "-p", pattern, own];
                other.exec("ping", args);
            }
            let from = wait_some(TIMEOUT, || listener.receive().unwrap()).unwrap();
            assert_eq!(from, address.parse::<IpAddr>().unwrap());
            assert_eq!(listener.receive().unwrap(), None, "{address}");
        }
    });
}

#[test]
fn datagram_to_closed_port_returns_refused() {
    in_netns(|| {
        let _other = connected();
        for (family, address) in ENDS {
            let socket = ProbeSocket::datagram(family).unwrap();
            for checksum in [ChecksumBy::Device, ChecksumBy::Kernel] {
                let mut buffer = [0; 2000];
                socket.send(to(address), b"sent payload", checksum).unwrap();
                let IcmpError { len, reason, by } =
                    wait_some(TIMEOUT, || socket.receive_error(&mut buffer).unwrap()).unwrap();
                assert_eq!(&buffer[..len], b"sent payload", "{address} {checksum:?}");
                assert_eq!(reason, Reason::Refused, "{address} {checksum:?}");
                assert_eq!(by, Some(address.parse::<IpAddr>().unwrap()), "{address} {checksum:?}");
            }
        }
    });
}

/// A capture at the other end shows the checksum as it was passed to the veth device, which does
/// not fill it in.
#[test]
fn checksum_is_computed_by_kernel_or_device() {
    in_netns(|| {
        require!(Program("tcpdump"));
        let other = connected();
        for (checksum, is_valid) in [(ChecksumBy::Device, false), (ChecksumBy::Kernel, true)] {
            for (family, address) in ENDS {
                let socket = ProbeSocket::datagram(family).unwrap();
                socket.send(to(address), b"neighbours are known now", checksum).unwrap();
                let script = "timeout 60 tcpdump -nvv -c 1 -i v1 udp port 33434 2>/dev/null";
                let mut line = String::new();
                std::thread::scope(|scope| {
                    let capture = scope.spawn(|| other.exec("sh", &["-c", script]));
                    while !capture.is_finished() {
                        socket.send(to(address), b"sent payload", checksum).unwrap();
                        testkit::wait_some(Duration::from_millis(50), || {
                            capture.is_finished().then_some(())
                        });
                    }
                    line = capture.join().unwrap();
                });
                assert_eq!(line.contains("udp sum ok"), is_valid, "{checksum:?} {address}: {line}");
            }
        }
    });
}

#[test]
fn too_large_probe_returns_the_path_mtu() {
    in_netns(|| {
        let other = connected();
        let far = Ns::new("far");
        other.connect("to-far", &far, "eth0");
        for (ns, device, n) in [(&other, "to-far", 1), (&far, "eth0", 2)] {
            ns.ip(&["addr", "add", &format!("10.10.0.{n}/24"), "dev", device]);
            ns.ip(&["link", "set", device, "mtu", "1300"]);
        }
        far.ip(&["route", "add", "default", "via", "10.10.0.1"]);
        other.exec("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        ip("route add 10.10.0.0/24 via 10.9.0.2");
        let sockets =
            [ProbeSocket::echo(Family::V4, 7).unwrap(), ProbeSocket::datagram(Family::V4).unwrap()];
        let payload = vec![7; 1400 - 28];
        for socket in &sockets {
            // The second time the kernel knows the path MTU, and must send the probe anyway.
            for _ in 0..2 {
                let mut buffer = [0; 2000];
                socket.send(to("10.10.0.2"), &payload, ChecksumBy::Device).unwrap();
                let error =
                    wait_some(TIMEOUT, || socket.receive_error(&mut buffer).unwrap()).unwrap();
                assert_eq!(error.reason, Reason::TooBig(1300));
                assert_eq!(error.by, Some("10.9.0.2".parse().unwrap()));
                assert!(error.len > 16 && buffer[..16] == [7; 16], "{error:?}");
            }
            // Larger than the MTU of the device itself.
            let error = socket.send(to("10.10.0.2"), &[0; 1500], ChecksumBy::Device).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(90), "{error}");
        }
    });
}

#[test]
fn device_features_are_switched() {
    in_netns(|| {
        require!(Program("ethtool"));
        let _other = connected();
        let index = index_of(&Netlink::open().unwrap(), "v0");
        let ethtool = Ethtool::open().unwrap();
        for on in [false, true, true] {
            ethtool.set(index, TX_CHECKSUM, on).unwrap();
            assert_eq!(ethtool.is_on(index, TX_CHECKSUM).unwrap(), on);
            let word = if on { "on" } else { "off" };
            let shown = run("ethtool", &["-k", "v0"]);
            assert!(shown.contains(&format!("{TX_CHECKSUM}: {word}\n")), "{shown}");
        }
        let error = ethtool.set(index, "no-such-feature", true).unwrap_err();
        assert!(error.to_string().contains("switch feature of"), "{error}");
        assert!(ethtool.is_on(kernel::IfIndex(99), TX_CHECKSUM).unwrap_err().is_not_found());
    });
}
