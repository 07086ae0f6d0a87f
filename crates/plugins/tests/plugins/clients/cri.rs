// SPDX-License-Identifier: Apache-2.0
//! containerd as a kubelet drives it, through CRI. It calls loopback with a configuration of its own
//! (0.3.1) at the same time as the network's plugins, and sends DEL twice for each pod: when it is
//! stopped and when it is removed.

mod client;
mod grpc;
mod protobuf;

use testkit::{in_node, run, wait_for};

use self::client::{Cri, Pod};
use super::containerd::{self, OF_CRI};
use super::image::{PAGE, SERVER};
use super::node::{ADDRESS, Node, PAGE_OUTSIDE, PATIENCE, gets, wget_here};

#[test]
fn node_is_ready_when_it_has_a_network() {
    in_node(|| {
        let (_node, _containerd) = (Node::new(), containerd::start(OF_CRI));
        let cri = Cri::connect();
        assert!(!cri.is_network_ready());
        containerd::install_network();
        wait_for("NetworkReady", PATIENCE, || cri.is_network_ready());
    });
}

#[test]
fn pods_talk_are_published_and_leave_nothing() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), containerd::start(OF_CRI));
        containerd::install_network();
        let cri = Cri::connect();
        wait_for("NetworkReady", PATIENCE, || cri.is_network_ready());
        let server = cri.run_pod(&Pod { name: "server", ports: &[(8080, 80)], annotations: &[] });
        let client = cri.run_pod(&Pod { name: "client", ports: &[], annotations: &[] });
        cri.run_container(&server, SERVER);
        let shell = cri.run_container(&client, "sleep 1000");
        let published = format!("http://{ADDRESS}:8080/");
        for (url, page) in
            [(format!("http://{}/", server.ip).as_str(), PAGE), (&published, PAGE), PAGE_OUTSIDE]
        {
            gets(url, page, |url| cri.exec(&shell, &["wget", "-q", "-O", "-", url]));
        }
        node.gets_outside(&published, PAGE);
        gets(&published, PAGE, wget_here);
        let lo = cri.exec(&shell, &["ip", "addr", "show", "lo"]);
        assert!(lo.as_ref().is_ok_and(|text| text.contains("LOOPBACK,UP")), "{lo:?}");
        for sandbox in [server, client] {
            cri.stop_pod(&sandbox);
            cri.stop_pod(&sandbox);
            cri.remove_pod(&sandbox);
        }
        node.is_clean_but(&["pods0"]);
        assert!(!node.is_served_outside(&published));
    });
}

/// What kubelet makes of a pod's annotations comes to the plugin as the capability `bandwidth`.
#[test]
fn annotated_pod_is_limited() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), containerd::start(OF_CRI));
        containerd::install_network();
        let cri = Cri::connect();
        wait_for("NetworkReady", PATIENCE, || cri.is_network_ready());
        let annotations =
            [("kubernetes.io/ingress-bandwidth", "10M"), ("kubernetes.io/egress-bandwidth", "20M")];
        let pod = cri.run_pod(&Pod { name: "slow", ports: &[], annotations: &annotations });
        let shaped = run("tc", &["qdisc", "show"]);
        for rate in ["rate 10Mbit", "rate 20Mbit"] {
            assert!(shaped.contains(rate), "{rate} is missing: {shaped}");
        }
        cri.remove_pod(&pod);
        node.is_clean_but(&["pods0"]);
    });
}
