// SPDX-License-Identifier: Apache-2.0
//! The backend of an earlier configuration. Nodes read a changed configuration at different times,
//! so a node keeps its previous backend until no peer publishes it, and serves each peer by the
//! backend that the peer publishes. Both ends of a pair then use the same tunnel at all times: a
//! reverse path filter drops packets that arrive by another device than they would leave by.

use ipnet::IpNet;

use crate::backend::{Backend, BackendData};
use crate::desired::{DesiredRoute, DesiredState};
use crate::lease::{Attributes, Lease};
use crate::netconf::NetConf;
use crate::plan::{Error, Node, Underlay, devices};

/// A backend that this node had, with the data that it published for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviousBackend {
    backend: Backend,
    data: BackendData,
}

impl PreviousBackend {
    /// None if peers cannot be told apart by their leases, or if this node keeps no device for the
    /// previous backend.
    pub fn new(backend: Backend, data: BackendData, now: &Backend) -> Option<Self> {
        (are_distinguishable(&backend, now) && data.matches(&backend))
            .then_some(Self { backend, data })
    }
}

/// Whether a lease shows which of two backends its node has, and both can exist on one node.
/// Neither the port of VXLAN or udp nor a pre-shared key is published.
pub fn are_distinguishable(before: &Backend, now: &Backend) -> bool {
    match (before, now) {
        (Backend::Alloc | Backend::Extension(_), _) | (Backend::Udp(_), Backend::Alloc) => false,
        (Backend::Vxlan(before), Backend::Vxlan(now)) => before.vni != now.vni,
        _ => before.name() != now.name(),
    }
}

/// The previous backend as part of a network.
#[derive(Debug)]
pub(super) struct Kept {
    conf: NetConf,
    lease: Lease,
    /// Desired state without any peer. The routes are only a pattern: the current backend has the
    /// route to the whole network.
    base: DesiredState,
    /// No peer published it when [`super::Network::expire_previous`] was last called.
    pub(super) is_idle: bool,
}

impl Kept {
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

    /// Adds the devices and their addresses.
    pub(super) fn add_to(&self, base: &mut DesiredState) {
        base.devices.extend(self.base.devices.clone());
        base.addresses.extend(self.base.addresses.iter().copied());
    }

    pub(super) fn node<'a>(&'a self, underlay: &'a Underlay) -> Node<'a> {
        Node { conf: &self.conf, lease: &self.lease, underlay }
    }

    /// The route to a peer's subnet, for tunnels that have one route for the whole network.
    pub(super) fn route(&self, subnet: IpNet) -> Option<DesiredRoute> {
        let whole = self.base.routes.values().find(|route| route.dst.contains(&subnet))?;
        Some(DesiredRoute { dst: subnet, ..*whole })
    }
}

/// This node with the current backend, and with the previous one.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    pub(super) now: Node<'a>,
    pub(super) before: Option<&'a Kept>,
}

impl<'a> Ends<'a> {
    pub(super) fn new(now: Node<'a>) -> Self {
        Self { now, before: None }
    }

    /// The previous backend, if a peer with this data has to be served by it.
    pub(super) fn previous_for(&self, data: &BackendData) -> Option<&'a Kept> {
        let before = self.before.filter(|before| data.matches(before.backend()));
        before.filter(|_| !data.matches(&self.now.conf.backend))
    }
}
