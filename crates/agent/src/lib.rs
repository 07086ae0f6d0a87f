// SPDX-License-Identifier: Apache-2.0
//! The node daemon. What decides anything is pure and in modules of its own; the rest orders and
//! repeats.

pub mod blackhole;
mod bridge;
pub mod cleanup;
pub mod cni_conf;
pub mod dataplane;
mod ear;
mod file;
mod journal;
mod kept;
mod keys;
pub mod lease;
pub mod mark;
pub mod multicast;
pub mod net_config;
pub mod notify;
pub mod options;
pub mod path;
pub mod run;
pub mod serve;
mod session;
pub mod status;
pub mod subnet_env;
pub mod underlay;
mod watched;
