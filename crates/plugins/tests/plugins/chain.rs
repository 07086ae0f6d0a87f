// SPDX-License-Identifier: Apache-2.0
//! The full chain, as a runtime runs it: bridge with host-local and masquerading, a port mapping,
//! shaping, the firewall; each plugin a process of its own.

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

/// A network of several plugins.
pub struct Chain<'a> {
    pub world: &'a World,
    pub plugins: &'a Plugins,
    pub configs: Vec<Value>,
}

/// The host port of a pod.
pub fn port(pod: usize) -> usize {
    20_000 + pod
}

/// The plugins of the full chain, with these keys more for the bridge.
pub fn full(more: &Value) -> Vec<Value> {
    let mut first = bridge(
        &json!({"ipam": dual(), "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true}),
    );
    for (key, value) in more.as_object().expect("keys come in an object") {
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

/// What a runtime tells of a pod.
pub fn told(pod: usize) -> Value {
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

    /// One call for each plugin, in the order of ADD.
    pub fn calls(&self, pod: usize) -> Vec<Call> {
        let call = |config: &Value| {
            let mut config = config.clone();
            let capabilities = config["capabilities"].as_object().cloned().unwrap_or_default();
            for (name, value) in told(pod).as_object().into_iter().flatten() {
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

    /// As a runtime does that knows neither namespace nor result any more.
    #[track_caller]
    pub fn del_blindly(&self, pod: usize) {
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

/// All that a container can leave on the host.
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
