// SPDX-License-Identifier: Apache-2.0
//! The backend of the previous configuration. Nodes read a changed configuration at different times,
//! so a node keeps its previous backend until no peer publishes it, and serves each peer by the
//! backend that the peer publishes. Both nodes of a pair then always use the same tunnel. Otherwise a
//! reverse path filter would drop the packets, because they arrive by another device than the answers
//! leave by.

use ipnet::IpNet;

use crate::backend::{Backend, BackendData};
use crate::desired::{DesiredRoute, DesiredState};
use crate::lease::{Attributes, Lease};
use crate::netconf::NetConf;
use crate::plan::{Error, Node, Underlay, devices};

/// The backend that this node had before, with the data that it published for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviousBackend {
    backend: Backend,
    data: BackendData,
}

impl PreviousBackend {
    /// Returns `None` if leases do not show which of the two backends a peer uses, or if the previous
    /// backend has no device on this node.
    pub fn new(backend: Backend, data: BackendData, current: &Backend) -> Option<Self> {
        let is_usable = are_distinguishable(&backend, current) && data.matches(&backend);
        is_usable.then_some(Self { backend, data })
    }
}

/// Returns whether a lease shows which of two backends its node has, and both can exist on one node.
/// Leases contain neither the port of vxlan and udp nor the pre-shared key of wireguard.
pub fn are_distinguishable(before: &Backend, now: &Backend) -> bool {
    match (before, now) {
        (Backend::Alloc | Backend::Extension(_), _) | (Backend::Udp(_), Backend::Alloc) => false,
        (Backend::Vxlan(before), Backend::Vxlan(now)) => before.vni != now.vni,
        _ => before.name() != now.name(),
    }
}

/// The previous backend as part of a network.
#[derive(Debug)]
pub(super) struct KeptBackend {
    conf: NetConf,
    lease: Lease,
    /// Desired state without peers. The routes are only templates, because the current backend has the
    /// route to the whole network.
    base: DesiredState,
    /// No peer published the backend at the last call of [`super::Network::expire_previous`].
    pub(super) is_idle: bool,
}

impl KeptBackend {
    pub(super) fn new(
        previous: PreviousBackend,
        conf: &NetConf,
        lease: &Lease,
        underlay: &Underlay,
    ) -> Result<Self, Error> {
        let conf = NetConf { backend: previous.backend, ..conf.clone() };
        let attributes = Attributes { public: lease.attributes.public, data: previous.data };
        let lease = Lease { subnets: lease.subnets, attributes };
        let base = devices(&Node { conf: &conf, lease: &lease, underlay })?;
        Ok(Self { conf, lease, base, is_idle: false })
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.conf.backend
    }

    /// Adds the devices of the backend and their addresses.
    pub(super) fn add_to(&self, base: &mut DesiredState) {
        base.devices.extend(self.base.devices.clone());
        base.addresses.extend(self.base.addresses.iter().copied());
    }

    /// Returns this node with the previous backend.
    pub(super) fn node<'a>(&'a self, underlay: &'a Underlay) -> Node<'a> {
        Node { conf: &self.conf, lease: &self.lease, underlay }
    }

    /// Returns the route to a peer's subnet, for a backend that has one route for the whole network.
    pub(super) fn route(&self, subnet: IpNet) -> Option<DesiredRoute> {
        let whole = self.base.routes.values().find(|route| route.dst.contains(&subnet))?;
        Some(DesiredRoute { dst: subnet, ..*whole })
    }
}

/// This node with its current backend and the previous one.
#[derive(Clone, Copy)]
pub(super) struct NodeBackends<'a> {
    pub(super) current: Node<'a>,
    pub(super) previous: Option<&'a KeptBackend>,
}

impl<'a> NodeBackends<'a> {
    /// A node without a previous backend.
    pub(super) fn new(current: Node<'a>) -> Self {
        Self { current, previous: None }
    }

    /// Returns the previous backend if a peer that publishes `data` has to be served by it.
    pub(super) fn previous_for(&self, data: &BackendData) -> Option<&'a KeptBackend> {
        let previous = self.previous.filter(|previous| data.matches(previous.backend()));
        previous.filter(|_| !data.matches(&self.current.conf.backend))
    }
}
