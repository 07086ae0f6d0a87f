// SPDX-License-Identifier: Apache-2.0
//! Faults and changes: a deleted device or route, a node that leaves, a node that joins.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use agent::status::StatusHub;
use anyhow::{Context, Result, anyhow, ensure};
use ipnet::IpNet;
use kernel::events::{Events, Topic};
use kernel::route::{self, RouteFilter};
use kernel::{Netlink, Netns, link};
use serde_json::{Value, json};

use super::build::{self, PING_TIMEOUT};
use super::network::Network;
use super::node::Node;
use super::{BuildContext, Cluster};
use crate::cmd::demo::lab::Pod;
use crate::cmd::demo::probe;
use crate::cmd::demo::progress::Progress;
use crate::cmd::demo::show::micros;
use crate::output::duration;
use crate::signals::StopSignal;

/// Plays all faults and returns the events as JSON.
pub(crate) fn play(
    cluster: &mut Cluster,
    context: BuildContext<'_>,
    progress: &mut Progress,
) -> Result<Value> {
    let repaired = repair(cluster, context.stop, progress)?;
    let others = cluster.nodes.len();
    let lost = cluster.nodes.pop().context("there is no node")?;
    let left = lose(cluster, lost, context, progress)?;
    let joined = join(cluster, others, context, progress)?;
    progress.text("\n")?;
    Ok(json!([repaired, left, joined]))
}

/// Deletes the tunnel device or a route on the second node, and measures the repair by its agent.
fn repair(cluster: &Cluster, stop: &StopSignal, progress: &mut Progress) -> Result<Value> {
    let [other, victim, ..] = cluster.nodes.as_slice() else {
        return Ok(Value::Null);
    };
    let (from, to) = (first_pod(victim)?, first_pod(other)?);
    let hub = &victim.agent.hub;
    let before = repairs(hub);
    let (started, at) = (Instant::now(), SystemTime::now());
    let broken = delete_route(cluster.network, &victim.lab.netns, other.subnet()?)
        .with_context(|| format!("delete a device or route on {}", victim.name))?;
    let address = to.ips().next().context("the pod has no address")?;
    let deadline = started + PING_TIMEOUT;
    let answered = || from.netns.enter(|| probe::ping_until(address, deadline, stop))?;
    answered().with_context(|| format!("after {broken} was deleted on {}", victim.name))?;
    let answered_after = started.elapsed();
    // The agent reports a repair shortly after it is done.
    while repairs(hub) == before {
        answered()?;
        ensure!(Instant::now() < deadline, "{} reported no repair", victim.name);
    }
    let repaired = repairs(hub) - before;
    let last = hub.summary().kernel.repairs.last.last().map(|repair| repair.at.0);
    let repaired_after = last.and_then(|last| last.duration_since(at).ok()).unwrap_or_default();
    let text = format!(
        "{broken} deleted on {}: its agent repaired {} in {}; pods connected again after {}",
        victim.name,
        objects(repaired),
        duration(repaired_after),
        duration(answered_after),
    );
    progress.step("repair", &text)?;
    Ok(json!({
        "event": "repair", "node": victim.name, "deleted": broken, "repairs": repaired,
        "repairedMicros": micros(repaired_after), "answeredMicros": micros(answered_after),
    }))
}

fn objects(count: u64) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

fn repairs(hub: &StatusHub) -> u64 {
    hub.summary().kernel.repairs.counts.values().sum()
}

/// Deletes the tunnel device, or the route to a peer if there is no tunnel. Returns its name.
fn delete_route(network: Network, netns: &Netns, subnet: IpNet) -> Result<String> {
    let nl = netns.netlink()?;
    if let Some(device) = network.device() {
        nl.apply([link::remove(device.parse::<kernel::IfName>()?)])?;
        return Ok(device.to_owned());
    }
    let route = routes(&nl, subnet)?.pop().context("there is no route to delete")?;
    // The kernel reports link and gateway of the next hop, but rejects them in a request.
    let (oif, gateway) = route.nexthop.map_or((route.oif, route.gateway), |_| (None, None));
    nl.apply([route::remove(&route::Route { oif, gateway, ..route })])?;
    Ok(format!("the route to {subnet}"))
}

fn routes(nl: &Netlink, subnet: IpNet) -> Result<Vec<route::Route>> {
    let mut routes = route::list(nl, RouteFilter::default())?;
    routes.retain(|route| route.dst == subnet.trunc());
    Ok(routes)
}

