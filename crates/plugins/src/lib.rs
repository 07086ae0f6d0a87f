// SPDX-License-Identifier: Apache-2.0
//! All CNI plugins: one module per plugin under `main`, `ipam` and `meta`. [`registry`] is the
//! table of their names. The other modules hold code that several plugins share.

pub mod attach;
mod compat;
mod dbus;
mod error;
mod host_sysctl;
pub mod install;
pub mod ipam;
pub mod multicall;
mod nftables;
pub mod registry;
mod state_file;

/// Plugins that create interfaces.
pub mod main {
    pub(crate) mod bridge;
    pub mod calico;
    pub(crate) mod dummy;
    pub(crate) mod host_device;
    pub(crate) mod ipvlan;
    pub(crate) mod loopback;
    pub(crate) mod macvlan;
    pub mod podwire;
    pub(crate) mod ptp;
    pub(crate) mod tap;
    pub(crate) mod vlan;

    /// Returns an error if the network has no IPAM plugin.
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

/// Plugins that change the interface of an earlier plugin.
pub(crate) mod meta {
    pub(crate) mod bandwidth;
    pub(crate) mod firewall;
    pub(crate) mod flannel;
    pub(crate) mod portmap;
    pub(crate) mod sample;
    pub(crate) mod sbr;
    pub(crate) mod tuning;
    pub(crate) mod vrf;
}
