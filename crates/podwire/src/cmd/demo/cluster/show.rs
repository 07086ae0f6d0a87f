// SPDX-License-Identifier: Apache-2.0
//! Results of the demo with several nodes, as text and as JSON.

use std::time::Duration;

use agent_client::pools::View;
use serde_json::{Value, json};

use super::network::Network;
use super::node::Node;
use super::{Cluster, underlay};
use crate::cmd::demo::drawing::{self, Picture, draw};
use crate::cmd::demo::probe::{Echo, Fetched};
use crate::cmd::demo::show::{median, micros, name_of};
use crate::cmd::{ipam, pool};
use crate::output;

/// Bridge that the plugin `flannel` creates through its delegate.
const BRIDGE: &str = "cni0";
/// Maximum number of pods per node in the drawing.
const MAX_PODS: usize = 5;

/// Echoes, with the node of each pod.
#[derive(Debug)]
pub(crate) struct Pings {
    echoes: Vec<Echo>,
    node_of_pods: Vec<usize>,
}

impl Pings {
    pub(crate) fn new(cluster: &Cluster, echoes: Vec<Echo>) -> Pings {
        Pings { echoes, node_of_pods: cluster.node_of_pods() }
    }

    fn is_across(&self, echo: &Echo) -> bool {
        self.node_of_pods[echo.from] != self.node_of_pods[echo.to]
    }

    /// One line for pairs on the same node, and one for pairs on different nodes.
    pub(crate) fn lines(&self) -> String {
        let line = |is_across: bool, pairs_on: &str| {
            let selected = self.echoes.iter().filter(|echo| self.is_across(echo) == is_across);
            let times: Vec<Duration> = selected.map(|echo| echo.time).collect();
            let median = output::duration(median(times.iter().copied()));
            match times.len() {
                0 => String::new(),
                pairs => {
                    format!("{:<9} {pairs_on}: all {pairs} pairs answer, median {median}\n", "ping")
                }
            }
        };
        line(false, "on one node") + &line(true, "across nodes")
    }

    /// Summary of the echoes that the pods of one node sent.
    fn of_node(&self, at: usize) -> String {
        let own = self.echoes.iter().filter(|echo| self.node_of_pods[echo.from] == at);
        let times: Vec<Duration> = own.map(|echo| echo.time).collect();
        format!("{}, median {}", times.len(), output::duration(median(times.iter().copied())))
    }
}

pub(crate) fn picture(cluster: &Cluster) -> String {
    let (network, length) = (underlay::NETWORK, underlay::PREFIX_LEN);
    draw(&Picture {
        title: format!("underlay ({})", name_of(&cluster.underlay.path)),
        bridge: format!("bridge {}   {network}/{length}", underlay::BRIDGE),
        nodes: cluster.nodes.iter().map(|node| drawn_node(cluster, node)).collect(),
    })
}

fn drawn_node(cluster: &Cluster, node: &Node) -> drawing::Node {
    let mut lines = vec![node.name.clone()];
    if let Some(device) = cluster.network.device() {
        lines.push(format!("{device}  {}", cluster.network.name()));
    }
    lines.push(match cluster.network {
        Network::Bridged(_) => {
            let gateway = node.lab.pods.first().and_then(|pod| pod.result.ips.first()?.gateway);
            let length = node.subnet.map(|subnet| subnet.prefix_len()).unwrap_or_default();
            let shown = gateway.map(|ip| format!("{ip}/{length}"));
            format!("{BRIDGE}  {}", shown.unwrap_or_default())
        }
        Network::Routed(_) => format!("block  {}", node.shown_subnet()),
    });
    let pods = &node.lab.pods;
    for (at, pod) in pods.iter().take(MAX_PODS).enumerate() {
        let end = if at + 1 == pods.len() { '└' } else { '├' };
        let ips: Vec<String> = pod.ips().map(|ip| ip.to_string()).collect();
        lines.push(format!("{end} {}  {}", pod.name, ips.join(" ")));
    }
    if pods.len() > MAX_PODS {
        lines.push(format!("└ … and {} more", pods.len() - MAX_PODS));
    }
    drawing::Node { link: format!("{} {}", underlay::INTERFACE, node.address), lines }
}

