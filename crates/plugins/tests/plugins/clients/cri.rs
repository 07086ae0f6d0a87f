// SPDX-License-Identifier: Apache-2.0
//! containerd driven through CRI, like by a kubelet. containerd calls loopback with its own
//! configuration (version 0.3.1) at the same time as the network's plugins. For each pod,
//! containerd sends DEL twice: when the pod is stopped and when it is removed.

mod client;
mod grpc;
mod protobuf;

use testkit::{in_node, run, wait_for};

use self::client::{Cri, Pod};
use super::containerd::{self, CRI_NAMESPACE};
use super::image::{PAGE, SERVER};
use super::node::{ADDRESS, Node, PAGE_OUTSIDE, TIMEOUT, assert_gets, wget_here};

#[test]
fn node_with_network_installed_becomes_ready() {
    in_node(|| {
        let (_node, _containerd) = (Node::new(), containerd::start(CRI_NAMESPACE));
        let cri = Cri::connect();
        assert!(!cri.is_network_ready());
        containerd::install_network();
        wait_for("NetworkReady", TIMEOUT, || cri.is_network_ready());
    });
}

#[test]
fn cri_pods_communicate_and_are_removed() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), containerd::start(CRI_NAMESPACE));
        containerd::install_network();
        let cri = Cri::connect();
        wait_for("NetworkReady", TIMEOUT, || cri.is_network_ready());
        let server = cri.run_pod(&Pod { name: "server", ports: &[(8080, 80)], annotations: &[] });
        let client = cri.run_pod(&Pod { name: "client", ports: &[], annotations: &[] });
        cri.run_container(&server, SERVER);
        let shell = cri.run_container(&client, "sleep 1000");
        let published = format!("http://{ADDRESS}:8080/");
        for (url, page) in
            [(format!("http://{}/", server.ip).as_str(), PAGE), (&published, PAGE), PAGE_OUTSIDE]
        {
            assert_gets(url, page, |url| cri.exec(&shell, &["wget", "-q", "-O", "-", url]));
        }
        node.assert_outside_gets(&published, PAGE);
        assert_gets(&published, PAGE, wget_here);
        let lo = cri.exec(&shell, &["ip", "addr", "show", "lo"]);
        assert!(lo.as_ref().is_ok_and(|text| text.contains("LOOPBACK,UP")), "{lo:?}");
        for sandbox in [server, client] {
            cri.stop_pod(&sandbox);
            cri.stop_pod(&sandbox);
            cri.remove_pod(&sandbox);
        }
        node.assert_clean_except(&["pods0"]);
        assert!(!node.is_served_outside(&published));
    });
}

/// containerd passes the kubelet's bandwidth annotations to the plugin as the capability
/// `bandwidth`.
#[test]
fn cri_pod_with_bandwidth_annotations_is_shaped() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), containerd::start(CRI_NAMESPACE));
        containerd::install_network();
        let cri = Cri::connect();
        wait_for("NetworkReady", TIMEOUT, || cri.is_network_ready());
        let annotations =
            [("kubernetes.io/ingress-bandwidth", "10M"), ("kubernetes.io/egress-bandwidth", "20M")];
        let pod = cri.run_pod(&Pod { name: "slow", ports: &[], annotations: &annotations });
        let shaped = run("tc", &["qdisc", "show"]);
        for rate in ["rate 10Mbit", "rate 20Mbit"] {
            assert!(shaped.contains(rate), "{rate} is missing: {shaped}");
        }
        cri.remove_pod(&pod);
        node.assert_clean_except(&["pods0"]);
    });
}
