// SPDX-License-Identifier: Apache-2.0
//! A plan that follows changes of peers. Adding, changing or removing a peer costs the same whatever
//! the number of peers. Everything is planned again only if peers share addresses or conflict.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use kernel::IfName;

use crate::backend::{Backend, BackendData};
use crate::cidr;
use crate::desired::{DesiredRoute, DesiredState};
use crate::lease::{Attributes, Lease};
use crate::netconf::NetConf;
use crate::plan::claims::Claims;
use crate::plan::previous::{KeptBackend, NodeBackends, PreviousBackend};
use crate::plan::{
    Error, Node, Peer, Plan, RejectedPeer, Underlay, add_peer, add_peers, check_networks, devices,
};

/// The network as one node sees it.
#[derive(Debug)]
pub struct Network {
    conf: NetConf,
    lease: Lease,
    underlay: Underlay,
    /// Creation revision and published lease of each peer.
    peers: BTreeMap<String, (u64, Lease)>,
    /// The previous backend, while peers may use it.
    previous: Option<KeptBackend>,
    /// Leases of peers that already use a newer configuration than this node, with the backend data
    /// that they published before. Such a peer keeps its previous backend, so it can be served by
    /// that one.
    earlier: BTreeMap<String, Lease>,
    /// Number of peers that publish each address: more than one if a node has several leases.
    public_addresses: HashMap<IpAddr, usize>,
    /// Desired state without peers.
    base: DesiredState,
    claims: Claims,
    /// MTU of the path to each subnet for which it is below the pod MTU.
    path_mtus: BTreeMap<IpNet, u32>,
    has_own_blackholes: bool,
    plan: Plan,
}

/// Effect of one peer's change on the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanChange {
    None,
    /// Only the desired state of this peer has changed.
    Peer(Box<PeerChange>),
    /// Any part of the plan may have changed.
    Full,
}

/// Desired state of one peer before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerChange {
    pub before: DesiredState,
    pub after: DesiredState,
}

/// State of the previous backend after [`Network::expire_previous`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousBackendState {
    /// There is no previous backend.
    Absent,
    /// Peers use the previous backend, or may still do so.
    Kept,
    /// No peer uses it any more, and it has just been dropped. Any part of the plan may have changed.
    Dropped,
}

impl Network {
    /// Plans for these peers: creation revision and lease by name.
    pub fn new(
        conf: NetConf,
        lease: Lease,
        underlay: Underlay,
        peers: BTreeMap<String, (u64, Lease)>,
    ) -> Result<Self, Error> {
        check_networks(&conf, underlay.addresses)?;
        let (desired, pod_mtu) = (DesiredState::default(), underlay.mtu);
        let mut network = Self {
            conf,
            lease,
            underlay,
            peers,
            previous: None,
            earlier: BTreeMap::new(),
            public_addresses: HashMap::new(),
            base: DesiredState::default(),
            claims: Claims::default(),
            path_mtus: BTreeMap::new(),
            has_own_blackholes: false,
            plan: Plan { desired, pod_mtu, rejected: Vec::new() },
        };
        network.base = network.plan_base()?;
        network.replan();
        Ok(network)
    }

    /// Returns the current plan for all peers.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the network's configuration.
    pub fn conf(&self) -> &NetConf {
        &self.conf
    }

    /// Returns the lease of this node.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the underlay that the plan is based on.
    pub fn underlay(&self) -> &Underlay {
        &self.underlay
    }

    /// Returns the other nodes: creation revision and lease by name.
    pub fn peers(&self) -> &BTreeMap<String, (u64, Lease)> {
        &self.peers
    }

    /// Returns the lease by which a peer is served: the published one, or an earlier one while the
    /// peer uses a newer configuration than this node.
    pub fn served_lease(&self, name: &str) -> Option<&Lease> {
        self.earlier.get(name).or_else(|| self.peers.get(name).map(|(_, lease)| lease))
    }

    /// Returns the current backend, and the previous one if it is kept.
    pub fn backends(&self) -> impl Iterator<Item = &Backend> {
        [&self.conf.backend].into_iter().chain(self.previous.as_ref().map(KeptBackend::backend))
    }

