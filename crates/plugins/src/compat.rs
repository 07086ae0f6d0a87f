// SPDX-License-Identifier: Apache-2.0
//! Compatibility with the Go plugins and with iptables: the rules that the Go plugins left, the
//! names that they use, and the backend `iptables`.

pub(crate) mod go_nft;
pub(crate) mod iptables;
pub(crate) mod names;
pub(crate) mod portmap_iptables;
