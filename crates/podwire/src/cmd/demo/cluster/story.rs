// SPDX-License-Identifier: Apache-2.0
//! What happens when something breaks: a repair, a node that leaves, a node that joins.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use agent::status::StatusHub;
use anyhow::{Context, Result, anyhow, ensure};
use ipnet::IpNet;
use kernel::events::{Events, Topic};
use kernel::route::{self, RouteFilter};
use kernel::{Netlink, Netns, link};
use serde_json::{Value, json};

use super::build::{self, PATIENCE};
use super::node::Node;
use super::{Backend, Cluster, Site};
use crate::demo::lab::Pod;
use crate::demo::probe;
use crate::demo::progress::Progress;
use crate::demo::show::micros;
use crate::interrupt::Stop;
use crate::output::duration;

/// Plays all of it; what happened, for programs.
pub fn play(cluster: &mut Cluster, site: Site<'_>, progress: &mut Progress) -> Result<Value> {
    let repaired = repair(cluster, site.stop, progress)?;
    let others = cluster.nodes.len();
    let lost = cluster.nodes.pop().context("there is no node")?;
    let left = lose(cluster, lost, site, progress)?;
    let joined = join(cluster, others, site, progress)?;
    progress.text("\n")?;
    Ok(json!([repaired, left, joined]))
}

/// Breaks the way from the second node to the others, and watches its agent repair it.
fn repair(cluster: &Cluster, stop: &Stop, progress: &mut Progress) -> Result<Value> {
    let [other, victim, ..] = cluster.nodes.as_slice() else {
        return Ok(Value::Null);
    };
    let (from, to) = (first_pod(victim)?, first_pod(other)?);
    let hub = &victim.agent.hub;
    let before = repairs(hub);
    let (started, at) = (Instant::now(), SystemTime::now());
    let broken = break_way(cluster.backend, &victim.lab.netns, other.subnet)
        .with_context(|| format!("break something on {}", victim.name))?;
    let address = to.ips().next().context("a pod has no address")?;
    let deadline = started + PATIENCE;
    let answered = || from.netns.enter(|| probe::ping_until(address, deadline, stop))?;
    answered().with_context(|| format!("after {broken} was deleted on {}", victim.name))?;
    let answered_after = started.elapsed();
    // The agent tells of a repair a moment after it is done.
    while repairs(hub) == before {
        answered()?;
        ensure!(Instant::now() < deadline, "{} did not tell of a repair", victim.name);
    }
    let things = repairs(hub) - before;
    let last = hub.summary().repairs.last.last().map(|repair| repair.at.0);
    let repaired_after = last.and_then(|last| last.duration_since(at).ok()).unwrap_or_default();
    let text = format!(
        "{broken} deleted on {}: its agent put {} right in {}; pods talk again after {}",
        victim.name,
        count(things),
        duration(repaired_after),
        duration(answered_after),
    );
    progress.step("repair", &text)?;
    Ok(json!({
        "event": "repair", "node": victim.name, "deleted": broken, "repairs": things,
        "repairedMicros": micros(repaired_after), "answeredMicros": micros(answered_after),
    }))
}

fn count(things: u64) -> String {
    if things == 1 { "1 thing".to_owned() } else { format!("{things} things") }
}

fn repairs(hub: &StatusHub) -> u64 {
    hub.summary().repairs.counts.values().sum()
}

/// Deletes the tunnel's interface, or without one the route to a peer; tells what it was.
fn break_way(backend: Backend, netns: &Netns, subnet: IpNet) -> Result<String> {
    let nl = netns.netlink()?;
    if let Some(device) = backend.device() {
        nl.apply([link::remove(device.parse::<kernel::IfName>()?)])?;
        return Ok(device.to_owned());
    }
    let route = routes(&nl, subnet)?.pop().context("there is no route to break")?;
    // The next hop's own link and gateway are shown with it, and must not be said with it.
    let (oif, gateway) = route.nexthop.map_or((route.oif, route.gateway), |_| (None, None));
    nl.apply([route::remove(&route::Route { oif, gateway, ..route })])?;
    Ok(format!("the route to {subnet}"))
}

fn routes(nl: &Netlink, subnet: IpNet) -> Result<Vec<route::Route>> {
    let mut routes = route::list(nl, RouteFilter::default())?;
    routes.retain(|route| route.dst == subnet.trunc());
    Ok(routes)
}

