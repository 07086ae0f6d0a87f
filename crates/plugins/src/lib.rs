// SPDX-License-Identifier: Apache-2.0
//! All CNI plugins: one module per plugin under `main`, `ipam` and `meta`. [`registry`] is the
//! table of their names. The other modules hold code that several plugins share.

pub mod attach;
pub mod compat;
pub mod dbus;
pub mod error;
pub mod host_sysctl;
pub mod install;
pub mod ipam;
pub mod multicall;
pub mod nftables;
pub mod registry;
pub mod state_file;

/// Plugins that create interfaces.
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
