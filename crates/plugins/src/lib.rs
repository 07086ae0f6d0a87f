// SPDX-License-Identifier: Apache-2.0
//! Every CNI plugin: a module each under `main`, `ipam` and `meta`, and [`registry`], the one table
//! of their names. The other modules are what several of them need.

pub mod chained;
pub mod delegated;
pub mod fault;
pub mod forwarding;
pub mod go_names;
pub mod identity;
pub mod install;
pub mod ipam;
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
    pub mod host_device;
    pub mod loopback;
    pub mod podwire;
    pub mod ptp;
    pub mod tap;
}

/// Plugins that change what others have made.
pub mod meta {
    pub mod bandwidth;
    pub mod flannel;
    pub mod portmap;
    pub mod sample;
    pub mod sbr;
    pub mod tuning;
    pub mod vrf;
}
