// SPDX-License-Identifier: Apache-2.0
//! The nodes and what became of their pings, as text for people and as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::node::Node;
use super::{Cluster, underlay};
use crate::demo::drawing::{Hung, Picture, draw};
use crate::demo::probe::{Echo, Fetched};
use crate::demo::show::{median, micros, name_of};
use crate::output;

/// The bridge that flannel's delegate makes.
const BRIDGE: &str = "cni0";
/// Of a node's pods in the drawing.
const PODS_MOST: usize = 5;

/// Echoes, and between which nodes.
#[derive(Debug)]
pub struct Pings {
    echoes: Vec<Echo>,
    places: Vec<usize>,
}

impl Pings {
    pub fn new(cluster: &Cluster, echoes: Vec<Echo>) -> Pings {
        Pings { echoes, places: cluster.places() }
    }

    fn is_across(&self, echo: &Echo) -> bool {
        self.places[echo.from] != self.places[echo.to]
    }

    /// A line for those on one node and a line for the others.
    pub fn lines(&self) -> String {
        let line = |is_across: bool, what: &str| {
            let some = self.echoes.iter().filter(|echo| self.is_across(echo) == is_across);
            let times: Vec<Duration> = some.map(|echo| echo.time).collect();
            let median = output::duration(median(times.iter().copied()));
            match times.len() {
                0 => String::new(),
                pairs => {
                    format!("{:<9} {what}: all {pairs} pairs answer, median {median}\n", "ping")
                }
            }
        };
        line(false, "on one node") + &line(true, "across nodes")
    }

    /// Of the echoes that one node's pods sent.
    fn of_node(&self, at: usize) -> String {
        let own = self.echoes.iter().filter(|echo| self.places[echo.from] == at);
        let times: Vec<Duration> = own.map(|echo| echo.time).collect();
        format!("{}, median {}", times.len(), output::duration(median(times.iter().copied())))
    }
}

/// The drawing.
pub fn picture(cluster: &Cluster) -> String {
    let (network, length) = (underlay::NETWORK, underlay::PREFIX_LEN);
    draw(&Picture {
        title: format!("underlay ({})", name_of(&cluster.underlay.path)),
        bridge: format!("bridge {}   {network}/{length}", underlay::BRIDGE),
        below: cluster.nodes.iter().map(|node| hung(cluster, node)).collect(),
    })
}

fn hung(cluster: &Cluster, node: &Node) -> Hung {
    let mut lines = vec![node.name.clone()];
    if let Some(device) = cluster.backend.device() {
        lines.push(format!("{device}  {}", cluster.backend.name()));
    }
    let gateway = node.lab.pods.first().and_then(|pod| pod.result.ips.first()?.gateway);
    let shown = gateway.map(|ip| format!("{ip}/{}", node.subnet.prefix_len()));
    lines.push(format!("{BRIDGE}  {}", shown.unwrap_or_default()));
    let pods = &node.lab.pods;
    for (at, pod) in pods.iter().take(PODS_MOST).enumerate() {
        let end = if at + 1 == pods.len() { '└' } else { '├' };
        let ips: Vec<String> = pod.ips().map(|ip| ip.to_string()).collect();
        lines.push(format!("{end} {}  {}", pod.name, ips.join(" ")));
    }
    if pods.len() > PODS_MOST {
        lines.push(format!("└ … and {} more", pods.len() - PODS_MOST));
    }
    Hung { wire: format!("{} {}", underlay::INTERFACE, node.address), lines }
}

/// One row for each node.
pub fn nodes(cluster: &Cluster, pings: &Pings) -> String {
    let rows = cluster.nodes.iter().enumerate().map(|(at, node)| {
        [
            node.name.clone(),
            node.subnet.to_string(),
            node.address.to_string(),
            cluster.backend.name().to_owned(),
            output::duration(node.ready_after),
            node.lab.pods.len().to_string(),
            pings.of_node(at),
        ]
    });
    output::table(["NODE", "SUBNET", "UNDERLAY", "BACKEND", "READY AFTER", "PODS", "PINGS"], rows)
}

/// How to look inside what was kept.
pub fn how_to_look(cluster: &Cluster) -> String {
    let pods = cluster.pods();
    let (Some(node), [first, .., last]) = (cluster.nodes.first(), pods.as_slice()) else {
        return String::new();
    };
    let (pod, node) = (name_of(&first.path), name_of(&node.lab.node));
    let other = last.ips().next().map(|ip| ip.to_string()).unwrap_or_default();
    format!(
        "Everything is still up but the agents, which end with this command. Look inside:\n  \
         ip netns exec {pod} ping -c 3 {other}\n  \
         ip netns exec {node} ip -d link\n  \
         ip netns exec {node} ip route\n  \
         ip netns exec {} bridge link\n\
         Remove it:\n  podwire demo --clean\n",
        name_of(&cluster.underlay.path),
    )
}

/// All of it for programs.
pub fn json(cluster: &Cluster, pings: &Pings, fetched: &[Fetched]) -> Value {
    let pods = cluster.pods();
    json!({
        "backend": cluster.backend.name(),
        "underlay": {"netns": cluster.underlay.path, "bridge": underlay::BRIDGE},
        "nodes": cluster.nodes.iter().map(|node| json!({
            "name": node.name,
            "netns": node.lab.node,
            "underlay": node.address,
            "subnet": node.subnet,
            "readyMicros": micros(node.ready_after),
        })).collect::<Vec<_>>(),
        "pods": pods.iter().zip(&pings.places).map(|(pod, at)| json!({
            "name": pod.name,
            "node": cluster.nodes[*at].name,
            "netns": pod.path,
            "hostInterface": pod.wire(),
            "ips": pod.ips().collect::<Vec<_>>(),
            "addMicros": micros(pod.took),
        })).collect::<Vec<_>>(),
        "firstPing": {
            "from": cluster.first.from,
            "to": cluster.first.to,
            "micros": micros(cluster.first.after),
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
