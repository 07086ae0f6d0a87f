// SPDX-License-Identifier: Apache-2.0
//! The state machine of a node, through its public interface.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
#![expect(unreachable_pub, reason = "a test program has no users")]

mod check;
mod cluster;
mod collection;
mod lab;
mod random;
mod scenarios;
mod store;
