// SPDX-License-Identifier: Apache-2.0
//! Private namespaces, labs of pods and nodes, and probes with outside tools.
//!
//! For tests only: every function panics on failure, so a test needs no error handling and its backtrace
//! points at the failed line. The crate uses no other podwire crate: the outside tools `ip`, `nft`
//! and `ping` are the oracle.

mod api_server;
mod authority;
mod certificates;
mod command;
mod etcd;
mod in_netns;
mod in_node;
mod need;
mod nodes;
mod ns;
mod paths;
mod pinging;
mod probe;
mod program;
mod recorded;
mod wait;

pub use self::api_server::ApiServer;
pub use self::authority::Authority;
pub use self::certificates::hide_system_certificates;
pub use self::command::{Daemon, json, run, succeeds, try_run};
pub use self::etcd::EtcdServer;
pub use self::in_netns::{in_netns, is_inside};
pub use self::in_node::{cgroup_parent, in_node};
pub use self::need::{Need, missing, not_run, not_run_by_choice, require, test_name};
pub use self::nodes::{Node, Pod, Wire};
pub use self::ns::Ns;
pub use self::paths::{go_plugins, kubernetes, plugin_program, target_dir};
pub use self::pinging::Pinging;
pub use self::probe::{answers, can_ping, ping};
pub use self::program::write_program;
pub use self::recorded::Recorded;
pub use self::wait::{wait_for, wait_some};
