// SPDX-License-Identifier: Apache-2.0
//! State and decisions of the pools controller: connects the state machine of addresses with the catalog, the
//! routes of blocks and the tunnels of this node. Without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipam::Timestamp;
use ipam::calico::{Key, NodeResource, Object, VxlanTunnel};
use ipam::node::{
    Action, AssignRequest, Attachment, Content, Event, JournalEntry, JournalOp, Node, OpId,
    Outcome, Problem, Reply, Revision, Settings, StoreOp, Stored, Ticket, Tunnel, Verb,
};
use ipam::pool::PoolConf;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use overlay::plan;
use overlay::routed::{RoutedNode, RoutedState};

use super::block_routes::BlockRoutes;
use super::catalog::{self, Affected, Catalog};
use super::objects::Listed;

/// Time for which a request for a tunnel's address waits for the store.
const TUNNEL_DEADLINE: Duration = Duration::from_secs(10);

/// Delay before a failed request for a tunnel's address, or a failed write of this node's object, is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Tickets of requests for tunnels; those of other requests are lower.
const TUNNEL_TICKETS: u64 = 1 << 63;

/// The interface to other nodes, and this node's addresses with their prefix lengths.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OwnAddresses {
    pub underlay: plan::Underlay,
    pub ipv4: Option<Ipv4Net>,
    pub ipv6: Option<Ipv6Net>,
}

/// Something that the caller has to do.
#[derive(Debug)]
pub(super) enum Effect {
    Store(StoreOp),
    Journal(JournalOp),
    /// Write this node's object; report the result by [`Core::published`].
    Publish(Verb),
    Reply {
        ticket: Ticket,
        reply: Reply,
    },
    Report(Problem),
    Routed(RoutedMessage),
}

/// A message to the routed controller.
#[derive(Debug)]
pub(crate) enum RoutedMessage {
    /// Everything: at the start, and after a change of pools or of this node.
    Network(Arc<RoutedSnapshot>),
    Node(String, Option<RoutedNode>),
    Route(IpNet, Option<String>),
}

/// The network as of one moment.
#[derive(Debug, Clone)]
pub(crate) struct RoutedSnapshot {
    pub name: String,
    pub own: RoutedNode,
    pub underlay: plan::Underlay,
    pub state: RoutedState,
    /// Pools whose packets are masqueraded when they leave all pools.
    pub nat_sources: Vec<IpNet>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Core {
    name: String,
    own: OwnAddresses,
    catalog: Catalog,
    node: Node,
    routes: BlockRoutes,
    tunnels: Tunnels,
    publishing: Publishing,
}

/// The tunnels of this node.
#[derive(Debug, Default)]
struct Tunnels {
    addresses: Vec<(Tunnel, IpAddr)>,
    /// Requests in progress.
    pending: Vec<Tunnel>,
    /// Tunnels whose last request failed. The node works without them if it has pools without encapsulation.
    failed: Vec<Tunnel>,
    /// When to ask again after a failure.
    retry_at: Option<Timestamp>,
}

/// The write of this node's object.
#[derive(Debug, Default)]
struct Publishing {
    is_running: bool,
    retry_at: Option<Timestamp>,
    /// Why the last write failed.
    error: Option<String>,
}

impl Tunnels {
    fn get(&self, tunnel: Tunnel) -> Option<IpAddr> {
        self.addresses.iter().find(|(one, _)| *one == tunnel).map(|(_, address)| *address)
    }
}

impl Core {
    /// Starts with a list of the store and the journal.
    pub(super) fn start(
        name: &str,
        own: OwnAddresses,
        journal: Vec<JournalEntry>,
        listed: Listed,
        now: Timestamp,
    ) -> (Core, Vec<Effect>) {
        let mut core = Core {
            name: name.to_owned(),
            own,
            catalog: Catalog::default(),
            node: Node::new(name),
            routes: BlockRoutes::default(),
            tunnels: Tunnels::default(),
            publishing: Publishing::default(),
        };
        for stored in &listed.objects {
            core.catalog.update(stored);
            core.update_routes(stored);
        }
        let mut effects = Vec::new();
        core.step(now, Event::Settings(core.settings()), &mut effects);
        core.step(now, Event::Journal(journal), &mut effects);
        let at = listed.revision();
        core.step(now, Event::Listed { at, objects: listed.objects }, &mut effects);
        effects.extend(core.network());
        core.look_after_own(now, &mut effects);
        (core, effects)
    }

