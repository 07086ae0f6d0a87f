// SPDX-License-Identifier: Apache-2.0
//! Paths between two nodes: good, with a small MTU, unreachable, and with wrong checksums.

mod checksums;
pub mod lab;
mod sizes;
