// SPDX-License-Identifier: Apache-2.0
//! Tests of the `podwire` program as users run it. Each test has its own namespaces and checks with
//! outside tools.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]
#![expect(unreachable_pub, reason = "a test program has no users")]

mod podwire {
    mod agent_killed;
    mod agent_process;
    mod cleanup;
    mod demo;
    mod demo_cluster;
    mod net;
    mod net_cache;
    mod output_safety;
    mod pod;
    mod program;
    mod routed;
    mod status;
}
