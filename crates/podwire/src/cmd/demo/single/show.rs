// SPDX-License-Identifier: Apache-2.0
//! Results of the demo with a single node, as text and as JSON.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::BRIDGE;
use crate::cmd::demo::drawing::{Node, Picture, draw};
use crate::cmd::demo::lab::{Lab, Pod};
use crate::cmd::demo::probe::{Echo, Fetched};
use crate::cmd::demo::show::{median, micros, name_of};
use crate::output;

/// Maximum width of the matrix; more columns do not fit on a screen.
const MAX_MATRIX: usize = 6;

pub(crate) fn picture(lab: &Lab) -> String {
    let pods = lab.pods.iter().map(|pod| Node {
        link: pod.host_interface().to_owned(),
        lines: [pod.name.clone()]
            .into_iter()
            .chain(pod.result.ips.iter().map(|ip| ip.address.to_string()))
            .collect(),
    });
    draw(&Picture {
        title: format!("node ({})", name_of(&lab.node)),
        bridge: format!("bridge {BRIDGE}   {}", gateways(&lab.pods).join("   ")),
        nodes: pods.collect(),
    })
}

fn gateways(pods: &[Pod]) -> Vec<String> {
    let ips = pods.first().map_or(&[][..], |pod| &pod.result.ips);
    let with_length =
        ips.iter().filter_map(|ip| Some(format!("{}/{}", ip.gateway?, ip.address.prefix_len())));
    with_length.collect()
}

/// One row per pod.
pub(crate) fn pods(lab: &Lab) -> String {
    let rows = lab.pods.iter().map(|pod| {
        let ip = |is_v6: bool| {
            let found = pod.ips().find(|ip| ip.is_ipv6() == is_v6);
            found.map(|ip| ip.to_string()).unwrap_or_default()
        };
        [pod.name.clone(), ip(false), ip(true), name_of(&pod.path), output::duration(pod.took)]
    });
    output::table(["POD", "IPV4", "IPV6", "NAMESPACE", "ADD TOOK"], rows)
}

/// Round-trip times from each pod (rows) to each other pod (columns).
pub(crate) fn round_trips(pods: &[Pod], echoes: &[Echo]) -> String {
    if pods.len() > MAX_MATRIX {
        return String::new();
    }
    let mut text = String::from("Round trips in µs, IPv4 / IPv6:\n");
    let cell = |from: usize, to: usize| {
        let between = echoes.iter().filter(|echo| (echo.from, echo.to) == (from, to));
        let times: Vec<String> = between.map(|echo| echo.time.as_micros().to_string()).collect();
        times.join(" / ")
    };
    let mut rows = vec![
        [String::new()]
            .into_iter()
            .chain(pods.iter().map(|pod| format!("→ {}", pod.name)))
            .collect::<Vec<_>>(),
    ];
    for (from, pod) in pods.iter().enumerate() {
        rows.push(
            [pod.name.clone()]
                .into_iter()
                .chain((0..pods.len()).map(|to| cell(from, to)))
                .collect(),
        );
    }
    text += &output::grid(rows);
    text
}

/// One line for the echoes of one address family.
pub(crate) fn summary(echoes: &[Echo], is_v6: bool) -> String {
    let same_family = echoes.iter().filter(|echo| echo.address.is_ipv6() == is_v6);
    let times: Vec<Duration> = same_family.map(|echo| echo.time).collect();
    let family = if is_v6 { "IPv6" } else { "IPv4" };
    let median = median(times.iter().copied());
    format!("{family}: all {} pairs answer, median {}", times.len(), output::duration(median))
}

/// Commands for inspecting a kept demo.
pub(crate) fn how_to_inspect(lab: &Lab) -> String {
    let Some(pod) = lab.pods.first() else { return String::new() };
    let (pod_name, node) = (name_of(&pod.path), name_of(&lab.node));
    let other = lab.pods.last().and_then(|pod| pod.ips().next()).map(|ip: IpAddr| ip.to_string());
    format!(
        "Everything is still up. Inspect it:\n  \
         ip netns exec {pod_name} ip addr\n  \
         ip netns exec {pod_name} ping -c 3 {}\n  \
         ip netns exec {node} ip -d link show master {BRIDGE}\n  \
         nsenter --net={} sh\n\
         Remove it:\n  podwire demo --clean\n",
        other.unwrap_or_default(),
        pod.path.display(),
    )
}

pub(crate) fn json(lab: &Lab, echoes: &[Echo], fetched: &[Fetched]) -> Value {
    let name = |at: usize| lab.pods[at].name.as_str();
    json!({
        "node": lab.node,
        "bridge": BRIDGE,
        "pods": lab.pods.iter().map(|pod| json!({
            "name": pod.name,
            "netns": pod.path,
            "hostInterface": pod.host_interface(),
            "ips": pod.ips().collect::<Vec<_>>(),
            "addMicros": micros(pod.took),
        })).collect::<Vec<_>>(),
        "pings": echoes.iter().map(|echo| json!({
            "from": name(echo.from),
            "to": name(echo.to),
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
