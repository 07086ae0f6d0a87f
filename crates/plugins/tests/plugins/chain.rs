// SPDX-License-Identifier: Apache-2.0
//! The full chain as a runtime runs it: bridge with host-local and masquerading, portmap, bandwidth
//! and firewall, each plugin in its own process.

mod crash;
mod flat;
mod gc;
mod mixed;
mod program;
mod whole;

use serde_json::{Value, json};

use crate::call::Call;
use crate::conf::{bridge, dual, network};
use crate::rules::{chains, elements};
use crate::world::{Plugins, World};

/// A network that consists of several plugins.
pub struct Chain<'a> {
    pub world: &'a World,
    pub plugins: &'a Plugins,
    pub configs: Vec<Value>,
}

/// Host port mapped to this pod.
pub fn port(pod: usize) -> usize {
    20_000 + pod
}

/// Configurations of the full chain; `more` adds keys to the bridge configuration.
pub fn full(more: &Value) -> Vec<Value> {
    let mut first = bridge(
        &json!({"ipam": dual(), "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true}),
    );
    for (key, value) in more.as_object().expect("`more` is an object") {
        first[key] = value.clone();
    }
    let of = |kind: &str, capability: &str| {
        let mut config = network(kind, &json!({"capabilities": {capability: true}}));
        config["name"] = first["name"].clone();
        config
    };
    let mut firewall = network("firewall", &json!({}));
    firewall["name"] = first["name"].clone();
    vec![first.clone(), of("portmap", "portMappings"), of("bandwidth", "bandwidth"), firewall]
}

/// `runtimeConfig` that a runtime passes for a pod.
pub fn runtime_config(pod: usize) -> Value {
    json!({
        "portMappings": [
            {"hostPort": port(pod), "containerPort": 80, "protocol": "tcp"},
            {"hostPort": port(pod), "containerPort": 53, "protocol": "udp"},
        ],
        "bandwidth": {"ingressRate": 100_000_000, "ingressBurst": 1_000_000,
                      "egressRate": 100_000_000, "egressBurst": 1_000_000},
    })
}

impl<'a> Chain<'a> {
    pub fn new(world: &'a World, plugins: &'a Plugins, configs: Vec<Value>) -> Chain<'a> {
        Chain { world, plugins, configs }
    }

    /// Returns one call per plugin, in the order of ADD.
    pub fn calls(&self, pod: usize) -> Vec<Call> {
        let call = |config: &Value| {
            let mut config = config.clone();
            let capabilities = config["capabilities"].as_object().cloned().unwrap_or_default();
            for (name, value) in runtime_config(pod).as_object().into_iter().flatten() {
                if capabilities.contains_key(name) {
                    config["runtimeConfig"][name] = value.clone();
                }
            }
            self.world.call_of(self.plugins, &config, pod)
        };
        self.configs.iter().map(call).collect()
    }

    #[track_caller]
    pub fn add(&self, pod: usize) -> Value {
        let mut result = Value::Null;
        for call in self.calls(pod) {
            result = call.with_prev_result(&result).add().result();
        }
        result
    }

    #[track_caller]
    pub fn check(&self, pod: usize, result: &Value) {
        for call in self.calls(pod) {
            call.check(result).ok();
        }
    }

    #[track_caller]
    pub fn del(&self, pod: usize, result: &Value) {
        for call in self.calls(pod).iter().rev() {
            call.del(result).ok();
        }
    }

    /// Runs DEL like a runtime that has lost both the namespace and the result.
    #[track_caller]
    pub fn del_without_netns_and_result(&self, pod: usize) {
        for call in self.calls(pod).iter().rev() {
            call.netns("").del(&Value::Null).ok();
        }
    }

    #[track_caller]
    pub fn gc(&self, valid: &[(&str, &str)]) {
        for config in &self.configs {
            self.world.call_of(self.plugins, config, 1).gc(valid).ok();
        }
    }
}

/// Everything that a container can leave on the host: nf_tables elements and chains, links, files.
pub fn left(world: &World) -> Vec<String> {
    let mut left = elements(&world.host);
    left.extend(chains(&world.host, "masq-"));
    for kind in ["veth", "ifb"] {
        let links = world.host.ip_json(&["link", "show", "type", kind]);
        left.extend(links.as_array().into_iter().flatten().map(|link| link["ifname"].to_string()));
    }
    left.extend(world.disk().without_bookkeeping().0.into_keys());
    left
}
