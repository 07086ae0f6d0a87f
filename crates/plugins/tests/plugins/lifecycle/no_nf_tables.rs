// SPDX-License-Identifier: Apache-2.0
//! A kernel without nf_tables: features that do not need nf_tables work, and DEL always succeeds.
//! `strace` injects the errors of a kernel built without netfilter or without nf_tables.

use std::fs;

use serde_json::{Value, json};
use testkit::{in_netns, require};

use crate::call::{Answer, Call};
use crate::conf::{bridge, network, ptp, with};
use crate::snapshot::Snapshot;
use crate::world::{Plugins, World};

/// Runs a verb under `strace` with these options.
fn under(call: &Call, options: &[&str], verb: &str) -> Answer {
    let wrapper = [&["strace", "-qq"], options].concat();
    let child = call.start_under(&wrapper, verb, call.config.to_string().as_bytes());
    Answer::of(&child.wait_with_output().expect("wait for strace"))
}

/// Runs a verb as on a kernel without netfilter sockets. The first run finds out which of the
/// plugin's sockets are netfilter sockets. Then `between` runs, and the second run fails these
/// sockets and is returned.
fn without_netfilter(call: &Call, verb: &str, between: impl FnOnce()) -> Answer {
    let log = "/run/sockets.log";
    under(call, &["-o", log, "-e", "trace=socket"], verb).ok();
    let log = fs::read_to_string(log).expect("read strace's log");
    let sockets: Vec<&str> = log.lines().filter(|line| line.starts_with("socket(")).collect();
    let is_netfilter = |line: &&str| line.contains("NETLINK_NETFILTER");
    let first = sockets.iter().position(is_netfilter).expect("a netfilter socket");
    let last = sockets.iter().rposition(is_netfilter).expect("a netfilter socket");
    assert!(
        sockets[first..=last].iter().all(is_netfilter),
        "netfilter sockets are not consecutive: {sockets:?}"
    );
    between();
    let inject = format!("inject=socket:error=EPROTONOSUPPORT:when={}..{}", first + 1, last + 1);
    under(call, &["-o", "/dev/null", "-e", &inject], verb)
}

/// Runs a verb as on a kernel that has netfilter sockets but rejects every message.
fn without_nf_tables(call: &Call, verb: &str) -> Answer {
    under(call, &["-o", "/dev/null", "-e", "inject=recvfrom,recvmsg:error=EINVAL"], verb)
}

#[test]
fn del_and_gc_without_netfilter_succeed() {
    in_netns(|| {
        require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 1);
        for config in [bridge(&json!({})), ptp(&json!({}))] {
            let call = world.call(&config, 1);
            let add = || call.add().ok();
            without_netfilter(&call, "DEL", add).ok();
            let none = with(config.clone(), &json!({"cni.dev/valid-attachments": []}));
            without_netfilter(&call.config(&none), "GC", add).ok();
            assert_eq!(world.host.ip_json(&["link", "show", "type", "veth"]), json!([]));
            assert_eq!(world.disk().without_bookkeeping(), Snapshot::default());
        }
    });
}

#[test]
fn chained_del_and_gc_without_nf_tables_succeed() {
    in_netns(|| {
        require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 1);
        let valid = json!({"cni.dev/valid-attachments": []});
        for (plugin, keys) in [
            ("portmap", json!({})),
            ("firewall", json!({})),
            ("firewall", json!({"backend": "iptables"})),
        ] {
            let call = world.call(&with(network(plugin, &keys), &valid), 1);
            for verb in ["DEL", "GC"] {
                without_netfilter(&call, verb, || ()).ok();
                without_nf_tables(&call, verb).ok();
            }
        }
        let call = world.call(&network("portmap", &json!({})), 1);
        // An ADD without ports works, so STATUS must not report the node as unable to run
        // containers.
        without_nf_tables(&call, "STATUS").ok();
        without_nf_tables(&call.with_prev_result(&json!({"cniVersion": "1.1.0"})), "ADD").ok();
        let ports = json!({"portMappings": [{"hostPort": 80, "containerPort": 80,
            "protocol": "tcp"}]});
        let mapping = call.config(&network("portmap", &json!({"runtimeConfig": ports})));
        without_nf_tables(&mapping, "STATUS").fails_with(50, "nf_tables cannot map ports");
        call.del(&Value::Null).ok();
    });
}
