// SPDX-License-Identifier: Apache-2.0
//! Everything that exists only because of the Go plugins and of iptables: the rules that they leave
//! behind, the names that they derive, and rules that a configuration wants to be made by iptables.

pub mod go_nft;
pub mod iptables;
pub mod names;
pub mod portmap_iptables;
