// SPDX-License-Identifier: Apache-2.0
//! Every CNI plugin: a module each under `main`, `ipam` and `meta`, and [`registry`], the one table
//! of their names. The other modules are what several of them need.

pub mod chained;
pub mod child;
pub mod dbus;
pub mod delegated;
pub mod dns;
pub mod fault;
pub mod forwarding;
pub mod go_names;
pub mod go_rules;
pub mod identity;
pub mod install;
pub mod ipam;
pub mod iptables;
pub mod mac;
pub mod masquerade;
pub mod multicall;
pub mod note;
pub mod pod;
pub mod registry;
pub mod rules;
pub mod undo;
pub mod verify;
pub mod veth;

/// Plugins that make interfaces.
pub mod main {
    pub mod bridge;
    pub mod dummy;
    pub mod host_device;
    pub mod ipvlan;
    pub mod loopback;
    pub mod macvlan;
    pub mod podwire;
    pub mod ptp;
    pub mod tap;
    pub mod vlan;

    /// The error for a plugin that cannot do without addresses.
    fn require_ipam(request: &cni::Request, missing: &str) -> Result<(), cni::Error> {
        match request.ipam_type()? {
            Some(_) => Ok(()),
            None => {
                let details = "key \"ipam.type\" must be set: the interface needs addresses";
                Err(cni::Error::invalid_config(missing).with_details(details))
            }
        }
    }
}

/// Plugins that change what others have made.
pub mod meta {
    pub mod bandwidth;
    pub mod firewall;
    pub mod flannel;
    pub mod portmap;
    pub mod sample;
    pub mod sbr;
    pub mod tuning;
    pub mod vrf;
}
