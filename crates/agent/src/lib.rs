// SPDX-License-Identifier: Apache-2.0
//! The node daemon. What decides anything is pure and in modules of its own; the rest orders and
//! repeats.

pub mod api;
mod async_fd;
pub mod blackhole;
pub mod cleanup;
pub mod dataplane;
mod file_watcher;
mod keys;
pub mod lease;
mod managed_file;
pub mod multicast;
pub mod net_config;
pub mod node_files;
pub mod owner;
pub mod path_check;
pub mod run;
mod session;
pub mod settings;
pub mod status;
pub mod underlay;
