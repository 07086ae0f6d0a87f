// SPDX-License-Identifier: Apache-2.0
//! Arbitrary bytes as input of every plugin and as a network configuration: no panic.
#![no_main]

use cni::plugin::{Env, Host, answer};
use cni::runtime::NetworkList;
use libfuzzer_sys::fuzz_target;
use plugins::registry::PLUGINS;

fuzz_target!(|data: &[u8]| {
    let _ = NetworkList::parse(data, None);
    let _ = NetworkList::from_single(data, None);
    let host = Host::of_this_program(PLUGINS);
    for plugin in PLUGINS {
        // With a missing namespace the plugins parse everything and change nothing.
        for command in ["ADD", "CHECK"] {
            let env = Env {
                command: command.to_owned(),
                container_id: "fuzz".to_owned(),
                netns: "/nonexistent/netns".to_owned(),
                ifname: "eth0".to_owned(),
                path: "/nonexistent".to_owned(),
                ..Env::default()
            };
            // host-local needs no namespace and would write to the configured directory.
            if plugin.name != "host-local" {
                answer(plugin, &env, &mut &data[..], &host);
            }
        }
    }
});
