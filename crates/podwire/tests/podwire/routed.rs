// SPDX-License-Identifier: Apache-2.0
//! Routed pods as a runtime creates them: agents and plugins as processes, nodes in namespaces.

mod agent_killed;
mod bad_input;
mod blocks;
mod encapsulation;
mod network;
mod plugin_killed;
mod takeover;

use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Daemon, EtcdServer, Node, Ns, Wire, succeeds, wait_for, wait_some};

use super::program::{PODWIRE, names};

const TIMEOUT: Duration = Duration::from_secs(60);
const STORE: &str = "/run/lab/store.db";
const PLUGINS: &str = "/run/lab/plugins";
const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes/";
const POOLS: &str = "/calico/resources/v3/projectcalico.org/ippools/";

/// A node with routed pods.
struct Host {
    node: Node,
    flags: Vec<String>,
    agent: RefCell<Option<Daemon>>,
}

impl Host {
    /// Starts an agent with these flags, and waits until it is ready.
    #[track_caller]
    fn start(node: Node, flags: &[&str]) -> Host {
        let host = Host::stopped(node, flags);
        host.run();
        host.wait_ready();
        host
    }

    fn stopped(node: Node, flags: &[&str]) -> Host {
        let own = node.flags();
        let own = own.iter().map(String::as_str);
        let routed = ["agent", "--pods", "routed", "--pool-leak-grace", "0"].into_iter();
        let all = routed.chain(own).chain(flags.iter().copied());
        let flags = all.map(str::to_owned).collect();
        install_plugins();
        Host { node, flags, agent: RefCell::default() }
    }

    /// Starts the agent without waiting for it.
    #[track_caller]
    fn run(&self) {
        let script = format!("exec \"$@\" 2>>{}/log", self.node.dir().display());
        let words = ["-c", &script, "sh", PODWIRE].into_iter();
        let words: Vec<&str> = words.chain(self.flags.iter().map(String::as_str)).collect();
        self.agent.replace(Some(self.node.ns.start("sh", &words)));
    }

    fn kill(&self) {
        self.agent.replace(None);
    }

    /// The process of the agent.
    #[track_caller]
    fn process(&self) -> u32 {
        self.agent.borrow().as_ref().expect("the agent runs").id()
    }

    fn socket(&self) -> String {
        self.node.dir().join("run/agent.sock").display().to_string()
    }

    fn is_ready(&self) -> bool {
        succeeds("curl", &["-fsS", "--unix-socket", &self.socket(), "http://agent/readyz"])
    }

    #[track_caller]
    fn wait_ready(&self) {
        if wait_some(TIMEOUT, || self.is_ready().then_some(())).is_none() {
            panic!("the agent is not ready: {:#}\n{}", self.status(), self.log());
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.node.dir().join("log")).unwrap_or_default()
    }

    fn status(&self) -> Value {
        self.page("/status")
    }

    fn page(&self, path: &str) -> Value {
        let url = format!("http://agent{path}");
        let words = ["-sS", "--unix-socket", &self.socket(), &url];
        let text = Ns::here().try_exec("curl", &words).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Names of the journal's files of pods.
    fn journal(&self) -> Vec<String> {
        let files = names(&self.node.dir().join("state/ipam"));
        files.into_iter().filter(|name| name.starts_with("net.")).collect()
    }

    /// Host ends of pods.
    fn host_ends(&self) -> Vec<String> {
        let found = self.node.ns.ip_json(&["link", "show", "type", "veth"]);
        let names = found.as_array().unwrap().iter();
        let names = names.map(|link| link["ifname"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("cali")).collect()
    }

    /// Routes of the agent: destination and the rest.
    #[track_caller]
    fn routes(&self, family: &str) -> Vec<Value> {
        let routes = self.node.ns.ip_json(&[family, "route", "show", "proto", "112"]);
        routes.as_array().cloned().unwrap_or_default()
    }

    /// Creates a pod with this configuration.
    #[track_caller]
    fn pod(&self, name: &str, conf: &Value) -> RoutedPod<'_> {
        let mut pod = RoutedPod::new(self, name, conf);
        pod.add();
        pod
    }
}

/// The program under the names of the plugins.
fn install_plugins() {
    fs::create_dir_all(PLUGINS).unwrap();
    for name in ["calico", "calico-ipam", "ptp"] {
        // Every host does so.
        let _ = std::os::unix::fs::symlink(PODWIRE, Path::new(PLUGINS).join(name));
    }
}

/// A network namespace, and the plugin calls of a runtime for it.
struct RoutedPod<'a> {
    ns: Ns,
    host: &'a Host,
    netns: String,
    container: String,
    ifname: &'static str,
    args: String,
    conf: Value,
    result: Value,
}

