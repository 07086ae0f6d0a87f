// SPDX-License-Identifier: Apache-2.0
//! Code shared by the plugins that create or change a container's interface.

pub mod check;
pub mod container_link;
pub mod dns;
pub mod interface;
pub mod ipam;
pub mod mac;
pub mod names;
pub mod netns;
pub mod prev_result;
pub mod undo;
pub mod veth;