/// Stops the agent of a node, which does not interrupt traffic; then removes the node.
fn lose(
    cluster: &Cluster,
    mut lost: Node,
    context: BuildContext<'_>,
    progress: &mut Progress,
) -> Result<Value> {
    lost.agent.stop();
    let name = &lost.name;
    let text = if context.network.outlives_agent() {
        let answered = ping_across(cluster, &lost, context.stop)?;
        format!("agent of {name} stopped: its pods stay connected, all {answered} pairs answer")
    } else {
        format!("agent of {name} stopped, and with it the udp tunnel")
    };
    progress.step("loss", &text)?;
    let (removed, dropped) = leave(cluster, &lost, context.stop)?;
    let (subnet, dropped_after) = (lost.shown_subnet(), duration(dropped));
    let given_back = match context.network {
        Network::Bridged(_) => None,
        Network::Routed(_) => Some(wait_given_back(cluster, name, context.stop)?),
    };
    let text = match context.network {
        Network::Bridged(_) => format!(
            "{name} cleaned up, {} and lease {subnet} removed: no node has a route to it after {dropped_after}",
            objects(removed as u64),
        ),
        Network::Routed(_) => format!(
            "{name} cleaned up, {} removed: no node has a route to its block {subnet} after {dropped_after}; the block is free again after {}",
            objects(removed as u64),
            duration(given_back.unwrap_or_default()),
        ),
    };
    progress.step("loss", &text)?;
    lost.lab.detach_pods()?;
    Ok(json!({
        "event": "loss", "node": name, "subnet": lost.subnet, "removed": removed,
        "droppedMicros": micros(dropped), "givenBackMicros": given_back.map(micros),
    }))
}

/// Waits until the blocks of a node that has left have no owner any more. Returns the time.
fn wait_given_back(cluster: &Cluster, name: &str, stop: &StopSignal) -> Result<Duration> {
    let started = Instant::now();
    let Some(node) = cluster.nodes.first() else { return Ok(Duration::ZERO) };
    let mut routes = RouteWatch::new(node)?;
    while node.agent.pools()?.blocks.iter().any(|block| block.node == name) {
        stop.check()?;
        ensure!(
            started.elapsed() < PING_TIMEOUT,
            "{} did not release the blocks of {name}",
            node.name
        );
        routes.wait()?;
    }
    Ok(started.elapsed())
}

/// Cleans up the node. Returns the number of removed objects, and the time until no other node has a
/// route to it.
fn leave(cluster: &Cluster, lost: &Node, stop: &StopSignal) -> Result<(usize, Duration)> {
    let subnet = lost.subnet()?;
    let routes = cluster.nodes.iter().map(RouteWatch::new);
    let routes = routes.collect::<Result<Vec<_>>>()?;
    let started = Instant::now();
    thread::scope(|scope| {
        // In parallel: the other nodes remove their routes while this one still cleans up.
        let cleaning = scope.spawn(|| lost.agent.clean_up(&lost.lab.netns));
        for (mut routes, node) in routes.into_iter().zip(&cluster.nodes) {
            let dropped = routes.wait_without_route(subnet, started + PING_TIMEOUT, stop);
            dropped.with_context(|| format!("wait until {} removes its route", node.name))?;
        }
        let dropped = started.elapsed();
        let removed = cleaning.join().map_err(|_| anyhow!("the clean-up thread panicked"))?;
        Ok((removed.with_context(|| format!("clean up {}", lost.name))?, dropped))
    })
}

/// Routes of a node, with events.
pub(crate) struct RouteWatch {
    nl: Netlink,
    events: Events,
}

impl RouteWatch {
    pub(crate) fn new(node: &Node) -> Result<RouteWatch> {
        let open = || Ok(RouteWatch { events: Events::listen(&Topic::ALL)?, nl: Netlink::open()? });
        node.lab.netns.enter(open)?
    }

    fn wait_without_route(
        &mut self,
        subnet: IpNet,
        deadline: Instant,
        stop: &StopSignal,
    ) -> Result<()> {
        while !routes(&self.nl, subnet)?.is_empty() {
            stop.check()?;
            ensure!(Instant::now() < deadline, "the route to {subnet} still exists");
            self.wait()?;
        }
        Ok(())
    }

    /// Waits for a change, but not longer than the poll interval.
    pub(crate) fn wait(&mut self) -> Result<()> {
        const POLL_INTERVAL: Duration = Duration::from_millis(50);
        Ok(self.events.receive(Instant::now() + POLL_INTERVAL, drop).map(drop)?)
    }
}

/// Adds a new node.
fn join(
    cluster: &mut Cluster,
    others: usize,
    context: BuildContext<'_>,
    progress: &mut Progress,
) -> Result<Value> {
    let (node, first) = build::add_node(cluster, others, context, progress)?;
    let answered = ping_across(cluster, &node, context.stop)?;
    let text = format!(
        "{} {} {}: {} reached {} {} after the start of its agent, all {answered} pairs answer",
        node.name,
        if context.network.is_routed() { "took block" } else { "leased" },
        node.shown_subnet(),
        first.from,
        first.to,
        duration(first.after)
    );
    progress.step("join", &text)?;
    let event = json!({
        "event": "join", "node": node.name, "subnet": node.subnet,
        "firstPingMicros": micros(first.after), "pings": answered,
    });
    cluster.nodes.push(node);
    Ok(event)
}

/// Pings between the pods of one node and all other pods, in both directions. Returns the number of
/// replies.
fn ping_across(cluster: &Cluster, node: &Node, stop: &StopSignal) -> Result<usize> {
    let (others, own) = (cluster.pods(), node.lab.pods.iter());
    let first_own = others.len();
    let pods: Vec<&Pod> = others.into_iter().chain(own).collect();
    let is_across = |from: usize, to: usize| (from < first_own) != (to < first_own);
    Ok(probe::ping_where(&pods, is_across, stop)?.len())
}

fn first_pod(node: &Node) -> Result<&Pod> {
    node.lab.pods.first().with_context(|| format!("{} has no pod", node.name))
}