    /// Keeps the previous backend for peers that still publish it.
    pub fn set_previous_backend(&mut self, previous: PreviousBackend) -> Result<(), Error> {
        let kept = KeptBackend::new(previous, &self.conf, &self.lease, &self.underlay)?;
        kept.add_to(&mut self.base);
        self.previous = Some(kept);
        self.replan();
        Ok(())
    }

    /// Drops the previous backend if no peer published it at this call and at the last call. The caller
    /// repeats the call at intervals, because peers send by the previous backend until they have read
    /// this node's new lease.
    pub fn expire_previous(&mut self) -> PreviousBackendState {
        let Some(previous) = &self.previous else { return PreviousBackendState::Absent };
        let node = self.node_backends();
        let uses = |name: &String| {
            let lease = self.served_lease(name);
            lease.is_some_and(|lease| node.previous_for(&lease.attributes.data).is_some())
        };
        let (is_idle, was_idle) = (!self.peers.keys().any(uses), previous.is_idle);
        if is_idle
            && was_idle
            && let Ok(base) = self.plan_base()
        {
            (self.base, self.previous) = (base, None);
            self.replan();
            return PreviousBackendState::Dropped;
        }
        if let Some(previous) = &mut self.previous {
            previous.is_idle = is_idle;
        }
        PreviousBackendState::Kept
    }

    /// Adds or removes a blackhole route for each of this node's own subnets. The route drops packets to
    /// addresses that no pod has while no bridge has a route for the subnet. Such packets would
    /// otherwise leave by the default route and might come back.
    pub fn set_own_blackholes(&mut self, enabled: bool) {
        if self.has_own_blackholes == enabled {
            return;
        }
        let subnets: Vec<IpNet> = self.node().subnets().collect();
        self.has_own_blackholes = enabled;
        for subnet in subnets {
            let blackhole = DesiredRoute::blackhole(subnet);
            match enabled {
                true => drop(self.base.routes.entry(subnet).or_insert(blackhole)),
                false => self.base.routes.retain(|_, route| *route != blackhole),
            }
        }
        self.replan();
    }

    /// Takes over the leases by which `before` served peers, if this network cannot serve the peers by
    /// their current leases.
    pub fn inherit_served_leases(&mut self, before: &Network) {
        let earlier = self.peers.iter().filter_map(|(name, (_, lease))| {
            let served = self.earlier_lease(before.served_lease(name)?, lease)?;
            Some((name.clone(), served))
        });
        self.earlier = earlier.collect();
        if !self.earlier.is_empty() {
            self.replan();
        }
    }

    /// Returns whether the plan depends on [`Underlay::on_link`].
    pub fn needs_on_link(&self) -> bool {
        self.backends().any(|backend| match backend {
            Backend::HostGw => true,
            Backend::Vxlan(conf) => conf.direct_routing,
            Backend::Ipip(conf) => conf.direct_routing,
            _ => false,
        })
    }

