// SPDX-License-Identifier: Apache-2.0
//! Paths between two nodes: good ones, narrow ones, dead ones, and ones that spoil checksums.

mod checksums;
pub mod lab;
mod sizes;