    /// Takes changed objects.
    pub(super) fn changed(&mut self, now: Timestamp, changes: Vec<Stored>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let (mut settings, mut own) = (false, false);
        for stored in changes {
            match self.catalog.update(&stored) {
                Affected::Settings => settings = true,
                Affected::Node(name) if name == self.name => own = true,
                Affected::Node(name) => {
                    let node = self.catalog.node(&name);
                    let node = node.map(|(_, node)| catalog::routed_node(node));
                    effects.push(Effect::Routed(RoutedMessage::Node(name, node)));
                }
                Affected::Nothing => {}
            }
            let changed = self.update_routes(&stored);
            let changed = changed.into_iter().map(|(dst, node)| RoutedMessage::Route(dst, node));
            effects.extend(changed.map(Effect::Routed));
            self.step(now, Event::Changed(stored), &mut effects);
        }
        if settings || own {
            self.step(now, Event::Settings(self.settings()), &mut effects);
        }
        if settings {
            self.leave_deleted_pools(now, &mut effects);
            effects.extend(self.network());
        }
        self.look_after_own(now, &mut effects);
        effects
    }

    /// Takes the result of a store operation. The watch reports the change of the routes.
    pub(super) fn store_done(&mut self, now: Timestamp, id: OpId, outcome: Outcome) -> Vec<Effect> {
        self.event(now, Event::StoreDone { id, outcome })
    }

    pub(super) fn journal_done(
        &mut self,
        now: Timestamp,
        id: OpId,
        result: Result<(), String>,
    ) -> Vec<Effect> {
        self.event(now, Event::JournalDone { id, result })
    }

    /// Passes an event to the state machine.
    pub(super) fn event(&mut self, now: Timestamp, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.step(now, event, &mut effects);
        self.look_after_own(now, &mut effects);
        effects
    }

    /// Takes the result of writing this node's object.
    pub(super) fn published(
        &mut self,
        now: Timestamp,
        object: Object,
        outcome: Outcome,
    ) -> Vec<Effect> {
        self.publishing.is_running = false;
        self.publishing.error = None;
        let key = Key::Node(self.name.clone());
        let present = match outcome {
            Outcome::Done(revision) => {
                Some(Stored { key, revision, content: Content::Object(object) })
            }
            Outcome::Current(Some(stored)) => Some(*stored),
            Outcome::Current(None) => {
                let (revision, content) = (Revision::default(), Content::Deleted);
                Some(Stored { key, revision, content })
            }
            Outcome::Unreachable(error) => {
                self.publishing.retry_at = Some(now + RETRY_DELAY);
                self.publishing.error = Some(error);
                None
            }
        };
        let changed = present.map(|stored| self.catalog.update(&stored));
        let has_changed = changed.is_some_and(|affected| affected != Affected::Nothing);
        // The labels of the node may have changed.
        let event = if has_changed { Event::Settings(self.settings()) } else { Event::Tick };
        self.event(now, event)
    }

    /// Returns when [`Core::event`] with a tick is due.
    pub(super) fn next_tick(&self) -> Option<Timestamp> {
        let own = [self.tunnels.retry_at, self.publishing.retry_at].into_iter().flatten();
        own.chain(self.node.next_tick()).min()
    }

