// SPDX-License-Identifier: Apache-2.0
//! The life of an attachment: an ADD that fails leaves nothing, DEL works whatever is missing,
//! CHECK notices damage, STATUS says why, GC frees what nobody claims.

mod bandwidth;
mod check;
mod del;
mod failure;
mod flannel;
mod gc;
mod host_device;
mod host_device_home;
mod links;
mod links_outside;
mod locks;
mod masquerade;
mod no_nf_tables;
mod options;
mod sample;
mod sbr;
mod spoofing;
mod status;
mod tap;
mod traffic;
mod tuning;
mod vlan;
mod vlan_gateway;
mod vrf;
