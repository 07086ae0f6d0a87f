// SPDX-License-Identifier: Apache-2.0
//! Connection tracking, with connections created by `conntrack`.

use kernel::conntrack::{self, SentTo};
use testkit::{in_netns, require, run};

fn connect(protocol: &str, from: &str, to: &str, port: &str) {
    let args = ["-I", "-p", protocol, "-s", from, "-d", to, "--sport", "1000", "--dport", port];
    run("conntrack", &[&args[..], &["--timeout", "300", "--state", "ESTABLISHED"]].concat());
}

fn connect_udp(from: &str, to: &str, port: &str) {
    let args = ["-I", "-p", "udp", "-s", from, "-d", to, "--sport", "1000", "--dport", port];
    run("conntrack", &[&args[..], &["--timeout", "300"]].concat());
}

#[test]
fn only_connections_to_given_ports_are_removed() {
    require!(Program("conntrack"));
    in_netns(|| {
        connect_udp("192.0.2.1", "192.0.2.9", "53");
        connect_udp("192.0.2.2", "192.0.2.8", "53");
        connect_udp("192.0.2.1", "192.0.2.9", "54");
        connect_udp("fd00::1", "fd00::9", "53");
        connect("tcp", "192.0.2.1", "192.0.2.9", "53");
        let udp_53 = SentTo { protocol: 17, port: 53, address: None };
        let one = SentTo { address: Some("192.0.2.8".parse().unwrap()), ..udp_53 };
        assert_eq!(conntrack::remove(&[one]).unwrap(), 1);
        assert_eq!(conntrack::remove(&[udp_53]).unwrap(), 2);
        connect_udp("192.0.2.1", "192.0.2.9", "55");
        connect_udp("fd00::1", "fd00::9", "56");
        let several = [55, 56, 57].map(|port| SentTo { port, ..udp_53 });
        assert_eq!(conntrack::remove(&several).unwrap(), 2);
        assert_eq!(conntrack::remove(&[udp_53]).unwrap(), 0);
        let left = run("conntrack", &["-L"]);
        assert_eq!(left.lines().count(), 2, "{left}");
        assert!(left.contains("dport=54") && left.contains("tcp"), "{left}");
    });
}
