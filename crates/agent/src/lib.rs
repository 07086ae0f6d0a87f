// SPDX-License-Identifier: Apache-2.0
//! The node daemon. What decides anything is pure and in modules of its own; the rest orders and
//! repeats.

pub mod board;
pub mod leases;
pub mod options;
pub mod underlay;
