// SPDX-License-Identifier: Apache-2.0
//! The lifecycle of an attachment: a failed ADD leaves nothing, DEL works with missing state, CHECK
//! detects damage, STATUS reports causes, GC removes stale attachments.

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
