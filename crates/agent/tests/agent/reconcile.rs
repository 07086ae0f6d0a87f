// SPDX-License-Identifier: Apache-2.0
//! The routes dataplane in a network namespace that stands for a node.

mod backends;
mod blackholes;
mod events;
pub mod node;
mod peers;
mod recorded_flannel;
mod repairs;