/// One row per node.
pub(crate) fn nodes(cluster: &Cluster, pings: &Pings) -> String {
    let rows = cluster.nodes.iter().enumerate().map(|(at, node)| {
        [
            node.name.clone(),
            node.shown_subnet(),
            node.address.to_string(),
            cluster.network.name().to_owned(),
            output::duration(node.ready_after),
            node.lab.pods.len().to_string(),
            pings.of_node(at),
        ]
    });
    let [subnet, network] = match cluster.network {
        Network::Bridged(_) => ["SUBNET", "BACKEND"],
        Network::Routed(_) => ["BLOCK", "ENCAPSULATION"],
    };
    output::table(["NODE", subnet, "UNDERLAY", network, "READY AFTER", "PODS", "PINGS"], rows)
}

/// The pool with its blocks, as `podwire ipam show --blocks` shows them.
pub(crate) fn pools(view: Option<&View>) -> String {
    let Some(view) = view else { return String::new() };
    format!("\n{}\n{}", pool::pools(view), ipam::blocks(view))
}

/// Commands for inspecting a kept demo.
pub(crate) fn how_to_inspect(cluster: &Cluster) -> String {
    let pods = cluster.pods();
    let (Some(node), [first, .., last]) = (cluster.nodes.first(), pods.as_slice()) else {
        return String::new();
    };
    let (pod, node) = (name_of(&first.path), name_of(&node.lab.node));
    let other = last.ips().next().map(|ip| ip.to_string()).unwrap_or_default();
    format!(
        "The agents end with this command, everything else is still up. Inspect it:\n  \
         ip netns exec {pod} ping -c 3 {other}\n  \
         ip netns exec {node} ip -d link\n  \
         ip netns exec {node} ip route\n  \
         ip netns exec {} bridge link\n\
         Remove it:\n  podwire demo --clean\n",
        name_of(&cluster.underlay.path),
    )
}

pub(crate) fn json(cluster: &Cluster, pings: &Pings, fetched: &[Fetched]) -> Value {
    let pods = cluster.pods();
    let (key, subnet) = match cluster.network {
        Network::Bridged(_) => ("backend", "subnet"),
        Network::Routed(_) => ("encapsulation", "block"),
    };
    json!({
        key: cluster.network.name(),
        "underlay": {"netns": cluster.underlay.path, "bridge": underlay::BRIDGE},
        "nodes": cluster.nodes.iter().map(|node| json!({
            "name": node.name,
            "netns": node.lab.node,
            "underlay": node.address,
            subnet: node.subnet,
            "readyMicros": micros(node.ready_after),
        })).collect::<Vec<_>>(),
        "pods": pods.iter().zip(&pings.node_of_pods).map(|(pod, at)| json!({
            "name": pod.name,
            "node": cluster.nodes[*at].name,
            "netns": pod.path,
            "hostInterface": pod.host_interface(),
            "ips": pod.ips().collect::<Vec<_>>(),
            "addMicros": micros(pod.took),
        })).collect::<Vec<_>>(),
        "firstPing": {
            "from": cluster.first_ping.from,
            "to": cluster.first_ping.to,
            "micros": micros(cluster.first_ping.after),
        },
        "pings": pings.echoes.iter().map(|echo| json!({
            "from": pods[echo.from].name,
            "to": pods[echo.to].name,
            "isAcrossNodes": pings.is_across(echo),
            "address": echo.address,
            "micros": micros(echo.time),
        })).collect::<Vec<_>>(),
        "pages": fetched.iter().map(|fetched| json!({
            "url": fetched.url,
            "page": fetched.page,
            "micros": micros(fetched.time),
        })).collect::<Vec<_>>(),
    })
}