/// Stops a node's agent, which the network survives; then the node leaves for good.
fn lose(
    cluster: &Cluster,
    mut lost: Node,
    site: Site<'_>,
    progress: &mut Progress,
) -> Result<Value> {
    lost.agent.stop();
    let name = &lost.name;
    let text = if site.backend.outlives_agent() {
        let answered = ping_across(cluster, &lost, site.stop)?;
        format!("{name}'s agent stopped: its pods go on, all {answered} pairs answer")
    } else {
        format!("{name}'s agent stopped, and with it what carried its packets")
    };
    progress.step("loss", &text)?;
    let (removed, dropped) = leave(cluster, &lost, site.stop)?;
    let text = format!(
        "{name} cleaned up, {} with its lease {}: no node has a route there after {}",
        count(removed as u64),
        lost.subnet,
        duration(dropped)
    );
    progress.step("loss", &text)?;
    lost.lab.detach_pods()?;
    Ok(json!({
        "event": "loss", "node": name, "subnet": lost.subnet, "removed": removed,
        "droppedMicros": micros(dropped),
    }))
}

/// How many things were removed on the node, and how long the others had a route to it.
fn leave(cluster: &Cluster, lost: &Node, stop: &Stop) -> Result<(usize, Duration)> {
    let watched = cluster.nodes.iter().map(|node| Watched::new(&node.lab.netns));
    let watched = watched.collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    thread::scope(|scope| {
        // The others need not wait for what it removes of its own.
        let cleaning = scope.spawn(|| lost.agent.clean_up(&lost.lab.netns));
        for (mut watched, node) in watched.into_iter().zip(&cluster.nodes) {
            let dropped = watched.wait_without_route(lost.subnet, started + PATIENCE, stop);
            dropped.with_context(|| format!("wait for {} to drop its route", node.name))?;
        }
        let dropped = started.elapsed();
        let removed = cleaning.join().map_err(|_| anyhow!("the clean-up panicked"))?;
        Ok((removed.with_context(|| format!("clean {} up", lost.name))?, dropped))
    })
}

/// A node's routes, and news of them.
struct Watched {
    nl: Netlink,
    events: Events,
}

impl Watched {
    fn new(netns: &Netns) -> Result<Watched> {
        let open = || Ok(Watched { events: Events::listen(&Topic::ALL)?, nl: Netlink::open()? });
        netns.enter(open)?
    }

    fn wait_without_route(&mut self, subnet: IpNet, deadline: Instant, stop: &Stop) -> Result<()> {
        const LOOK_UP: Duration = Duration::from_millis(50);
        while !routes(&self.nl, subnet)?.is_empty() {
            stop.check()?;
            ensure!(Instant::now() < deadline, "the route to {subnet} is still there");
            self.events.receive(deadline.min(Instant::now() + LOOK_UP), drop)?;
        }
        Ok(())
    }
}

/// A new node comes, and is one of them.
fn join(
    cluster: &mut Cluster,
    others: usize,
    site: Site<'_>,
    progress: &mut Progress,
) -> Result<Value> {
    let (node, first) = build::one_more(cluster, others, site, progress)?;
    let answered = ping_across(cluster, &node, site.stop)?;
    let text = format!(
        "{} leased {}: {} reached {} {} after its agent's start, all {answered} pairs answer",
        node.name,
        node.subnet,
        first.from,
        first.to,
        duration(first.after)
    );
    progress.step("join", &text)?;
    let told = json!({
        "event": "join", "node": node.name, "subnet": node.subnet,
        "firstPingMicros": micros(first.after), "pings": answered,
    });
    cluster.nodes.push(node);
    Ok(told)
}

/// Echoes between the pods of one node and those of the others, both ways; how many were answered.
fn ping_across(cluster: &Cluster, node: &Node, stop: &Stop) -> Result<usize> {
    let (others, own) = (cluster.pods(), node.lab.pods.iter());
    let first_own = others.len();
    let pods: Vec<&Pod> = others.into_iter().chain(own).collect();
    let is_across = |from: usize, to: usize| (from < first_own) != (to < first_own);
    Ok(probe::ping_where(&pods, is_across, stop)?.len())
}

fn first_pod(node: &Node) -> Result<&Pod> {
    node.lab.pods.first().with_context(|| format!("{} has no pod", node.name))
}
