// SPDX-License-Identifier: Apache-2.0
//! A namespace is a node: what a reconciler makes there, leaves alone and repairs.

mod backends;
mod events;
mod node;
mod peers;
mod recorded_flannel;
mod repairs;
