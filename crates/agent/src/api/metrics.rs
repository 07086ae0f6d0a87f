// SPDX-License-Identifier: Apache-2.0
//! The hub in Prometheus' text format. No series is of a single peer: with a thousand nodes that
//! would be a million of them. docs/health.md lists all of this.

use std::fmt::Write;

use text::escape;

use crate::status::{ConditionKind, Multicast, PeerCounts, Status, Way};

/// The format's version is part of its type.
pub const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is measured.
pub fn page(status: &Status) -> String {
    let mut page = Page::default();
    agent(&mut page, status);
    network(&mut page, status);
    peers(&mut page, status);
    work(&mut page, status);
    if let Some(counts) = &status.multicast {
        multicast(&mut page, counts);
    }
    page.text
}

fn agent(page: &mut Page, status: &Status) {
    let backend = status.session.as_ref().map_or("", |session| &session.backend);
    let labels = [
        ("version", status.version.as_str()),
        ("node", &status.node),
        ("backend", backend),
        ("store", &status.store.kind),
    ];
    page.gauge("podwire_info", "What runs here; always 1.").with(&labels, 1.0);
    page.gauge("podwire_start_time_seconds", "When the agent was started.")
        .value(status.started.unix());
    page.gauge("podwire_ready", "Whether pods can be connected, as /readyz says.")
        .value(number(status.ready));
    page.gauge("podwire_healthy", "Whether the agent works, as /healthz says.")
        .value(number(status.healthy));
    page.gauge("podwire_problem", "Whether something is wrong with a part of the agent's work.");
    for part in ConditionKind::ALL {
        let is_broken = status.problems.contains_key(&part);
        page.with(&[("part", part.name())], number(is_broken));
    }
}

fn network(page: &mut Page, status: &Status) {
    page.gauge("podwire_store_reachable", "Whether the store answers.")
        .value(number(status.store.reachable == Some(true)));
    page.gauge("podwire_store_since_seconds", "Since when it does, or does not.")
        .value(status.store.since.unix());
    if let Some(until) = status.lease_until {
        page.gauge("podwire_lease_end_seconds", "When the lease ends unless it is renewed.")
            .value(until.unix());
    }
    if let Some(watch) = status.watch {
        page.gauge("podwire_watch_revision", "The store's revision that all is known of.")
            .value(watch.revision as f64);
        page.gauge("podwire_watch_behind", "How many revisions the store is ahead of that.")
            .value(watch.behind as f64);
    }
    if let Some(session) = &status.session {
        page.gauge("podwire_pod_mtu_bytes", "What pods may send at once.")
            .value(session.pod_mtu.into());
        page.gauge(
            "podwire_underlay_mtu_bytes",
            "What the interface to other nodes sends at once.",
        )
        .with(&[("interface", &session.underlay.name)], session.underlay.mtu.into());
    }
}

fn peers(page: &mut Page, status: &Status) {
    let counts = status.peer_counts;
    let PeerCounts { total, direct, tunnel, refused, .. } = counts;
    let none = total - direct - tunnel - refused;
    page.gauge("podwire_peers", "Other nodes, by the way that packets take to them.");
    let ways =
        [(Way::Direct, direct), (Way::Tunnel, tunnel), (Way::None, none), (Way::Refused, refused)];
    for (way, count) in ways {
        page.with(&[("way", way.name())], count as f64);
    }
    page.gauge("podwire_peers_with_problem", "Other nodes that the path check has trouble with.")
        .value(counts.with_problem as f64);
    page.gauge("podwire_refused", "Other nodes, or subnets of theirs, that are not served.")
        .value(status.refused_total as f64);
    page.gauge("podwire_conflicts", "Things of others that are in the way.")
        .value(status.conflicts_total as f64);
}

fn work(page: &mut Page, status: &Status) {
    page.family("podwire_repairs_total", "counter", "What others broke and the agent put right.");
    for (kind, count) in &status.repairs.counts {
        page.with(&[("kind", kind.name())], *count as f64);
    }
    if let Some(compare) = status.compare {
        page.gauge("podwire_compare_time_seconds", "When the last full comparison ended.")
            .value(compare.at.unix());
        page.gauge("podwire_compare_duration_seconds", "How long it took.").value(compare.seconds);
        page.gauge("podwire_compare_changes", "How much it changed.").value(compare.changes as f64);
    }
}

fn multicast(page: &mut Page, counts: &Multicast) {
    page.gauge("podwire_multicast_groups", "Groups that this node's pods are in.")
        .value(counts.groups as f64);
    let packets =
        [("carried", counts.carried), ("sent", counts.sent), ("delivered", counts.delivered)];
    page.family(
        "podwire_multicast_packets_total",
        "counter",
        "Packets for many, by what became of them.",
    );
    for (what, count) in packets {
        page.with(&[("what", what)], count as f64);
    }
    page.family(
        "podwire_multicast_lost_total",
        "counter",
        "Packets for many that were not carried.",
    );
    for (why, count) in &counts.lost {
        page.with(&[("why", why)], *count as f64);
    }
}

fn number(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

/// A page as it grows. Samples belong to the family begun last.
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
            // Writing into text does not fail.
            let _ = write!(self.text, "{before}{name}=\"{value}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{after} {value}");
    }
}
