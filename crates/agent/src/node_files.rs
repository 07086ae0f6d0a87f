// SPDX-License-Identifier: Apache-2.0
//! Files on the node that CNI plugins and container runtimes read, and the bridge that belongs to them.

pub(crate) mod bridge;
pub mod cni_conf;
pub mod subnet_env;
