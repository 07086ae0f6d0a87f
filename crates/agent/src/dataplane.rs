// SPDX-License-Identifier: Apache-2.0
//! The kernel state that the agent maintains, as two independent dataplanes: devices and routes,
//! and nf_tables. Each compares the desired state with the observed state, applies the difference,
//! and repairs what other programs change.

pub mod nft;
pub mod routes;
pub mod thread;
