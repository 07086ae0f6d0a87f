// SPDX-License-Identifier: Apache-2.0
//! Code shared by the plugins that create or change a container's interface.

pub(crate) mod check;
pub(crate) mod container_link;
pub(crate) mod dns;
pub(crate) mod interface;
pub(crate) mod ipam;
pub(crate) mod mac;
pub mod names;
pub(crate) mod netns;
pub(crate) mod prev_result;
pub(crate) mod undo;
pub(crate) mod veth;
