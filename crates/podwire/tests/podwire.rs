// SPDX-License-Identifier: Apache-2.0
//! The `podwire` program as its users run it, each test in namespaces of its own and checked with
//! outside tools.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod podwire {
    mod agent_killed;
    mod agent_told;
    mod cleanup;
    mod demo;
    mod demo_nodes;
    mod net;
    mod net_memory;
    mod node;
    mod pod;
    mod program;
    mod safe_output;
}
