// SPDX-License-Identifier: Apache-2.0
//! Compares plans with recorded flannel nodes, and sets routes in the real kernel.

#![expect(clippy::unwrap_used, reason = "a failing test panics")]

mod recorded;
mod routes;
