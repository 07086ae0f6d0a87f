// SPDX-License-Identifier: Apache-2.0
//! A plan that is kept up to date. A peer that comes, changes or goes costs what it is itself,
//! however many there are; only where peers are in each other's way is all planned anew.

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
use crate::plan::previous::{Ends, Kept, PreviousBackend};
use crate::plan::{
    Error, Node, Peer, Plan, RejectedPeer, Underlay, check_networks, devices, fill, serve,
};

/// The network as one node sees it.
#[derive(Debug)]
pub struct Network {
    conf: NetConf,
    lease: Lease,
    underlay: Underlay,
    peers: BTreeMap<String, (u64, Lease)>,
    /// The backend before the current one, while peers may use it.
    previous: Option<Kept>,
    /// Leases of peers that have read a newer configuration than this node, with the data that they
    /// published before: such a peer keeps its previous backend.
    earlier: BTreeMap<String, Lease>,
    /// How many peers say that they are reached there: two leases of one node share entries.
    publics: HashMap<IpAddr, usize>,
    /// What there is without any peer.
    base: DesiredState,
    claims: Claims,
    /// What paths carry that carry less than pods send.
    path_mtus: BTreeMap<IpNet, u32>,
    plan: Plan,
}

/// What a peer's change has done to the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanChange {
    None,
    /// Nothing but this.
    Peer(Box<PeerChange>),
    /// Anything may have changed.
    Full,
}

/// State of the previous backend after [`Network::expire_previous`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousBackendState {
    /// There is none.
    Absent,
    /// Peers use it, or may do so.
    Kept,
    /// No peer uses it any more: anything may have changed.
    Dropped,
}

/// What was desired for a peer, and what is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerChange {
    pub before: DesiredState,
    pub after: DesiredState,
}

impl Network {
    /// Plans for these peers: by name, since when, and with which lease.
    pub fn new(
        conf: NetConf,
        lease: Lease,
        underlay: Underlay,
        peers: BTreeMap<String, (u64, Lease)>,
    ) -> Result<Self, Error> {
        let node = Node { conf: &conf, lease: &lease, underlay: &underlay };
        check_networks(node.conf, node.underlay.addresses)?;
        let base = devices(&node)?;
        let pod_mtu = underlay.mtu;
        let plan = Plan { desired: base.clone(), pod_mtu, rejected: Vec::new() };
        let (publics, claims) = (HashMap::new(), Claims::default());
        let (path_mtus, earlier) = (BTreeMap::new(), BTreeMap::new());
        let mut network = Self {
            conf,
            lease,
            underlay,
            peers,
            previous: None,
            earlier,
            publics,
            base,
            claims,
            path_mtus,
            plan,
        };
        network.replan();
        Ok(network)
    }

    /// What follows from all leases.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the network is.
    pub fn conf(&self) -> &NetConf {
        &self.conf
    }

    /// This node's own lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What holds it up.
    pub fn underlay(&self) -> &Underlay {
        &self.underlay
    }

    /// The other nodes: by name, since when, and with which lease.
    pub fn peers(&self) -> &BTreeMap<String, (u64, Lease)> {
        &self.peers
    }

    /// The lease by which a peer is served: its own, or an earlier one while the peer has a newer
    /// configuration than this node.
    pub fn served_lease(&self, name: &str) -> Option<&Lease> {
        self.earlier.get(name).or_else(|| self.peers.get(name).map(|(_, lease)| lease))
    }

    /// The current backend, and the previous one if it is kept.
    pub fn backends(&self) -> impl Iterator<Item = &Backend> {
        [&self.conf.backend].into_iter().chain(self.previous.as_ref().map(Kept::backend))
    }

    /// Keeps the previous backend for peers that still publish it.
    pub fn set_previous_backend(&mut self, previous: PreviousBackend) -> Result<(), Error> {
        let kept = Kept::new(previous, &self.conf, &self.lease, &self.underlay)?;
        kept.add_to(&mut self.base);
        self.previous = Some(kept);
        self.replan();
        Ok(())
    }

