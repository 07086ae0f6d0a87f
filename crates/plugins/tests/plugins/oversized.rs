// SPDX-License-Identifier: Apache-2.0
//! Input of several megabytes is rejected or shortened in the error.

use serde_json::{Value, json};
use testkit::in_netns;

use crate::conf::{bridge, dual, host_local, network, ptp, static_addresses, with};
use crate::world::{Plugins, World};

/// Maximum length of an error in bytes.
const ERROR_LIMIT: usize = 12_000;

#[test]
fn oversized_values_are_shortened_in_errors() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let huge = "x".repeat(1 << 20);
        let text = |key: &str| bridge(&json!({key: huge}));
        let list = vec![7; 200_000];
        let configs: Vec<Value> = vec![
            text("mtu"),
            text("bridge"),
            text("ipam"),
            text("cniVersion"),
            text("name"),
            text("vlan"),
            text("dns"),
            text("macspoofchk"),
            bridge(&json!({"ipam": {"type": huge}})),
            bridge(&json!({"ipam": {"type": list}})),
            bridge(&json!({"ipam": list})),
            bridge(&json!({"name": list})),
            bridge(&json!({"runtimeConfig": {"mac": huge}})),
            ptp(&json!({"mtu": huge})),
            host_local(&json!({"ranges": [[{"subnet": huge}]]})),
            host_local(&json!({"ranges": [[{"subnet": "10.1.0.0/24", "gateway": huge}]]})),
            host_local(&json!({"dataDir": list})),
            host_local(&json!({"resolvConf": format!("/run/{huge}")})),
            static_addresses(&json!({"addresses": [{"address": huge}]})),
            static_addresses(&json!({"routes": huge})),
            network("flannel", &json!({"delegate": huge})),
            network("flannel", &json!({"ipam": {"routes": huge}})),
            network("podwire", &json!({"plugins": [{"type": huge}]})),
            network("tuning", &json!({"sysctl": huge})),
            network("portmap", &json!({"snat": huge})),
            network("firewall", &json!({"backend": huge})),
            network("bandwidth", &json!({"ingressRate": huge})),
            network("macvlan", &json!({"master": huge})),
            network("dhcp", &json!({"ipam": {"type": "dhcp", "daemonSocketPath": huge}})),
        ];
        for config in configs {
            let shown: String = config.to_string().chars().take(200).collect();
            for verb in ["ADD", "DEL", "STATUS"] {
                let answer = world.call(&config, 1).run(verb);
                let length = answer.stdout.len() + answer.stderr.len();
                assert!(length < ERROR_LIMIT, "{verb} {length} bytes for {shown}");
                if verb == "ADD" {
                    assert!(!answer.success && answer.values.len() == 1, "{shown}");
                }
            }
        }
        let changes = before.changes_to(&world.snapshot());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

#[test]
fn names_longer_than_255_bytes_are_rejected() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let name = |length: usize| bridge(&json!({"name": "n".repeat(length), "ipam": dual()}));
        for length in [256, 10 << 20] {
            let words = format!("has {length} bytes, at most 255 are allowed");
            world.call(&name(length), 1).add().fails_with(7, &words);
        }
        let call = world.call(&name(255), 1);
        let id = "c".repeat(256);
        call.container(&id).add().fails_with(4, "has 256 bytes, at most 255 are allowed");
        for id in ["c1", &id[..255]] {
            let result = call.container(id).add().result();
            call.container(id).check(&result).ok();
            call.container(id).del(&result).ok();
        }
        assert!(world.disk().without_bookkeeping().0.is_empty());
    });
}

#[test]
fn standard_input_over_16_mib_is_rejected() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"args": {"cni": {"labels": "x".repeat(1 << 20)}}}));
        let call = world.call(&config, 1);
        let result = call.add().result();
        call.del(&result).ok();
        let endless = with(config, &json!({"args": "x".repeat(17 << 20)}));
        call.config(&endless).add().fails_with(6, "is larger than 16777216 bytes");
    });
}
