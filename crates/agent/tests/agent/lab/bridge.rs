// SPDX-License-Identifier: Apache-2.0
//! The pods' bridge of a node whose subnet has changed: it keeps the old gateway address, with which the plugin
//! refuses every pod.

use std::fs;
use std::path::Path;

use overlay::stale_bridge;
use serde_json::{Value, json};
use testkit::{Node, Wire, in_netns, wait_for};

use super::{Agent, Store, TIMEOUT};

const CONF: &str = r#"{"EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd05::/48", "Backend": {"Type": "host-gw"}}"#;

/// The agent's CNI configuration.
const CONFLIST: &str = "/run/lab/net.d/10-podwire.conflist";

fn start(node: &Node, more: &[&str]) -> Agent {
    Agent::start(node, &Store::embedded(CONF).and(more))
}

/// Addresses of cni0 as `ip` shows them, without those that the kernel gives.
fn addresses(node: &Node) -> Vec<String> {
    let shown: Value = serde_json::from_str(&node.sh("ip -j address show dev cni0")).unwrap();
    let infos = shown[0]["addr_info"].as_array().unwrap().iter();
    let is_given = |info: &&Value| info["scope"] == "global";
    let prefix = |info: &Value| {
        format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"].as_u64().unwrap())
    };
    let mut addresses: Vec<String> = infos.filter(is_given).map(prefix).collect();
    addresses.sort_unstable();
    addresses
}

/// The gateway addresses of the node's subnets.
fn gateways(node: &Node) -> Vec<String> {
    let env = node.subnet_env();
    ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"].map(|key| env[key].clone()).into()
}

fn wait_for_gateways(node: &Node) {
    wait_for("the new gateway addresses", TIMEOUT, || addresses(node) == gateways(node));
}

/// A bridge of an earlier subnet; the second IPv6 address is an administrator's.
fn old_bridge(node: &Node, ipv4: &str) {
    node.sh(&format!(
        "ip link add cni0 type bridge; ip link set cni0 up; ip address add {ipv4} dev cni0
        ip address add fd05:0:0:ffff::1/64 dev cni0 nodad
        ip address add fd77::1/64 dev cni0 nodad"
    ));
}

/// A port as the plugin makes it, and the result that a runtime keeps for its pod.
fn old_pod(node: &Node, port: &str, name: Option<&str>, address: &str) {
    node.sh(&format!(
        "ip link add {port} type veth peer name p-{port}; ip link set {port} master cni0"
    ));
    let Some(name) = name else { return };
    let entry = json!({
        "kind": "cniCacheV1", "containerId": name, "config": "", "ifName": "eth0",
        "networkName": "cbr0",
        "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", name]],
        "result": {
            "cniVersion": "1.1.0", "interfaces": [{"name": "cni0"}, {"name": port}],
            "ips": [{"address": format!("{address}/24")}],
        },
    });
    fs::create_dir_all("/var/lib/cni/results").unwrap();
    fs::write(format!("/var/lib/cni/results/cbr0-{name}-eth0"), entry.to_string()).unwrap();
}

#[test]
fn empty_bridge_gets_the_new_gateway_addresses() {
    in_netns(|| {
        let node = Wire::new().node(1, true, true);
        // An address outside of the network.
        old_bridge(&node, "10.77.1.1/24");
        let agent = start(&node, &["--cni-conf-dir", "/run/lab/net.d"]);
        agent.wait("status.ready", |status| status.ready && status.problems.is_empty());
        let [v4, v6] = &gateways(&node)[..] else { panic!("two subnets") };
        assert_eq!(addresses(&node), [v4.as_str(), v6.as_str(), "fd77::1/64"]);
        // Another program restores the old address while the agent runs.
        node.sh("ip address flush dev cni0 scope global; ip address add 10.5.0.1/24 dev cni0");
        wait_for("the new gateway address", TIMEOUT, || addresses(&node) == [v4.as_str()]);
        agent.wait("status.ready", |status| status.ready && status.problems.is_empty());
    });
}