    /// To be called at intervals. Drops the previous backend if no peer has published it at this
    /// call and the one before: peers still send by it until they have read this node's lease.
    pub fn expire_previous(&mut self) -> PreviousBackendState {
        let Some(previous) = &self.previous else { return PreviousBackendState::Absent };
        let ends = self.ends();
        let uses = |name: &String| {
            let lease = self.served_lease(name);
            lease.is_some_and(|lease| ends.previous_for(&lease.attributes.data).is_some())
        };
        let (is_idle, was_idle) = (!self.peers.keys().any(uses), previous.is_idle);
        if is_idle
            && was_idle
            && let Ok(base) = devices(&self.node())
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

    /// Takes over what peers published earlier, for those whose leases this node cannot use now.
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

    /// Whether it matters which peers are on a link.
    pub fn needs_on_link(&self) -> bool {
        self.backends().any(|backend| match backend {
            Backend::HostGw => true,
            Backend::Vxlan(conf) => conf.direct_routing,
            Backend::Ipip(conf) => conf.direct_routing,
            _ => false,
        })
    }

    /// Where peers say that they are reached.
    pub fn public_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.publics.keys().copied()
    }

    /// Whether a peer says that it is reached there.
    pub fn has_public_address(&self, address: IpAddr) -> bool {
        self.publics.contains_key(&address)
    }

    /// What the routes say of an address that no peer has yet.
    pub fn learn_on_link(&mut self, address: IpAddr, link: Option<IfName>) {
        match link {
            _ if self.has_public_address(address) => {}
            Some(link) => drop(self.underlay.on_link.insert(address, link)),
            None => drop(self.underlay.on_link.remove(&address)),
        }
    }

    /// What the routes say now of all peers' addresses. Whether that is anything new.
    pub fn set_on_link(&mut self, on_link: HashMap<IpAddr, IfName>) -> bool {
        if self.underlay.on_link == on_link {
            return false;
        }
        self.underlay.on_link = on_link;
        self.replan();
        true
    }

    /// A peer has come or changed.
    pub fn set_peer(&mut self, name: &str, since: u64, lease: Lease) -> PlanChange {
        if self.peers.get(name).is_some_and(|known| *known == (since, lease.clone())) {
            return PlanChange::None;
        }
        let served = self.served_lease(name);
        let earlier = served.and_then(|served| self.earlier_lease(served, &lease));
        let before = self.remove_peer_part(name);
        match earlier {
            Some(earlier) => drop(self.earlier.insert(name.to_owned(), earlier)),
            None => drop(self.earlier.remove(name)),
        }
        self.peers.insert(name.to_owned(), (since, lease));
        let after = before.as_ref().and_then(|_| self.add_peer_part(name));
        self.plan_change(before, after)
    }

    /// A peer has gone.
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

    /// The path to a peer's subnet carries less than pods send; none if it does no longer.
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

    /// Takes over what is known of paths from the network as it was planned before, if they are the same
    /// paths.
    pub fn inherit_path_mtus(&mut self, before: &Network) {
        let way = |network: &Network| {
            let Underlay { name, index, mtu, addresses, .. } = network.underlay;
            (name, index, mtu, addresses, network.conf.backend.clone())
        };
        if before.path_mtus.is_empty() || way(self) != way(before) {
            return;
        }
        let served = self.peers.values().flat_map(|(_, lease)| lease.subnets.iter());
        let mtu = |subnet: IpNet| Some((subnet, *before.path_mtus.get(&subnet)?));
        self.path_mtus = served.filter_map(mtu).collect();
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

    fn ends(&self) -> Ends<'_> {
        Ends { now: self.node(), before: self.previous.as_ref() }
    }