    /// Returns the public addresses of all peers.
    pub fn public_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.public_addresses.keys().copied()
    }

    /// Returns whether a peer publishes this address.
    pub fn has_public_address(&self, address: IpAddr) -> bool {
        self.public_addresses.contains_key(&address)
    }

    /// Records the link that an address of a new peer is on, before the peer is added. Addresses of
    /// known peers are left alone.
    pub fn learn_on_link(&mut self, address: IpAddr, link: Option<IfName>) {
        match link {
            _ if self.has_public_address(address) => {}
            Some(link) => drop(self.underlay.on_link.insert(address, link)),
            None => drop(self.underlay.on_link.remove(&address)),
        }
    }

    /// Sets the links of all peers' addresses. Returns whether anything has changed.
    pub fn set_on_link(&mut self, on_link: HashMap<IpAddr, IfName>) -> bool {
        if self.underlay.on_link == on_link {
            return false;
        }
        self.underlay.on_link = on_link;
        self.replan();
        true
    }

    /// Adds or changes a peer.
    pub fn set_peer(&mut self, name: &str, created: u64, lease: Lease) -> PlanChange {
        if self.peers.get(name).is_some_and(|known| *known == (created, lease.clone())) {
            return PlanChange::None;
        }
        let served = self.served_lease(name);
        let earlier = served.and_then(|served| self.earlier_lease(served, &lease));
        let before = self.remove_peer_part(name);
        match earlier {
            Some(earlier) => drop(self.earlier.insert(name.to_owned(), earlier)),
            None => drop(self.earlier.remove(name)),
        }
        self.peers.insert(name.to_owned(), (created, lease));
        let after = before.as_ref().and_then(|_| self.add_peer_part(name));
        self.plan_change(before, after)
    }

    pub fn remove_peer(&mut self, name: &str) -> PlanChange {
        if !self.peers.contains_key(name) {
            return PlanChange::None;
        }
        let before = self.remove_peer_part(name);
        self.earlier.remove(name);
        if let Some((_, lease)) = self.peers.remove(name) {
            for subnet in lease.subnets.iter() {
                self.path_mtus.remove(&subnet);
            }
        }
        self.plan_change(before, Some(DesiredState::default()))
    }

    /// Sets the MTU of the path to a peer's subnet, or `None` if the path carries all that pods send.
    pub fn set_path_mtu(&mut self, name: &str, subnet: IpNet, mtu: Option<u32>) -> PlanChange {
        let has = |(_, lease): &(u64, Lease)| lease.subnets.iter().any(|own| own == subnet);
        if !self.peers.get(name).is_some_and(has) || self.path_mtus.get(&subnet).copied() == mtu {
            return PlanChange::None;
        }
        let before = self.remove_peer_part(name);
        match mtu {
            Some(mtu) => self.path_mtus.insert(subnet, mtu),
            None => self.path_mtus.remove(&subnet),
        };
        let after = before.as_ref().and_then(|_| self.add_peer_part(name));
        self.plan_change(before, after)
    }

    /// Takes over the path MTUs of an earlier plan if the paths are the same.
    pub fn inherit_path_mtus(&mut self, before: &Network) {
        let path = |network: &Network| {
            let Underlay { name, index, mtu, addresses, .. } = network.underlay;
            (name, index, mtu, addresses, network.conf.backend.clone())
        };
        if before.path_mtus.is_empty() || path(self) != path(before) {
            return;
        }
        let subnets = self.peers.values().flat_map(|(_, lease)| lease.subnets.iter());
        let mtu = |subnet: IpNet| Some((subnet, *before.path_mtus.get(&subnet)?));
        self.path_mtus = subnets.filter_map(mtu).collect();
        self.replan();
    }

    fn plan_change(
        &mut self,
        before: Option<DesiredState>,
        after: Option<DesiredState>,
    ) -> PlanChange {
        match (before, after) {
            (Some(before), Some(after)) if before == after => PlanChange::None,
            (Some(before), Some(after)) => PlanChange::Peer(Box::new(PeerChange { before, after })),
            _ => {
                self.replan();
                PlanChange::Full
            }
        }
    }

    fn node(&self) -> Node<'_> {
        Node { conf: &self.conf, lease: &self.lease, underlay: &self.underlay }
    }

    fn node_backends(&self) -> NodeBackends<'_> {
        NodeBackends { current: self.node(), previous: self.previous.as_ref() }
    }

    fn peer(&self, name: &str) -> Option<Peer<'_>> {
        let (name, (created, _)) = self.peers.get_key_value(name)?;
        Some(Peer { name, created: *created, lease: self.served_lease(name)? })
    }

    /// Returns a peer's current lease with the backend data of its earlier lease, if the peer uses a newer
    /// configuration than this node. That is the case if it published a backend that this node has, and
    /// now publishes one that this node does not have. A peer that changes from the current to the
    /// previous backend uses a newer configuration too.
    fn earlier_lease(&self, before: &Lease, now: &Lease) -> Option<Lease> {
        let is_current = |data: &BackendData| data.matches(&self.conf.backend);
        let has = |data: &BackendData| self.backends().any(|backend| data.matches(backend));
        let (before, data) = (&before.attributes.data, &now.attributes.data);
        let is_known = !matches!(data, BackendData::Other(_));
        let was_served = if has(data) { is_current(before) } else { has(before) };
        if !is_known || is_current(data) || !was_served {
            return None;
        }
        let data = before.clone();
        Some(Lease { subnets: now.subnets, attributes: Attributes { data, ..now.attributes } })
    }

    /// Plans the current backend and the blackhole routes, without peers.
    fn plan_base(&self) -> Result<DesiredState, Error> {
        let mut base = devices(&self.node())?;
        for subnet in self.node().subnets().filter(|_| self.has_own_blackholes) {
            base.routes.entry(subnet).or_insert(DesiredRoute::blackhole(subnet));
        }
        Ok(base)
    }

    /// Plans all peers again.
    fn replan(&mut self) {
        let peers: Vec<Peer<'_>> = self.peers.keys().filter_map(|name| self.peer(name)).collect();
        let mut claims = Claims::new(self.node().subnets());
        let mut plan = add_peers(self.node_backends(), self.base.clone(), &peers, &mut claims);
        let served = self.path_mtus.keys().filter(|subnet| claims.check(**subnet).is_err());
        self.apply_path_mtus(served.copied(), &mut plan.desired);
        let mut public_addresses = HashMap::new();
        for address in peers.iter().flat_map(|peer| peer.lease.attributes.public.iter()) {
            *public_addresses.entry(address).or_insert(0) += 1;
        }
        (self.plan, self.claims, self.public_addresses) = (plan, claims, public_addresses);
    }

    /// Removes a peer's state from the plan and returns it; it is empty for an unknown peer. Returns
    /// `None` if other peers share a part of it, or may be served once it is gone.
    fn remove_peer_part(&mut self, name: &str) -> Option<DesiredState> {
        let Some(peer) = self.peer(name) else { return Some(DesiredState::default()) };
        let lease = peer.lease.clone();
        let public: Vec<IpAddr> = lease.attributes.public.iter().collect();
        let is_shared = public.iter().any(|address| self.public_addresses.get(address) != Some(&1));
        let concerns =
            |one: &RejectedPeer| one.peer == name || one.reason.depends_on_another_peer();
        if is_shared || self.plan.rejected.iter().any(concerns) {
            return None;
        }
        let mut part = DesiredState::default();
        let rejected = add_peer(self.node_backends(), &peer, &mut Claims::default(), &mut part);
        if !rejected.is_empty() {
            return None;
        }
        self.apply_path_mtus(lease.subnets.iter(), &mut part);
        for subnet in lease.subnets.iter() {
            self.claims.remove(subnet);
        }
        for address in public {
            self.public_addresses.remove(&address);
        }
        self.plan.desired.subtract(&part);
        Some(part)
    }

    /// Adds a peer's state to the plan and returns it. Returns `None` if it conflicts with that of
    /// another peer.
    fn add_peer_part(&mut self, name: &str) -> Option<DesiredState> {
        let peer = self.peer(name)?;
        let lease = peer.lease.clone();
        let public: Vec<IpAddr> = lease.attributes.public.iter().collect();
        if public.iter().any(|address| self.public_addresses.contains_key(address)) {
            return None;
        }
        if lease.subnets.iter().any(|subnet| self.claims.check(subnet).is_err()) {
            return None;
        }
        let mut part = DesiredState::default();
        let rejected = add_peer(self.node_backends(), &peer, &mut Claims::default(), &mut part);
        self.apply_path_mtus(lease.subnets.iter(), &mut part);
        if !rejected.is_empty() || self.plan.desired.overlaps(&part) {
            return None;
        }
        for subnet in lease.subnets.iter() {
            if self.conf.networks.get(cidr::of(subnet)).is_some() {
                self.claims.add(subnet, name);
            }
        }
        for address in public {
            self.public_addresses.insert(address, 1);
        }
        self.plan.desired.add(part.clone());
        Some(part)
    }

    /// Sets the MTU of routes to subnets that are reached by a path with a lower MTU. If a tunnel has
    /// one route for the whole network, the subnet gets a route of its own.
    fn apply_path_mtus(&self, subnets: impl Iterator<Item = IpNet>, desired: &mut DesiredState) {
        for subnet in subnets {
            let Some(mtu) = self.path_mtus.get(&subnet) else { continue };
            let whole = self.base.routes.values().find(|route| route.dst.contains(&subnet));
            let route = desired.routes.get(&subnet).or(whole);
            if let Some(hop) = route.and_then(DesiredRoute::next_hop) {
                desired.routes.insert(subnet, DesiredRoute::unicast(subnet, hop.with_mtu(*mtu)));
            }
        }
    }
}
