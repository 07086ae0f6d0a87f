// SPDX-License-Identifier: Apache-2.0
//! The one table of plugins.

use cni::Plugin;

use crate::ipam::{dhcp, host_local, static_addresses};
use crate::main::{bridge, host_device, loopback, podwire, ptp, tap};
use crate::meta::{bandwidth, flannel, portmap, sample, sbr, tuning, vrf};

/// Every plugin of this program, by name.
pub const PLUGINS: &[&Plugin] = &[
    &bandwidth::PLUGIN,
    &bridge::PLUGIN,
    &dhcp::PLUGIN,
    &flannel::PLUGIN,
    &host_device::PLUGIN,
    &host_local::PLUGIN,
    &loopback::PLUGIN,
    &podwire::PLUGIN,
    &portmap::PLUGIN,
    &ptp::PLUGIN,
    &sample::PLUGIN,
    &sbr::PLUGIN,
    &static_addresses::PLUGIN,
    &tap::PLUGIN,
    &tuning::PLUGIN,
    &vrf::PLUGIN,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        let names: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
    }
}
