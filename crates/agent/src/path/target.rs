// SPDX-License-Identifier: Apache-2.0
//! Where a peer's kernel answers, whoever runs there, flannel or we.

use std::net::IpAddr;

use ipnet::IpNet;
use kernel::{Family, IfName};
use overlay::lease::Lease;
use overlay::netconf::Backend;
use overlay::plan::{DeviceKind, Plan};

/// What to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The peer's name.
    pub peer: String,
    /// Its pods.
    pub subnet: IpNet,
    /// An address of its kernel's that is reached as its pods are.
    pub address: IpAddr,
    /// What pods send at once.
    pub full: u32,
    /// What a tunnel adds to it.
    pub overhead: u32,
    /// The tunnel's device, if its checksums can be repaired.
    pub device: Option<IfName>,
}

impl Target {
    /// A peer has one for each family at most.
    pub(super) fn key(&self) -> (String, Family) {
        (self.peer.clone(), Family::of(self.subnet.addr()))
    }
}

/// Where to check a peer: for each of its subnets that is served the base address, which a tunnel's device
/// has; without tunnels the peer's own address. `underlay_mtu` is that of the interface to other nodes.
pub fn targets(
    backend: &Backend,
    plan: &Plan,
    underlay_mtu: u32,
    peer: &str,
    lease: &Lease,
) -> Vec<Target> {
    let target = |subnet: IpNet| {
        let device = route_device(plan, subnet)?;
        let address = match backend {
            Backend::HostGw => plan.wanted.routes.get(&subnet)?.gateway?,
            Backend::Alloc | Backend::Extension(_) => return None,
            _ => subnet.network(),
        };
        let tunnel = plan.wanted.devices.get(&device);
        let is_vxlan = tunnel.is_some_and(|device| matches!(device.kind, DeviceKind::Vxlan(_)));
        Some(Target {
            peer: peer.to_owned(),
            subnet,
            address,
            full: plan.pod_mtu,
            overhead: tunnel.map_or(0, |tunnel| underlay_mtu.saturating_sub(tunnel.mtu)),
            device: Some(device).filter(|_| is_vxlan),
        })
    };
    lease.subnets.iter().filter_map(target).collect()
}

/// The device of the most specific route: some tunnels have one for the whole network.
fn route_device(plan: &Plan, subnet: IpNet) -> Option<IfName> {
    let routes = plan.wanted.routes.iter().filter(|(dst, _)| dst.contains(&subnet));
    routes.max_by_key(|(dst, _)| dst.prefix_len()).map(|(_, route)| route.device)
}
