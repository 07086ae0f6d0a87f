// SPDX-License-Identifier: Apache-2.0
//! `calico`: wiring, traffic, names, annotations, removal. Most tests use host-local, which needs no
//! agent.

mod agent;
mod annotations;
mod invalid;
mod ipam;
mod life;
mod options;
mod removal;
mod wiring;

pub use self::life::own_var_lib;

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::call::Call;
use crate::conf::{network, ranges, with};
use crate::world::World;

/// calico with these keys. The nodename file of the machine must not matter.
pub fn calico(more: &Value) -> Value {
    let base = json!({"nodename_file_optional": true, "ipam": v4()});
    with(network("calico", &base), more)
}

fn v4() -> Value {
    ranges(&json!([[{"subnet": "10.1.0.0/24"}]]))
}

/// Starts a stand-in for the agent with this state directory.
pub fn start_agent(socket: &str, state_dir: &str) -> impl Sized {
    agent::Agent::start_in(socket, state_dir)
}

/// CNI_ARGS of a pod of Kubernetes.
fn pod_args(name: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID=u-{name}")
}

/// A call for the pod `web1`, `web2` and so on.
fn pod_call(world: &World, config: &Value, pod: usize) -> Call {
    world.call(config, pod).args(&pod_args(&format!("web{pod}")))
}

/// The names that `printf default.web1 | sha1sum` and so on give.
const NAMES: [&str; 3] = ["cali15104693972", "cali4e54bcdb445", "cali2edf923f493"];

/// An address of a result.
#[track_caller]
fn address(result: &Value, at: usize) -> IpAddr {
    let text = result["ips"][at]["address"].as_str().expect("an address");
    let (address, _) = text.split_once('/').expect("a prefix length");
    address.parse().expect("an address")
}

/// Host ends on the host.
fn host_ends(world: &World) -> Vec<String> {
    let found = world.host.ip_json(&["link", "show", "type", "veth"]);
    let names = found.as_array().expect("ip prints a list").iter();
    names.map(|link| link["ifname"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A value below `/proc/sys/net` in a namespace.
fn sysctl(ns: &testkit::Ns, path: &str) -> String {
    ns.exec("cat", &[&format!("/proc/sys/net/{path}")]).trim().to_owned()
}
