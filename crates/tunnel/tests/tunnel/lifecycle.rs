// SPDX-License-Identifier: Apache-2.0
//! Start and end of a tunnel.

use std::net::UdpSocket;
use std::time::Duration;

use testkit::{in_netns, wait_for};
use tunnel::Tunnel;

use crate::lab::{DEVICE, nodes, nodes_with_tunnels, ping};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn stopped_tunnel_removes_its_interface() {
    in_netns(|| {
        let [a, _b] = nodes();
        let tunnel = a.start();
        let link = &a.ns.ip_json(&["link", "show", DEVICE])[0];
        assert_eq!(link["linkinfo"]["info_data"]["vnet_hdr"], true, "{link}");
        assert_eq!(link["linkinfo"]["info_data"]["multi_queue"], true, "{link}");
        tunnel.stop();
        a.ns.try_exec("ip", &["link", "show", DEVICE]).unwrap_err();
        drop(a.start());
        a.ns.try_exec("ip", &["link", "show", DEVICE]).unwrap_err();
    });
}

#[test]
fn start_with_taken_name_or_port_leaves_nothing() {
    in_netns(|| {
        let [a, _b] = nodes();
        let start = || a.netns().enter(|| Tunnel::start(&a.config())).unwrap();
        let first = a.start();
        let error = start().unwrap_err();
        let tunnel::Error::Open { cause, .. } = &error else { panic!("{error}") };
        assert!(cause.already_exists(), "{cause}");
        first.stop();
        let other = a.netns().enter(|| UdpSocket::bind(a.config().listen)).unwrap().unwrap();
        let error = start().unwrap_err();
        let tunnel::Error::Open { cause, .. } = &error else { panic!("{error}") };
        assert!(cause.to_string().contains("192.0.2.1:8285"), "{cause}");
        a.ns.try_exec("ip", &["link", "show", DEVICE]).unwrap_err();
        drop(other);
        start().unwrap();
    });
}

#[test]
fn tunnel_without_interface_reports_failure() {
    in_netns(|| {
        let ([a, b], [tunnel, _other]) = nodes_with_tunnels();
        ping(&a.pod, &b.pod_v4()).unwrap();
        assert_eq!(tunnel.failure(), None);
        a.ip(&format!("link del {DEVICE}"));
        wait_for("tunnel.failure", TIMEOUT, || tunnel.failure().is_some());
        tunnel.stop();
        let again = a.start();
        assert_eq!(again.set_peers(&b.peers()), []);
        ping(&a.pod, &b.pod_v4()).unwrap();
    });
}

#[test]
fn interface_down_loses_only_packets_meanwhile() {
    in_netns(|| {
        let ([a, b], tunnels) = nodes_with_tunnels();
        b.ip(&format!("link set {DEVICE} down"));
        ping(&a.pod, &b.pod_v4()).unwrap_err();
        assert_eq!(tunnels[1].counts().dropped.not_taken, 1);
        b.ip(&format!("link set {DEVICE} up"));
        b.ip(&format!("route replace 10.244.0.0/16 dev {DEVICE}"));
        ping(&a.pod, &b.pod_v4()).unwrap();
        assert_eq!(tunnels.map(|tunnel| tunnel.failure()), [None, None]);
    });
}
