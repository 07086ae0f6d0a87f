// SPDX-License-Identifier: Apache-2.0
//! Tests of this library against the specification and libcni, the reference library. External plugins are shell
//! scripts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(unreachable_pub, reason = "a test program has no users")]

#[path = "cni/conf_dir.rs"]
mod conf_dir;
#[path = "cni/delegate.rs"]
mod delegate;
#[path = "cni/exec.rs"]
mod exec;
#[path = "cni/lab.rs"]
mod lab;
#[path = "cni/network_list.rs"]
mod network_list;
#[path = "cni/plugin.rs"]
mod plugin;
#[path = "cni/result.rs"]
mod result;
#[path = "cni/result_properties.rs"]
mod result_properties;
#[path = "cni/runtime_add.rs"]
mod runtime_add;
#[path = "cni/runtime_cache.rs"]
mod runtime_cache;
#[path = "cni/runtime_gc.rs"]
mod runtime_gc;
#[path = "cni/runtime_validate.rs"]
mod runtime_validate;
