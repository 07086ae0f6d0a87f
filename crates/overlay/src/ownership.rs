// SPDX-License-Identifier: Apache-2.0
//! Decides which kernel objects the agent may change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use kernel::route::PROTOCOL_BOOT;
use kernel::{Family, IfName};
use sha2::{Digest, Sha256};

use crate::backend::{Backend, ipip, udp, vxlan, wireguard};
use crate::desired::default_metric;
use crate::netconf::NetConf;
use crate::observed::{ObservedDevice, ObservedRoute};
use crate::routed;

/// Protocol number of podwire's routes and next-hop objects. The agent finds them by it after a crash
/// and after any change of configuration. iproute2's `rt_protos` lists the numbers of other programs.
pub const PROTOCOL: u8 = 112;

/// Next-hop IDs of all podwire agents. Other programs usually count up from one.
pub const NEXTHOP_IDS: RangeInclusive<u32> = 0x7000_0000..=0x7fff_ffff;

/// Kernel objects that belong to one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// Owner tag, set as the alias of the agent's devices.
    pub owner: String,
    /// Device names used by podwire and flannel, with the link kind of each. The agent adopts a
    /// matching device that has no alias.
    pub known_devices: BTreeMap<IfName, &'static str>,
    /// Devices that the agent created or adopted. The agent still owns them after another program has
    /// changed their alias.
    pub adopted: BTreeSet<IfName>,
    /// Networks of the current and of earlier configurations.
    pub networks: Vec<IpNet>,
    /// Whether undesired blackhole routes of flannel in `networks` are removed, like podwire's. A blackhole
    /// route does not show which agent made it.
    pub removes_flannel_blackholes: bool,
    /// Next-hop IDs of this agent. `None` for kernels before 5.3.
    pub nexthops: Option<RangeInclusive<u32>>,
    /// Lowest next-hop ID that is known to be free.
    /// [`ObservedState::nexthops`](crate::observed::ObservedState::nexthops) may lack lower IDs.
    pub first_free_nexthop: u32,
}

impl Ownership {
    /// Creates the ownership rules for a configuration. `owner` distinguishes the agents of several
    /// networks on one node.
    pub fn new(conf: &NetConf, owner: &str) -> Self {
        let vni = match &conf.backend {
            Backend::Vxlan(vxlan) => vxlan.vni,
            // flannel's default.
            _ => 1,
        };
        Self::with_vni(owner, vni, conf.networks.iter().collect())
    }

    /// Creates the ownership rules for routed pods with addresses from these pools.
    pub fn for_routed(owner: &str, pools: Vec<IpNet>) -> Self {
        Self { known_devices: routed::known_devices(), ..Self::with_vni(owner, 1, pools) }
    }

    /// Creates the ownership rules for removing all objects of an owner. Devices and next hops carry
    /// the owner tag. Routes do so only through their next-hop object; routes without one are
    /// recognized by their destination in one of `networks`.
    pub fn for_cleanup(owner: &str, networks: Vec<IpNet>) -> Self {
        let (known_devices, removes_flannel_blackholes) = (BTreeMap::new(), false);
        let all = Self::with_vni(owner, 1, networks);
        Self { known_devices, removes_flannel_blackholes, ..all }
    }

    fn with_vni(owner: &str, vni: u32, networks: Vec<IpNet>) -> Self {
        let known_devices = BTreeMap::from([
            (vxlan::device_name(vni, Family::V4), "vxlan"),
            (vxlan::device_name(vni, Family::V6), "vxlan"),
            (wireguard::device_name(Family::V4), "wireguard"),
            (wireguard::device_name(Family::V6), "wireguard"),
            (ipip::device_name(), "ipip"),
            (udp::device_name(), "tun"),
        ]);
        let nexthops = nexthop_range(owner);
        Self {
            owner: owner.to_owned(),
            known_devices,
            adopted: BTreeSet::new(),
            networks,
            removes_flannel_blackholes: true,
            first_free_nexthop: *nexthops.start(),
            nexthops: Some(nexthops),
        }
    }

    /// Returns whether a device is the agent's, or one of flannel's that the agent adopts. A device
    /// with another alias belongs to another agent.
    pub fn owns_device(&self, device: &ObservedDevice) -> bool {
        let is_known = || self.known_devices.get(&device.name) == Some(&device.kind.name());
        match &device.alias {
            Some(alias) if *alias == self.owner => true,
            Some(_) => self.adopted.contains(&device.name) && is_known(),
            None => is_known(),
        }
    }

    /// Returns whether the next-hop object of a route is this agent's, or `None` if the route has no
    /// next-hop object of any podwire agent.
    pub(crate) fn owns_nexthop_of(&self, route: &ObservedRoute) -> Option<bool> {
        let id = route.nexthop.filter(|id| NEXTHOP_IDS.contains(id))?;
        Some(self.nexthops.as_ref().is_some_and(|ours| ours.contains(&id)))
    }

    /// Returns whether an undesired blackhole route has to be removed. flannel does not mark its
    /// blackhole routes; no other program has reason to make one inside the network.
    pub(crate) fn is_stale_blackhole(&self, observed: &ObservedRoute) -> bool {
        let dst = observed.route.dst;
        let is_flannels =
            observed.protocol == PROTOCOL_BOOT && observed.metric == default_metric(dst);
        let is_removable =
            observed.protocol == PROTOCOL || (self.removes_flannel_blackholes && is_flannels);
        is_removable && self.has_prefix(dst)
    }

    /// Returns whether a prefix is inside one of the networks.
    pub(crate) fn has_prefix(&self, prefix: IpNet) -> bool {
        self.networks.iter().any(|network| network.contains(&prefix))
    }
}

/// Returns whether two owners have the same range of next-hop IDs, so that their agents would remove each
/// other's next hops.
pub fn nexthop_ranges_collide(one: &str, other: &str) -> bool {
    nexthop_range(one) == nexthop_range(other)
}

/// Returns the next-hop IDs of an owner. The agent removes every next hop in this range that is not
/// desired.
fn nexthop_range(owner: &str) -> RangeInclusive<u32> {
    let [share, ..] = Sha256::digest(owner).0;
    let first = NEXTHOP_IDS.start() + (u32::from(share) << 20);
    first..=first + 0xf_ffff
}
