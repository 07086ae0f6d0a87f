// SPDX-License-Identifier: Apache-2.0
//! The node daemon: independent controllers under a supervisor. Decisions are pure functions in modules of
//! their own.

pub mod api;
mod async_fd;
pub mod cleanup;
pub mod dataplane;
mod dry_run;
mod extension;
mod file_watcher;
mod keys;
pub mod lease;
mod managed_file;
mod membership;
pub mod multicast;
mod nat;
pub mod net_config;
mod node_condition;
pub mod node_files;
mod overlay;
pub mod owner;
pub mod path_check;
mod paths;
mod pools;
mod routed;
pub mod run;
pub mod settings;
pub mod status;
pub mod supervisor;
pub mod underlay;
