// SPDX-License-Identifier: Apache-2.0
//! The table of all plugins.

use cni::Plugin;

use crate::ipam::{calico_ipam, dhcp, host_local, static_addresses};
use crate::main::{
    bridge, calico, dummy, host_device, ipvlan, loopback, macvlan, podwire, ptp, tap, vlan,
};
use crate::meta::{bandwidth, firewall, flannel, portmap, sample, sbr, tuning, vrf};

/// All plugins of this program, sorted by name.
pub const PLUGINS: &[&Plugin] = &[
    &bandwidth::PLUGIN,
    &bridge::PLUGIN,
    &calico::PLUGIN,
    &calico_ipam::PLUGIN,
    &dhcp::PLUGIN,
    &dummy::PLUGIN,
    &firewall::PLUGIN,
    &flannel::PLUGIN,
    &host_device::PLUGIN,
    &host_local::PLUGIN,
    &ipvlan::PLUGIN,
    &loopback::PLUGIN,
    &macvlan::PLUGIN,
    &podwire::PLUGIN,
    &portmap::PLUGIN,
    &ptp::PLUGIN,
    &sample::PLUGIN,
    &sbr::PLUGIN,
    &static_addresses::PLUGIN,
    &tap::PLUGIN,
    &tuning::PLUGIN,
    &vlan::PLUGIN,
    &vrf::PLUGIN,
];

/// The plugins that assign addresses. Only these can be a network's IPAM plugin.
pub const IPAM: &[&Plugin] =
    &[&calico_ipam::PLUGIN, &dhcp::PLUGIN, &host_local::PLUGIN, &static_addresses::PLUGIN];

/// Whether this program has a plugin of this name that is not an IPAM plugin.
pub fn is_not_ipam(name: &str) -> bool {
    let has = |plugins: &[&Plugin]| plugins.iter().any(|plugin| plugin.name == name);
    has(PLUGINS) && !has(IPAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        let names: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    }
}
