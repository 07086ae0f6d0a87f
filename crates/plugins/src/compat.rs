// SPDX-License-Identifier: Apache-2.0
//! Compatibility with the Go plugins and with iptables: the rules that the Go plugins left, the
//! names that they use, and the backend `iptables`.

pub mod go_nft;
pub mod iptables;
pub mod names;
pub mod portmap_iptables;