    fn peer(&self, name: &str) -> Option<Peer<'_>> {
        let (name, (since, _)) = self.peers.get_key_value(name)?;
        Some(Peer { name, since: *since, lease: self.served_lease(name)? })
    }

    /// A peer's lease with the data of its lease before, if the peer has a newer configuration than
    /// this node: it published a backend of this node, and now one that this node does not have. A
    /// peer that leaves the current backend for the previous one has a newer configuration too.
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

    fn replan(&mut self) {
        let peers: Vec<Peer<'_>> = self.peers.keys().filter_map(|name| self.peer(name)).collect();
        let mut claims = Claims::new(self.node().subnets());
        let mut plan = fill(self.ends(), self.base.clone(), &peers, &mut claims);
        let served = self.path_mtus.keys().filter(|subnet| claims.check(**subnet).is_err());
        self.apply_path_mtus(served.copied(), &mut plan.desired);
        let mut publics = HashMap::new();
        for address in peers.iter().flat_map(|peer| peer.lease.attributes.public.iter()) {
            *publics.entry(address).or_insert(0) += 1;
        }
        (self.plan, self.claims, self.publics) = (plan, claims, publics);
    }

    /// Takes a peer's part out of the plan; nothing for one that is not there. None where others
    /// may have a share in it, or wait for it to go.
    fn remove_peer_part(&mut self, name: &str) -> Option<DesiredState> {
        let Some(peer) = self.peer(name) else { return Some(DesiredState::default()) };
        let lease = peer.lease.clone();
        let publics: Vec<IpAddr> = lease.attributes.public.iter().collect();
        let is_shared = publics.iter().any(|address| self.publics.get(address) != Some(&1));
        let concerns = |rejected: &RejectedPeer| {
            rejected.peer == name || rejected.reason.depends_on_another_peer()
        };
        if is_shared || self.plan.rejected.iter().any(concerns) {
            return None;
        }
        let mut part = DesiredState::default();
        let rejected = serve(self.ends(), &peer, &mut Claims::default(), &mut part);
        if !rejected.is_empty() {
            return None;
        }
        self.apply_path_mtus(lease.subnets.iter(), &mut part);
        for subnet in lease.subnets.iter() {
            self.claims.remove(subnet);
        }
        for address in publics {
            self.publics.remove(&address);
        }
        self.plan.desired.subtract(&part);
        Some(part)
    }

    /// Puts a peer's part into the plan; none where it meets another's.
    fn add_peer_part(&mut self, name: &str) -> Option<DesiredState> {
        let peer = self.peer(name)?;
        let lease = peer.lease.clone();
        let publics: Vec<IpAddr> = lease.attributes.public.iter().collect();
        if publics.iter().any(|address| self.publics.contains_key(address)) {
            return None;
        }
        if lease.subnets.iter().any(|subnet| self.claims.check(subnet).is_err()) {
            return None;
        }
        let mut part = DesiredState::default();
        let rejected = serve(self.ends(), &peer, &mut Claims::default(), &mut part);
        self.apply_path_mtus(lease.subnets.iter(), &mut part);
        if !rejected.is_empty() || self.plan.desired.overlaps(&part) {
            return None;
        }
        let subnets: Vec<IpNet> = lease.subnets.iter().collect();
        for subnet in subnets {
            if self.conf.networks.get(cidr::of(subnet)).is_some() {
                self.claims.add(subnet, name);
            }
        }
        for address in publics {
            self.publics.insert(address, 1);
        }
        self.plan.desired.add(part.clone());
        Some(part)
    }

    /// Gives routes to subnets the MTU of their paths. A tunnel that has one route for the whole
    /// network gets one for the subnet as well.
    fn apply_path_mtus(&self, subnets: impl Iterator<Item = IpNet>, desired: &mut DesiredState) {
        for subnet in subnets {
            let Some(mtu) = self.path_mtus.get(&subnet) else { continue };
            let whole = self.base.routes.values().find(|route| route.dst.contains(&subnet));
            let route = match (desired.routes.get(&subnet), whole) {
                (Some(route), _) | (None, Some(route)) => *route,
                (None, None) => continue,
            };
            desired.routes.insert(subnet, DesiredRoute { dst: subnet, mtu: Some(*mtu), ..route });
        }
    }
}
