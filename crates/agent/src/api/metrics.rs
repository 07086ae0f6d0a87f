// SPDX-License-Identifier: Apache-2.0
//! Metrics in Prometheus' text format. There are no series per peer: a thousand nodes would produce a million of them.
//! docs/health.md lists all metrics.

use std::fmt::Write;

use text::escape;

use crate::status::{ConditionKind, MulticastStatus, PeerCounts, RouteMode, Status, UdpStatus};

/// Content type with the version of the format.
pub(super) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Formats all metrics.
pub(super) fn page(status: &Status) -> String {
    let mut page = Page::default();
    agent(&mut page, status);
    network(&mut page, status);
    peers(&mut page, status);
    work(&mut page, status);
    if let Some(counts) = &status.multicast {
        multicast(&mut page, counts);
    }
    if let Some(counts) = &status.kernel.udp {
        udp(&mut page, counts);
    }
    page.text
}

fn agent(page: &mut Page, status: &Status) {
    let backend = status.membership.network.as_ref().map_or("", |network| &network.backend);
    let labels = [
        ("version", status.agent.version.as_str()),
        ("node", &status.agent.node),
        ("backend", backend),
        ("store", &status.store.kind),
    ];
    page.gauge("podwire_info", "Version, node, backend and store of this agent; always 1.")
        .with(&labels, 1.0);
    page.gauge("podwire_start_time_seconds", "Start time of the agent.")
        .value(status.agent.started.unix());
    page.gauge("podwire_ready", "Whether pods can be attached, as /readyz reports.")
        .value(number(status.ready));
    page.gauge("podwire_healthy", "Whether the agent works, as /healthz reports.")
        .value(number(status.healthy));
    page.gauge("podwire_problem", "Whether this part of the agent has a problem.");
    for kind in ConditionKind::ALL {
        let has_failed = status.problems.contains_key(&kind);
        page.with(&[("part", kind.name())], number(has_failed));
    }
}

fn network(page: &mut Page, status: &Status) {
    page.gauge("podwire_store_reachable", "Whether the store is reachable.")
        .value(number(status.store.reachable == Some(true)));
    page.gauge(
        "podwire_store_since_seconds",
        "Time of the last change of podwire_store_reachable.",
    )
    .value(status.store.since.unix());
    if let Some(until) = status.membership.lease_until {
        page.gauge("podwire_lease_end_seconds", "Expiry of the lease unless it is renewed.")
            .value(until.unix());
    }
    if let Some(watch) = status.membership.watch {
        page.gauge(
            "podwire_watch_revision",
            "Store revision up to which the agent has processed changes.",
        )
        .value(watch.revision as f64);
        page.gauge("podwire_watch_behind", "Number of store revisions not processed yet.")
            .value(watch.behind as f64);
    }
    if let Some(network) = &status.membership.network {
        page.gauge("podwire_pod_mtu_bytes", "MTU of pods.").value(network.pod_mtu.into());
        page.gauge("podwire_underlay_mtu_bytes", "MTU of the interface to other nodes.")
            .with(&[("interface", &network.underlay.name)], network.underlay.mtu.into());
    }
}

fn peers(page: &mut Page, status: &Status) {
    let counts = status.peers.counts;
    let PeerCounts { total, direct, tunnel, rejected, .. } = counts;
    let none = total - direct - tunnel - rejected;
    page.gauge("podwire_peers", "Other nodes, by the path to them.");
    let routes = [
        (RouteMode::Direct, direct),
        (RouteMode::Tunnel, tunnel),
        (RouteMode::None, none),
        (RouteMode::Rejected, rejected),
    ];
    for (route, count) in routes {
        page.with(&[("way", route.name())], count as f64);
    }
    page.gauge("podwire_peers_with_problem", "Other nodes with a problem found by the path check.")
        .value(counts.with_problem as f64);
    page.gauge("podwire_refused", "Other nodes or subnets of other nodes that are rejected.")
        .value(status.peers.rejected_total as f64);
    page.gauge("podwire_conflicts", "Conflicting kernel objects not managed by podwire.")
        .value(status.kernel.conflicts_total as f64);
}

fn work(page: &mut Page, status: &Status) {
    page.family(
        "podwire_repairs_total",
        "counter",
        "Repairs of kernel state and files changed by other programs.",
    );
    for (kind, count) in &status.kernel.repairs.counts {
        page.with(&[("kind", kind.name())], *count as f64);
    }
    if let Some(comparison) = status.kernel.comparison {
        page.gauge(
            "podwire_compare_time_seconds",
            "End of the last full comparison with the kernel.",
        )
        .value(comparison.at.unix());
        page.gauge("podwire_compare_duration_seconds", "Duration of the last full comparison.")
            .value(comparison.seconds);
        page.gauge("podwire_compare_changes", "Changes made by the last full comparison.")
            .value(comparison.changes as f64);
    }
}

fn multicast(page: &mut Page, counts: &MulticastStatus) {
    page.gauge("podwire_multicast_groups", "Multicast groups that pods of this node have joined.")
        .value(counts.groups as f64);
    let packets =
        [("carried", counts.carried), ("sent", counts.sent), ("delivered", counts.delivered)];
    page.family(
        "podwire_multicast_packets_total",
        "counter",
        "Multicast and broadcast packets by outcome.",
    );
    for (what, count) in packets {
        page.with(&[("what", what)], count as f64);
    }
    page.family(
        "podwire_multicast_lost_total",
        "counter",
        "Multicast and broadcast packets dropped, by reason.",
    );
    for (reason, count) in &counts.dropped {
        page.with(&[("why", reason)], *count as f64);
    }
}

fn udp(page: &mut Page, counts: &UdpStatus) {
    let directions = [("sent", counts.sent), ("received", counts.received)];
    page.family("podwire_udp_packets_total", "counter", "Packets of the udp backend.");
    for (direction, flow) in &directions {
        page.with(&[("direction", direction)], flow.packets as f64);
    }
    page.family("podwire_udp_bytes_total", "counter", "Bytes of the udp backend.");
    for (direction, flow) in &directions {
        page.with(&[("direction", direction)], flow.bytes as f64);
    }
    page.family(
        "podwire_udp_lost_total",
        "counter",
        "Packets of the udp backend dropped, by reason.",
    );
    for (reason, count) in &counts.dropped {
        page.with(&[("why", reason)], *count as f64);
    }
}

fn number(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

/// A page under construction. Samples belong to the family started last.
#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn gauge(&mut self, name: &'static str, help: &str) -> &mut Page {
        self.family(name, "gauge", help)
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Page {
        self.name = name;
        self.text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self
    }

    fn value(&mut self, value: f64) {
        self.with(&[], value);
    }

    fn with(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text += self.name;
        for (at, (name, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let value =
                escape::line(value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Writing to a string does not fail.
            let _ = write!(self.text, "{before}{name}=\"{value}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{after} {value}");
    }
}
