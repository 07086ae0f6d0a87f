// SPDX-License-Identifier: Apache-2.0
//! A host with an outside client and two pods on a bridge. The first pod answers each connection
//! with the client address that it sees.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Daemon, Ns, wait_some};

use crate::call::Call;
use crate::conf::{bridge, dual, network, with};
use crate::world::{Plugins, World};

/// The host's addresses on the client's network.
pub const HOST4: &str = "192.0.2.1";
pub const HOST6: &str = "fd00:2::1";

pub struct Lab {
    pub world: World,
    pub client: Ns,
    /// Result of bridge for each pod.
    pub results: Vec<Value>,
    _servers: Vec<Daemon>,
}

/// A port mapping as passed by a runtime.
pub fn port(host: u16, container: u16, protocol: &str) -> Value {
    json!({"hostPort": host, "containerPort": container, "protocol": protocol})
}

/// portmap with these mappings.
pub fn portmap(mappings: &[Value]) -> Value {
    network("portmap", &json!({"runtimeConfig": {"portMappings": mappings}}))
}

impl Lab {
    /// Creates the lab with portmap of this set; the bridge plugin is always podwire's.
    pub fn new(plugins: &Plugins) -> Lab {
        let world = World::new(plugins, 3);
        let client = Ns::new("client");
        world.host.connect("eth0", &client, "eth0");
        for (ns, host) in [(&world.host, 1), (&client, 9)] {
            ns.ip(&["addr", "add", &format!("192.0.2.{host}/24"), "dev", "eth0"]);
            ns.ip(&["addr", "add", &format!("fd00:2::{host}/64"), "dev", "eth0", "nodad"]);
        }
        client.ip(&["link", "set", "lo", "up"]);
        let ours = Plugins::ours();
        let ipam = with(dual(), &json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}));
        let config = bridge(&json!({"isGateway": true, "hairpinMode": true, "ipam": ipam}));
        let result = |pod| world.call_of(&ours, &config, pod).add().result();
        let results = (1..=2).map(result).collect();
        let servers = serve(world.pod(1));
        let lab = Lab { world, client, results, _servers: servers };
        lab.wait_for_servers();
        lab
    }

    /// A call of portmap for a pod, with bridge's result.
    pub fn call(&self, config: &Value, pod: usize) -> Call {
        self.world.call(config, pod).with_prev_result(&self.results[pod - 1])
    }

    /// Sets whether bridged frames pass through the IP rules.
    pub fn bridge_calls_rules(&self, yes: bool) {
        let line = format!(
            "for f in iptables ip6tables; do echo {} > /proc/sys/net/bridge/bridge-nf-call-$f; done",
            u8::from(yes)
        );
        self.world.host.exec("sh", &["-c", &line]);
    }

    /// Output of `nft list ruleset` on the host.
    pub fn ruleset(&self) -> String {
        self.world.host.exec("nft", &["list", "ruleset"])
    }

    /// Elements of a map or set of the table `podwire`, printed by `nft`.
    pub fn elements(&self, set: &str) -> Vec<String> {
        let is_map = ["ports", "held"].iter().any(|start| set.starts_with(start));
        let kind = if is_map { "map" } else { "set" };
        let list = ["list", kind, "inet", "podwire", set];
        let Ok(text) = self.world.host.try_exec("nft", &list) else { return Vec::new() };
        let Some((_, rest)) = text.split_once("elements = {") else { return Vec::new() };
        let (all, _) = rest.split_once('}').expect("a closing brace");
        let mut found: Vec<String> = all.split(',').map(|one| one.trim().to_owned()).collect();
        found.sort();
        found
    }

    pub fn all_elements(&self) -> Vec<String> {
        let mut found = crate::rules::elements(&self.world.host);
        found.retain(|one| !one.starts_with("podwire owned "));
        found
    }

    fn wait_for_servers(&self) {
        for target in ["TCP4:10.1.0.2:80", "TCP6:[fd00:1::2]:80", "UDP4:10.1.0.2:53"] {
            assert_ne!(wait_for_seen_address(&self.world.host, target), "", "{target}");
        }
    }
}

/// Starts servers that answer with the client address that they see.
fn serve(pod: &Ns) -> Vec<Daemon> {
    let listeners = [
        "TCP4-LISTEN:80,reuseaddr,fork",
        "TCP6-LISTEN:80,reuseaddr,fork,ipv6only=1",
        "UDP4-RECVFROM:53,fork",
    ];
    listeners.iter().map(|listener| answer(pod, listener, "$SOCAT_PEERADDR")).collect()
}

/// Starts a server that answers with this text.
pub fn answer(pod: &Ns, listener: &str, text: &str) -> Daemon {
    // A UDP server must read the request before it answers.
    let read = if listener.starts_with("UDP") { "read line; " } else { "" };
    pod.start("socat", &[listener, &format!("SYSTEM:{read}echo {text}")])
}

/// Connects to the server until it answers. Returns the client address that the server saw, or an
/// empty string after a timeout.
pub fn wait_for_seen_address(from: &Ns, target: &str) -> String {
    let try_once = || Some(seen_address(from, target)).filter(|seen| !seen.is_empty());
    wait_some(Duration::from_secs(30), try_once).unwrap_or_default()
}

/// Connects to the server once. Returns the client address that the server saw, or an empty string.
/// For connections that are expected to fail.
pub fn seen_address(from: &Ns, target: &str) -> String {
    let received = if target.starts_with("UDP") {
        let line = format!("echo hello | socat -t0.7 - {target}");
        from.try_exec("sh", &["-c", &line])
    } else {
        from.try_exec("socat", &["-u", &format!("{target},connect-timeout=0.7"), "-"])
    };
    let received = received.unwrap_or_default();
    let address = received.trim().trim_matches(['[', ']']);
    address.parse::<std::net::IpAddr>().map(|ip| ip.to_string()).unwrap_or_default()
}