impl<'a> RoutedPod<'a> {
    #[track_caller]
    fn new(host: &'a Host, name: &str, conf: &Value) -> RoutedPod<'a> {
        let container = format!("c-{name}");
        let args = format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
        let (ns, conf) = (Ns::new(name), conf.clone());
        let netns = ns.path().display().to_string();
        RoutedPod { ns, host, netns, container, ifname: "eth0", args, conf, result: Value::Null }
    }

    #[track_caller]
    fn add(&mut self) {
        self.result = self.call("ADD").unwrap_or_else(|error| panic!("ADD: {error}"));
    }

    #[track_caller]
    fn del(&self) {
        self.call("DEL").unwrap_or_else(|error| panic!("DEL: {error}"));
    }

    /// Runs a verb. The error is what the plugin printed.
    fn call(&self, verb: &str) -> Result<Value, String> {
        self.call_under(&[], verb)
    }

    /// Runs a verb under a program such as `strace`.
    fn call_under(&self, wrapper: &[&str], verb: &str) -> Result<Value, String> {
        let mut conf = self.conf.clone();
        let dir = self.host.node.dir();
        conf["agent_socket"] = self.host.socket().into();
        conf["agent_state_dir"] = dir.join("state").display().to_string().into();
        if conf["type"] == "calico" {
            conf["nodename_file"] = dir.join("calico/nodename").display().to_string().into();
        }
        if verb != "ADD" && !self.result.is_null() {
            conf["prevResult"] = self.result.clone();
        }
        let variables = [
            format!("CNI_COMMAND={verb}"),
            format!("CNI_CONTAINERID={}", self.container),
            format!("CNI_NETNS={}", self.netns),
            format!("CNI_IFNAME={}", self.ifname),
            format!("CNI_ARGS={}", self.args),
            format!("CNI_PATH={PLUGINS}"),
        ];
        let plugin = format!("{PLUGINS}/{}", conf["type"].as_str().unwrap());
        let file = dir.join(format!("{}.conf", self.container)).display().to_string();
        fs::write(&file, conf.to_string()).unwrap();
        let script = ["-c", "file=$1; shift; exec \"$@\" <\"$file\"", "sh", &file];
        let words = variables.iter().map(String::as_str).chain(["sh"]).chain(script);
        let words: Vec<&str> = words.chain(wrapper.iter().copied()).chain([&*plugin]).collect();
        let printed = self.host.node.ns.try_exec("env", &words)?;
        Ok(serde_json::from_str(&printed).unwrap_or_default())
    }

    #[track_caller]
    fn addresses(&self) -> Vec<IpAddr> {
        let ips = self.result["ips"].as_array().unwrap().iter();
        let texts = ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap());
        texts.map(|text| text.parse().unwrap()).collect()
    }

    fn reaches(&self, other: &RoutedPod<'_>) -> bool {
        other.addresses().iter().all(|address| testkit::can_ping(&self.ns, *address))
    }
}

/// Waits until all pods reach each other.
#[track_caller]
fn all_reach_all(pods: &[&RoutedPod<'_>]) {
    for from in pods {
        for to in pods.iter().filter(|to| to.container != from.container) {
            if wait_some(TIMEOUT, || from.reaches(to).then_some(())).is_none() {
                let state = [from, to].map(|pod| {
                    let routes = pod.host.node.sh("ip route; ip -6 route");
                    (routes, pod.host.status())
                });
                panic!("{} does not reach {}: {state:#?}", from.container, to.container);
            }
        }
    }
}

/// calico with addresses from pools.
fn calico(ipv4: bool, ipv6: bool) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "calico", "ipam": {
        "type": "calico-ipam", "assign_ipv4": ipv4, "assign_ipv6": ipv6}})
}

/// calico with the addition of these keys.
fn with(mut conf: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

fn etcd() -> EtcdServer {
    testkit::require!(Program("etcd"), Program("etcdctl"), Program("curl"));
    let mut server = EtcdServer::at("/run/lab/etcd".as_ref(), Wire::HOST);
    server.start();
    server.wait();
    server
}

/// Puts a pool into etcd as Calico's tools do.
fn put_pool(server: &EtcdServer, name: &str, spec: &Value) {
    let pool = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "uid": "u", "creationTimestamp": "2026-06-15T12:00:00Z"},
        "spec": spec});
    server.ctl(&["put", &format!("{POOLS}{name}"), &pool.to_string()]);
}

/// Allocations in etcd: handle and node, by address. Without those that nodes only set aside.
fn allocations(server: &EtcdServer) -> Vec<(IpAddr, String, String)> {
    let mut found = Vec::new();
    for (_, value) in server.entries(BLOCKS) {
        // Tests also put values there that are no blocks.
        let block: Value = serde_json::from_str(&value).unwrap_or_default();
        let Some((first, _)) = block["cidr"].as_str().and_then(|cidr| cidr.split_once('/')) else {
            continue;
        };
        let first: IpAddr = first.parse().unwrap();
        for (ordinal, index) in block["allocations"].as_array().unwrap().iter().enumerate() {
            let Some(index) = index.as_u64() else { continue };
            let attribute = &block["attributes"][usize::try_from(index).unwrap()];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let handle = text(&attribute["handle_id"]);
            if !handle.starts_with("podwire-reserved-") {
                let node = text(&attribute["secondary"]["node"]);
                found.push((nth(first, ordinal as u128), handle, node));
            }
        }
    }
    found
}

/// Allocations of pods.
fn pod_allocations(server: &EtcdServer) -> Vec<(IpAddr, String, String)> {
    let is_pod = |one: &(IpAddr, String, String)| one.1.starts_with("net.");
    allocations(server).into_iter().filter(is_pod).collect()
}

fn nth(first: IpAddr, ordinal: u128) -> IpAddr {
    match first {
        IpAddr::V4(first) => {
            IpAddr::V4((u32::from(first) + u32::try_from(ordinal).unwrap()).into())
        }
        IpAddr::V6(first) => IpAddr::V6((u128::from(first) + ordinal).into()),
    }
}

#[track_caller]
fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_for(what, TIMEOUT, condition);
}