#[test]
fn pods_of_the_old_subnet_keep_the_node_unready() {
    in_netns(|| {
        let node = Wire::new().node(1, true, true);
        old_bridge(&node, "10.77.1.1/24");
        old_pod(&node, "veth-web", Some("web"), "10.77.1.2");
        old_pod(&node, "veth-other", None, "");
        let agent = start(&node, &["--cni-conf-dir", "/run/lab/net.d"]);
        let hint = stale_bridge::hint("cni0");
        agent.wait("the names of the pods in the problem", |status| {
            let names = |reason: &String| {
                reason.contains("cni0 has 10.77.1.1/24 and fd05:0:0:ffff::1/64")
                    && reason.contains("default/web (10.77.1.2), interface veth-other. ")
                    && reason.ends_with(&hint)
            };
            !status.ready && status.reasons.len() == 1 && status.reasons.iter().any(names)
        });
        assert!(addresses(&node).contains(&"10.77.1.1/24".to_owned()));
        // A runtime deletes pods by the configuration.
        wait_for("the CNI configuration file", TIMEOUT, || Path::new(CONFLIST).exists());
        node.sh("ip link delete veth-web");
        agent.wait("one pod in the problem", |status| {
            let is_one =
                |reason: &String| reason.contains("Attached to cni0: interface veth-other. ");
            !status.ready && status.reasons.iter().any(is_one)
        });
        node.sh("ip link delete veth-other");
        agent.wait("status.ready", |status| status.ready && status.problems.is_empty());
        assert!(!addresses(&node).contains(&"10.77.1.1/24".to_owned()));
        node.sh("ip address delete fd77::1/64 dev cni0");
        wait_for_gateways(&node);
        assert!(Path::new(CONFLIST).exists());
    });
}

/// Another configuration may give cni0 to another network, and choose the gateway itself.
#[test]
fn foreign_bridge_address_stays_without_cni_conf() {
    in_netns(|| {
        let node = Wire::new().node(1, true, true);
        old_bridge(&node, "10.77.1.1/24");
        let agent = start(&node, &[]);
        agent.wait("status.ready", |status| status.ready && status.problems.is_empty());
        wait_for("removal of the stale address", TIMEOUT, || {
            addresses(&node) == ["10.77.1.1/24", "fd77::1/64"]
        });
        node.sh("ip address add 10.5.0.1/24 dev cni0");
        wait_for("removal of the stale address", TIMEOUT, || {
            addresses(&node) == ["10.77.1.1/24", "fd77::1/64"]
        });
    });
}

#[test]
fn dry_run_shows_changes_of_the_bridge() {
    in_netns(|| {
        let node = Wire::new().node(1, true, true);
        old_bridge(&node, "10.77.1.1/24");
        let lines = || {
            let flags = [node.flags(), Store::embedded(CONF).0].concat();
            let more = super::words(&["--cni-conf-dir", "/run/lab/net.d", "--dry-run"]);
            let flags = [flags, more].concat();
            let settings = super::settings(agent::settings::Command::Agent, &flags, &[]);
            let hub = agent::status::StatusHub::new("node-1", "embedded");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let run = || runtime.unwrap().block_on(agent::run::dry_run(settings, hub)).unwrap();
            kernel::Netns::open(node.ns.path()).unwrap().enter(run).unwrap()
        };
        let told = lines();
        for line in ["remove address 10.77.1.1/24 dev cni0", "add address 10.5.1.1/24 dev cni0"] {
            assert!(told.iter().any(|told| told == line), "{line} in {told:#?}");
        }
        old_pod(&node, "veth-web", None, "");
        let told = lines();
        assert!(told.iter().any(|line| line.starts_with("# cni0 has 10.77.1.1/24")), "{told:#?}");
        assert!(addresses(&node).contains(&"10.77.1.1/24".to_owned()));
    });
}
