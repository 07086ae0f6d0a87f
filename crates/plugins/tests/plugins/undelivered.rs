// SPDX-License-Identifier: Apache-2.0
//! ADD whose result cannot be delivered: ADD fails and leaves nothing, because the runtime does not
//! know the attachment.

use std::process::Output;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{bridge, chained, dual, host_local, network, ptp, tap, with, without};
use crate::world::{Plugins, World};

/// Shell commands that start the plugin with a standard output that cannot be written.
const UNWRITABLE_STDOUT: [&str; 2] = ["exec \"$0\" > /dev/full", "exec \"$0\" >&-"];

fn run(call: &Call, script: &str) -> Output {
    let mut words = vec!["sh", "-c", script];
    let program = call.plugin.display().to_string();
    words.push(&program);
    let via = Call { plugin: "/bin/true".into(), ..call.clone() };
    let child = via.start_under(&words, "ADD", call.config.to_string().as_bytes());
    child.wait_with_output().expect("wait for the shell")
}

#[track_caller]
fn assert_undone(world: &World, call: &Call) {
    let before = world.snapshot().without_bookkeeping();
    for script in UNWRITABLE_STDOUT {
        let output = run(call, script);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{script}: {stderr}");
        assert!(stderr.contains("write the result to standard output"), "{script}: {stderr}");
        assert!(!stderr.contains("removing the attachment again failed"), "{script}: {stderr}");
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{script}: {changes:#?}");
    }
}

#[test]
fn add_with_unwritable_stdout_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let masquerading = json!({"isGateway": true, "ipMasq": true, "macspoofchk": true,
            "ipam": dual()});
        // Shared objects stay: the bridge, its address, the tables.
        let call = world.call(&bridge(&masquerading), 1);
        let result = call.add().result();
        call.del(&result).ok();
        assert_undone(&world, &call);
        assert_undone(&world, &call.always_exec());
        assert_undone(&world, &world.call(&ptp(&json!({"ipam": dual()})), 1));
        assert_undone(&world, &world.call(&host_local(&json!({})), 1));
        assert_undone(&world, &world.call(&tap(&json!({"ipam": dual()})), 1));
    });
}

/// The reader closes the pipe before the plugin writes the result.
#[test]
fn add_with_broken_pipe_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&ptp(&json!({"ipam": dual()})), 1);
        // Forwarding stays enabled, because other networks may need it.
        let result = call.add().result();
        call.del(&result).ok();
        let before = world.snapshot().without_bookkeeping();
        let mut child = call.start(&[], "ADD");
        drop(child.stdout.take());
        let mut stdin = child.stdin.take().expect("stdin is piped");
        std::io::Write::write_all(&mut stdin, call.config.to_string().as_bytes())
            .expect("write the plugin's input");
        drop(stdin);
        let output = child.wait_with_output().expect("wait for the plugin");
        assert!(!output.status.success());
        let changes = before.changes_to(&world.snapshot().without_bookkeeping());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

/// A chained plugin undoes only its own changes; the interface belongs to another plugin.
#[test]
fn chained_add_with_unwritable_stdout_is_undone() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let bridge_result =
            world.call(&bridge(&json!({"isGateway": true, "ipam": dual()})), 1).add().result();
        let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080,
            "containerPort": 80, "protocol": "tcp"}]}});
        let rates = json!({"ingressRate": 8_000_000, "ingressBurst": 80_000,
            "egressRate": 8_000_000, "egressBurst": 80_000});
        let tuned = json!({"mtu": 1400, "promisc": true});
        let all =
            [("portmap", ports), ("bandwidth", rates), ("tuning", tuned), ("firewall", json!({}))];
        for (kind, more) in &all {
            let call = world.call(&chained(kind, more), 1).with_prev_result(&bridge_result);
            // The first call creates the objects shared by all containers.
            let result = call.add().result();
            call.del(&result).ok();
            assert_undone(&world, &call);
        }
        let step = |(kind, more): &(&str, Value)| with(json!({"type": kind}), more);
        let mut plugins: Vec<Value> = all.iter().map(step).collect();
        plugins[0]["capabilities"] = json!({"portMappings": true});
        let first = bridge(&json!({"isGateway": true, "ipMasq": true, "ipam": dual()}));
        plugins.insert(0, without(first, &["name", "cniVersion"]));
        let list = network(
            "podwire",
            &json!({"plugins": plugins,
            "runtimeConfig": all[0].1["runtimeConfig"]}),
        );
        world
            .call(&bridge(&json!({"isGateway": true, "ipam": dual()})), 1)
            .del(&bridge_result)
            .ok();
        let call = world.call(&list, 1);
        let result = call.add().result();
        call.del(&result).ok();
        assert_undone(&world, &call);
    });
}