    /// Returns what prevents pods from getting addresses or from being reached, if anything does.
    pub(super) fn problem(&self) -> Option<String> {
        let mut problems = self.rejected();
        if self.node.settings().pools.iter().next().is_none() {
            let hint = "there is no address pool: run `podwire pool create <CIDR>`";
            problems.insert(0, hint.to_owned());
        }
        if self.waits_for_tunnel() {
            problems.push("waiting for the address of the tunnel to other nodes".to_owned());
        }
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Returns why this node is not in the store, if it is not.
    pub(super) fn unpublished(&self) -> Option<String> {
        self.publishing.error.clone().filter(|_| !self.is_published())
    }

    fn step(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        for action in self.node.step(now, event) {
            match action {
                Action::Store(op) => effects.push(Effect::Store(op)),
                Action::Journal(op) => effects.push(Effect::Journal(op)),
                Action::Report(problem) => effects.push(Effect::Report(problem)),
                Action::Reply { ticket, reply } if ticket.0 >= TUNNEL_TICKETS => {
                    self.tunnel_reply(now, ticket, &reply, effects);
                }
                Action::Reply { ticket, reply } => effects.push(Effect::Reply { ticket, reply }),
            }
        }
    }

    fn settings(&self) -> Settings {
        self.catalog.settings(&self.name, &self.own_addresses())
    }

    fn update_routes(&mut self, stored: &Stored) -> Vec<(IpNet, Option<String>)> {
        let Key::Block(cidr) = stored.key else { return Vec::new() };
        let block = match &stored.content {
            Content::Object(Object::Block(block)) if !block.deleted => Some(block),
            _ => None,
        };
        self.routes.update(cidr, block)
    }

    /// Returns the network, once it is known which tunnels have addresses: with the network the node gets ready.
    fn network(&self) -> Option<Effect> {
        if self.waits_for_tunnel() {
            return None;
        }
        let pools = &self.node.settings().pools;
        let others = self.catalog.nodes().filter(|(name, _)| **name != self.name);
        let others = others.map(|(name, node)| (name.clone(), catalog::routed_node(node)));
        Some(Effect::Routed(RoutedMessage::Network(Arc::new(RoutedSnapshot {
            name: self.name.clone(),
            own: catalog::routed_node(&self.desired_node()),
            underlay: self.own.underlay.clone(),
            state: RoutedState {
                pools: catalog::routed_pools(pools),
                nodes: others.collect(),
                routes: self.routes.all(),
            },
            nat_sources: pools.nat_outgoing(&[]).sources,
        }))))
    }

    /// Returns the key of this node's object.
    pub(super) fn own_key(&self) -> Key {
        Key::Node(self.name.clone())
    }

    /// Returns whether this node is in the store. A node claims no block before, because others would take its
    /// blocks for those of a departed node.
    pub(super) fn is_published(&self) -> bool {
        self.catalog.node(&self.name).is_some()
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Returns a pool with its revision.
    pub(super) fn pool(&self, name: &str) -> Option<(Revision, &PoolConf)> {
        self.catalog.pool(name)
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = PoolConf> {
        self.catalog.pools().cloned()
    }

    /// Returns the addresses of all nodes, with their names.
    pub(super) fn node_addresses(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        self.catalog.nodes().flat_map(|(name, node)| {
            let v4 = node.ipv4.map(|net| IpAddr::from(net.addr()));
            let v6 = node.ipv6.map(|net| IpAddr::from(net.addr()));
            v4.into_iter().chain(v6).map(|address| (name.as_str(), address))
        })
    }

    pub(super) fn own_addresses(&self) -> Vec<IpAddr> {
        self.own.underlay.addresses.iter().collect()
    }

    /// Returns the objects that are not used, with the reason.
    pub(super) fn rejected(&self) -> Vec<String> {
        let pools = self.node.settings().pools.rejected().iter().map(ToString::to_string);
        self.catalog.malformed().chain(pools).collect()
    }

    /// Returns the names of all nodes.
    pub(super) fn node_names(&self) -> BTreeSet<String> {
        self.catalog.nodes().map(|(name, _)| name.clone()).collect()
    }

    /// Asks for missing tunnel addresses, and publishes this node.
    fn look_after_own(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let is_due = |at: Option<Timestamp>| at.is_none_or(|at| at <= now);
        if is_due(self.tunnels.retry_at) && self.is_published() {
            self.tunnels.retry_at = None;
            self.request_tunnels(now, effects);
        }
        if self.publishing.is_running || !is_due(self.publishing.retry_at) {
            return;
        }
        self.publishing.retry_at = None;
        let desired = self.desired_node();
        let verb = match self.catalog.node(&self.name) {
            Some((_, present)) if *present == desired => return,
            Some((revision, _)) => Verb::Replace(revision, Object::Node(desired)),
            None => Verb::Create(Object::Node(desired)),
        };
        self.publishing.is_running = true;
        effects.push(Effect::Publish(verb));
    }

    fn needed_tunnels(&self) -> Vec<Tunnel> {
        catalog::tunnels(&self.node.settings().pools, self.own.underlay.addresses)
    }

    /// Returns whether the first request for a tunnel's address has not been answered yet.
    fn waits_for_tunnel(&self) -> bool {
        self.needed_tunnels().into_iter().any(|tunnel| {
            self.tunnels.get(tunnel).is_none() && !self.tunnels.failed.contains(&tunnel)
        })
    }

    /// Gives back addresses of tunnels whose pool was deleted. Tunnels keep addresses of a disabled pool.
    fn leave_deleted_pools(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let pools = &self.node.settings().pools;
        let has_pool = |address: IpAddr| pools.containing(address).is_some();
        let (kept, left): (Vec<_>, Vec<_>) =
            self.tunnels.addresses.iter().copied().partition(|(_, address)| has_pool(*address));
        self.tunnels.addresses = kept;
        for (tunnel, _) in left {
            let (ticket, handle) = (Ticket(TUNNEL_TICKETS - 1), tunnel.handle(&self.name));
            self.step(now, Event::Release { ticket, handle, interface: None }, effects);
        }
    }

    fn request_tunnels(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        for tunnel in self.needed_tunnels() {
            if self.tunnels.get(tunnel).is_some() || self.tunnels.pending.contains(&tunnel) {
                continue;
            }
            self.tunnels.pending.push(tunnel);
            let request = AssignRequest {
                attachment: Attachment {
                    handle: tunnel.handle(&self.name),
                    network: String::new(),
                    container_id: String::new(),
                    interface: String::new(),
                    netns: None,
                    netns_inode: None,
                    pod: None,
                    tunnel: Some(tunnel),
                },
                ipv4: tunnel != Tunnel::VxlanV6,
                ipv6: tunnel == Tunnel::VxlanV6,
                ipv4_pools: Vec::new(),
                ipv6_pools: Vec::new(),
                addresses: Vec::new(),
                namespace_labels: BTreeMap::new(),
                deadline: now + TUNNEL_DEADLINE,
            };
            let ticket = ticket_of(tunnel);
            self.step(now, Event::Assign { ticket, request }, effects);
        }
    }

    fn tunnel_reply(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        reply: &Reply,
        effects: &mut Vec<Effect>,
    ) {
        let Some(tunnel) = tunnel_of(ticket) else { return };
        self.tunnels.pending.retain(|one| *one != tunnel);
        match reply {
            Reply::Assigned(assigned) => {
                if let Some(first) = assigned.first() {
                    self.tunnels.failed.retain(|one| *one != tunnel);
                    self.tunnels.addresses.push((tunnel, first.address));
                    effects.extend(self.network());
                }
            }
            Reply::Failed(_) | Reply::Released(_) => {
                if !self.tunnels.failed.contains(&tunnel) {
                    self.tunnels.failed.push(tunnel);
                    effects.extend(self.network());
                }
                self.tunnels.retry_at = Some(now + RETRY_DELAY);
            }
        }
    }

    /// Returns this node's object as it should be. Fields of other programs stay.
    fn desired_node(&self) -> NodeResource {
        let present = self.catalog.node(&self.name).map(|(_, node)| node.clone());
        let present = present
            .unwrap_or_else(|| NodeResource { name: self.name.clone(), ..NodeResource::default() });
        let v4 = |tunnel| match self.tunnels.get(tunnel) {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        let v6 = match self.tunnels.get(Tunnel::VxlanV6) {
            Some(IpAddr::V6(address)) => Some(address),
            _ => None,
        };
        NodeResource {
            ipv4: self.own.ipv4,
            ipv6: self.own.ipv6,
            ipip_tunnel: v4(Tunnel::Ipip).or(present.ipip_tunnel),
            vxlan_v4: VxlanTunnel {
                address: v4(Tunnel::Vxlan).or(present.vxlan_v4.address),
                ..present.vxlan_v4
            },
            vxlan_v6: VxlanTunnel { address: v6.or(present.vxlan_v6.address), ..present.vxlan_v6 },
            ..present
        }
    }
}

const TUNNELS: [Tunnel; 3] = [Tunnel::Vxlan, Tunnel::VxlanV6, Tunnel::Ipip];

fn ticket_of(tunnel: Tunnel) -> Ticket {
    let at = TUNNELS.iter().position(|one| *one == tunnel).unwrap_or_default();
    Ticket(TUNNEL_TICKETS + at as u64)
}

fn tunnel_of(ticket: Ticket) -> Option<Tunnel> {
    let at = usize::try_from(ticket.0 - TUNNEL_TICKETS).ok()?;
    TUNNELS.get(at).copied()
}
