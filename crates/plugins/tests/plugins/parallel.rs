// SPDX-License-Identifier: Apache-2.0
//! Concurrent ADDs: no address is assigned twice, and one bridge is created.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{bridge, dual, host_local, with};
use crate::world::{Plugins, World};

/// Runs `jobs` jobs, numbered from 0, in `threads` threads.
pub fn run_in_threads(threads: usize, jobs: usize, job: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= jobs {
                        return;
                    }
                    job(number);
                }
            });
        }
    });
}

/// Runs 200 ADDs in 32 threads, then as many DELs.
fn allocate(world: &World, call: impl Fn(usize) -> Call + Sync) {
    let assigned = Mutex::new(Vec::new());
    run_in_threads(32, 200, |number| {
        let result = call(number).add().result();
        let ips = result["ips"].as_array().expect("addresses").clone();
        let addresses = ips.iter().map(|ip| ip["address"].to_string());
        assigned.lock().expect("no thread has panicked").extend(addresses);
    });
    let assigned = assigned.into_inner().expect("no thread has panicked");
    let distinct: HashSet<&String> = assigned.iter().collect();
    assert_eq!((assigned.len(), distinct.len()), (400, 400), "an address was assigned twice");
    assert_eq!(world.disk().without_bookkeeping().0.len(), 400, "expected one file per address");
    run_in_threads(32, 200, |number| call(number).run("DEL").ok());
    assert!(world.disk().without_bookkeeping().0.is_empty());
}

fn config() -> Value {
    host_local(&json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}))
}

#[test]
fn host_local_concurrent_adds_get_unique_addresses() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 0);
        let config = config();
        allocate(&world, |number| world.call(&config, 1).container(&format!("c{number}")));
    });
}

#[test]
fn host_local_and_go_assign_unique_addresses() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 0);
        let config = config();
        allocate(&world, |number| {
            let plugins = if number.is_multiple_of(4) { &go } else { &ours };
            world.call_of(plugins, &config, 1).container(&format!("c{number}"))
        });
    });
}

#[test]
fn bridge_concurrent_adds_create_one_bridge() {
    in_netns(|| {
        const PODS: usize = 60;
        let world = World::new(&Plugins::ours(), PODS);
        let config = bridge(&json!({"isDefaultGateway": true, "ipam": dual()}));
        let results = Mutex::new(vec![Value::Null; PODS]);
        run_in_threads(PODS, PODS, |number| {
            let result = world.call(&config, number + 1).add().result();
            results.lock().expect("no thread has panicked")[number] = result;
        });
        let results = results.into_inner().expect("no thread has panicked");
        let count = |kind: &str| {
            let links = world.host.ip_json(&["link", "show", "type", kind]);
            links.as_array().map(Vec::len)
        };
        assert_eq!((count("bridge"), count("veth")), (Some(1), Some(PODS)));
        let shown = world.on_host("-o addr show br0 scope global");
        assert_eq!(shown.lines().count(), 2, "expected one gateway per family: {shown}");
        run_in_threads(8, PODS, |number| {
            let call = world.call(&config, number + 1);
            call.check(&results[number]).ok();
            call.del(&results[number]).ok();
        });
        assert_eq!((count("bridge"), count("veth")), (Some(1), Some(0)));
        assert!(world.disk().without_bookkeeping().0.is_empty());
    });
}

/// A failed ADD rolls back its own changes but nothing that another ADD uses in the meantime.
#[test]
fn failed_adds_do_not_affect_concurrent_adds() {
    in_netns(|| {
        const PODS: usize = 16;
        let plugins = Plugins::ours();
        let good = bridge(&json!({"isGateway": true, "ipam": dual()}));
        let unreachable = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
        let bad = bridge(&json!({"isGateway": true, "ipam": with(dual(), &unreachable)}));
        for round in 0..8 {
            let world = World::new(&plugins, PODS);
            let results = Mutex::new(vec![Value::Null; PODS]);
            run_in_threads(PODS, PODS, |number| {
                let is_bad = !number.is_multiple_of(4);
                let call = world.call(if is_bad { &bad } else { &good }, number + 1);
                let answer = call.add();
                if is_bad {
                    return answer.fails_with(999, "unreachable");
                }
                results.lock().expect("no thread has panicked")[number] = answer.result();
            });
            let results = results.into_inner().expect("no thread has panicked");
            for (number, result) in results.iter().enumerate().filter(|(_, one)| !one.is_null()) {
                println!("round {round}, pod {}", number + 1);
                world.call(&good, number + 1).check(result).ok();
            }
        }
    });
}
