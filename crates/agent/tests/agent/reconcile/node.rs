// SPDX-License-Identifier: Apache-2.0
//! A node with one interface, and a network of any number of peers.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

use agent::dataplane::routes::{Options, Outcome, PeerUpdate, Reconciler, Secrets, UdpTunnelSlot};
use kernel::{IfName, Netlink};
use overlay::Addresses;
use overlay::lease::Lease;
use overlay::netconf::NetConf;
use overlay::plan::{Network, Underlay};
use serde_json::Value;
use testkit::{Ns, wait_for};

/// Time limit for what the dataplane thread does by itself. A busy machine may be slow.
pub const SOON: Duration = Duration::from_secs(30);

pub fn ip(args: &str) -> String {
    Ns::here().ip(&args.split_whitespace().collect::<Vec<_>>())
}

pub fn ip_json(args: &str) -> Vec<Value> {
    let Value::Array(all) = Ns::here().ip_json(&args.split_whitespace().collect::<Vec<_>>()) else {
        panic!("`ip {args}` printed no list")
    };
    all
}

/// Returns the permanent forwarding entries of tunnels.
pub fn forwarding() -> Vec<String> {
    let text = testkit::run("bridge", &["fdb", "show"]);
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| line.contains("dev flannel") && line.contains(" dst "))
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.sort();
    lines
}

/// Creates `eth0`, a veth pair whose other end is in this namespace too.
///
/// Later changes by the kernel would be taken for effects of the test. So there are no link-local
/// addresses, which the kernel checks for duplicates, and both ends are up when this returns.
pub fn make_eth0() {
    std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap();
    ip("link add eth0 type veth peer name wire");
    ip("link set eth0 up");
    ip("link set wire up");
    wait_for("both ends to be up", SOON, || ip("link show up").matches("state UP").count() == 2);
    ip("address add 172.16.0.1/12 dev eth0");
    ip("address add fd00:90::1/64 dev eth0 nodad");
}

pub fn options() -> Options {
    Options {
        owner: "podwire".to_owned(),
        earlier_networks: Vec::new(),
        secrets: Secrets::default(),
        queues: 1,
        udp: UdpTunnelSlot::default(),
    }
}

/// Returns whether nothing had to be changed, and nothing failed or conflicted.
pub fn is_unchanged(outcome: &Outcome) -> bool {
    outcome.changes.is_empty() && outcome.failures.is_empty() && outcome.conflicts.is_empty()
}

pub fn open() -> Reconciler {
    Reconciler::open(options()).unwrap()
}

pub fn conf(backend: &str) -> NetConf {
    let text = format!(r#"{{"Network": "10.0.0.0/8", "Backend": {backend}}}"#);
    NetConf::parse(&text).unwrap()
}

pub fn underlay() -> Underlay {
    let name: IfName = "eth0".parse().unwrap();
    let link = kernel::link::by_name(&Netlink::open().unwrap(), name).unwrap().unwrap();
    Underlay {
        name,
        index: link.index,
        mtu: link.mtu,
        addresses: Addresses {
            v4: Some("172.16.0.1".parse().unwrap()),
            v6: Some("fd00:90::1".parse().unwrap()),
        },
        on_link: HashMap::new(),
    }
}

pub fn subnet(n: u32) -> String {
    format!("{}/24", Ipv4Addr::from_bits((10 << 24) + (n << 8)))
}

pub fn public(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((172 << 24) + (16 << 16) + n)
}

pub fn mac(n: u32) -> String {
    let [_, a, b, c] = n.to_be_bytes();
    format!("02:00:00:{a:02x}:{b:02x}:{c:02x}")
}

/// The lease of node `n`. This node is number 1.
pub fn lease(conf: &NetConf, n: u32) -> Lease {
    let data = match conf.backend.name() {
        "vxlan" => {
            format!(r#","BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{}"}}"#, mac(n))
        }
        "udp" => String::new(),
        other => format!(r#","BackendType":"{other}""#),
    };
    let value = format!(r#"{{"PublicIP":"{}","PublicIPv6":null{data}}}"#, public(n));
    Lease::parse(&subnet(n).replace('/', "-"), value.as_bytes()).unwrap()
}

pub fn network(backend: &str, peers: impl Iterator<Item = u32>) -> Network {
    let conf = conf(backend);
    let peers: BTreeMap<String, (u64, Lease)> =
        peers.map(|n| (format!("node-{n}"), (0, lease(&conf, n)))).collect();
    let own = lease(&conf, 1);
    Network::new(conf, own, underlay(), peers).unwrap()
}

pub fn set(backend: &str, n: u32) -> PeerUpdate {
    PeerUpdate::Set { name: format!("node-{n}"), since: 0, lease: lease(&conf(backend), n) }
}

pub fn remove(n: u32) -> PeerUpdate {
    PeerUpdate::Remove { name: format!("node-{n}") }
}
