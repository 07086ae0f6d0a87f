// SPDX-License-Identifier: Apache-2.0
//! podwire's rule in the iptables chain FORWARD while other programs change the same chain.

use serde_json::{Value, json};
use testkit::{Daemon, in_netns, require};

use super::{firewall, ours};
use crate::parallel::run_in_threads;
use crate::world::World;

fn result(number: usize) -> Value {
    let ips = [format!("10.1.0.{}/24", number + 2), format!("fd00:1::{:x}/64", number + 2)];
    json!({"cniVersion": "1.1.0", "ips": ips.map(|address| json!({"address": address}))})
}

/// Creates a chain that takes long to read, so that many ADDs read it at the same time.
fn long_chain(world: &World) {
    let head = "add table ip filter\nadd chain ip filter FORWARD { type filter hook forward priority 0; }\n";
    let rules = "add rule ip filter FORWARD counter\n".repeat(3000);
    std::fs::write("/run/long", head.to_owned() + &rules).expect("write a file in /run");
    world.host.exec("nft", &["-f", "/run/long"]);
}

#[test]
fn concurrent_first_adds_create_one_forward_rule() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        const PODS: usize = 16;
        let config = firewall("net", &json!({}));
        let world = ours(0);
        long_chain(&world);
        run_in_threads(PODS, PODS, |number| {
            let call = world.call(&config, 1).container(&format!("c{number}"));
            call.with_prev_result(&result(number)).add().ok();
        });
        for program in ["iptables", "ip6tables"] {
            let shown = world.host.exec(program, &["-S", "FORWARD"]);
            let rules: Vec<&str> = shown.lines().filter(|line| line.contains("podwire")).collect();
            assert_eq!(rules.len(), 1, "{rules:?}");
        }
    });
}

/// Rewrites the chain repeatedly, like kube-proxy and Docker.
fn rewrite(world: &World) -> Daemon {
    let once = "flush chain ip filter FORWARD\nadd rule ip filter FORWARD jump CNI-FORWARD\n";
    std::fs::write("/run/rewrite", once.repeat(100_000)).expect("write a file in /run");
    world.host.start("sh", &["-c", "exec nft -i </run/rewrite >/run/rewritten 2>&1"])
}

#[test]
fn add_during_rewrites_of_forward_chain_succeeds() {
    in_netns(|| {
        require!(Program("iptables"), Program("nft"));
        let world = ours(0);
        for args in [&["-N", "CNI-FORWARD"][..], &["-A", "FORWARD", "-j", "CNI-FORWARD"]] {
            world.host.exec("iptables", args);
        }
        let config = firewall("net", &json!({}));
        let rewriting = rewrite(&world);
        run_in_threads(2, 200, |number| {
            let call = world.call(&config, 1).container(&format!("c{number}"));
            call.with_prev_result(&result(number)).add().ok();
        });
        drop(rewriting);
    });
}
