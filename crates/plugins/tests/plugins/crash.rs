// SPDX-License-Identifier: Apache-2.0
//! Kills a plugin at any moment, then runs DEL: no interface, address or lock is left, and the next
//! ADD succeeds.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use testkit::{in_netns, require, succeeds, wait_for};

use crate::calico::calico;
use crate::call::Call;
use crate::conf::{
    ENS1, ETH0_SETUP, bridge, chained, dual, host_device, macvlan, network, ptp, tap, v4,
};
use crate::world::{DATA, Plugins, World};

/// Number of kills that must hit a running ADD.
const HITS: usize = 20;

/// A system call: its name, and its number among the calls of that name, from 1.
type Syscall = (String, usize);

/// Lists the system calls of a verb in order, starting when the plugin reads its input.
fn syscalls(call: &Call, verb: &str) -> Vec<Syscall> {
    let log = "/run/strace.log";
    let child = call.start_under(&["strace", "-qq", "-o", log], verb, &stdin(call));
    let output = child.wait_with_output().expect("wait for strace");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = fs::read_to_string(log).expect("read strace's log");
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut has_read_input = false;
    let mut syscalls = Vec::new();
    for line in text.lines() {
        let Some((name, _)) = line.split_once('(') else { continue };
        let count = counts.entry(name).or_default();
        *count += 1;
        has_read_input |= line.starts_with("read(0,");
        if has_read_input && name != "exit_group" {
            syscalls.push((name.to_owned(), *count));
        }
    }
    syscalls
}

fn stdin(call: &Call) -> Vec<u8> {
    call.config.to_string().into_bytes()
}

/// Runs a verb and kills the plugin at the start of this system call.
fn kill_at(call: &Call, verb: &str, (name, count): &Syscall) -> ExitStatus {
    let inject = format!("inject={name}:signal=SIGKILL:when={count}");
    let wrapper = ["strace", "-qq", "-o", "/dev/null", "-e", &inject];
    let mut child = call.start_under(&wrapper, verb, &stdin(call));
    child.wait().expect("wait for strace")
}

#[track_caller]
fn assert_clean(world: &World, when: &str) {
    let links = world.host.ip_json(&["link", "show", "type", "veth"]);
    assert_eq!(links, json!([]), "{when}: interface left on the host");
    for kind in ["veth", "macvlan"] {
        let links = world.pod(1).ip_json(&["link", "show", "type", kind]);
        assert_eq!(links, json!([]), "{when}: interface left in the pod");
    }
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{when}: address left: {disk:?}");
    let lock = Path::new(DATA).join("net/lock");
    let is_free = !lock.exists() || succeeds("flock", &["-n", &lock.to_string_lossy(), "true"]);
    assert!(is_free, "{when}: lock still held");
}

/// Removes all traces of the network from the host.
fn reset_network(world: &World) {
    // Fails for a network without a bridge and before the first ADD.
    let _ = world.host.try_exec("ip", &["link", "del", "br0"]);
    let _ = fs::remove_dir_all(DATA);
}

fn check_killed_adds(config: &Value) {
    check_killed_adds_in(&World::new(&Plugins::ours(), 1), config, assert_clean);
}

/// Kills an ADD at each of its system calls, then checks DEL and another ADD.
fn check_killed_adds_in(world: &World, config: &Value, assert_clean: impl Fn(&World, &str)) {
    require!(Program("strace"), Program("flock"));
    let call = world.call(config, 1);
    // The number of waits for the kernel differs between runs: use the run with the fewest calls.
    let runs = (0..3).map(|_| {
        reset_network(world);
        let all = syscalls(&call, "ADD");
        call.del(&Value::Null).ok();
        all
    });
    let all = runs.min_by_key(Vec::len).expect("three runs");
    assert!(all.len() > 20, "{} system calls", all.len());
    let mut killed = 0;
    for syscall in &all {
        reset_network(world);
        let status = kill_at(&call, "ADD", syscall);
        killed += usize::from(!status.success());
        call.del(&Value::Null).ok();
        assert_clean(world, &format!("ADD killed at {syscall:?}"));
        let result = call.add().result();
        call.check(&result).ok();
        call.del(&result).ok();
    }
    println!("{killed} of {} runs were killed", all.len());
    // Some runs make fewer calls than the recorded one, so their kill never happens.
    assert!(killed * 2 >= all.len(), "only {killed} of {} kills hit", all.len());
}

#[test]
fn bridge_add_killed_at_any_syscall_leaves_nothing() {
    in_netns(|| check_killed_adds(&bridge(&json!({"isDefaultGateway": true, "ipam": dual()}))));
}

#[test]
fn ptp_add_killed_at_any_syscall_leaves_nothing() {
    in_netns(|| check_killed_adds(&ptp(&json!({"ipam": dual()}))));
}

#[test]
fn calico_add_killed_at_any_syscall_leaves_nothing() {
    in_netns(|| check_killed_adds(&calico(&json!({"ipam": dual()}))));
}

#[test]
fn calico_del_killed_at_any_syscall_can_be_repeated() {
    in_netns(|| {
        let config = calico(&json!({"ipam": dual()}));
        check_killed_dels_in(&World::new(&Plugins::ours(), 1), &config, assert_clean);
    });
}

#[test]
fn tap_add_killed_at_any_syscall_leaves_nothing() {
    let assert_clean = |world: &World, when: &str| {
        assert_clean(world, when);
        let links = world.pod(1).ip_json(&["link", "show", "type", "tun"]);
        assert_eq!(links, json!([]), "{when}: interface left in the pod");
    };
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        check_killed_adds_in(&world, &tap(&json!({"ipam": dual(), "mtu": 1400})), assert_clean);
    });
}

#[test]
fn flannel_add_killed_at_any_syscall_leaves_nothing() {
    let config = network(
        "flannel",
        &json!({"dataDir": "/run/data/flannel", "delegate": {"bridge": "br0"},
            "ipam": {"dataDir": DATA}}),
    );
    in_netns(|| {
        let subnet_env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
            FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        fs::create_dir_all("/run/flannel").expect("create a directory in /run");
        fs::write("/run/flannel/subnet.env", subnet_env).expect("write a file in /run");
        check_killed_adds(&config);
    });
}

#[test]
fn tuning_add_killed_at_any_syscall_is_undone() {
    in_netns(|| {
        require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 1);
        ETH0_SETUP.iter().for_each(|line| drop(world.in_pod(1, line)));
        let config = chained(
            "tuning",
            &json!({"dataDir": "/run/data/tuning", "mac": "02:00:00:00:00:07", "mtu": 1400,
                "promisc": true}),
        );
        let call = world.call(&config, 1);
        let before = world.snapshot().without_bookkeeping();
        let all = syscalls(&call, "ADD");
        assert!(all.len() > 15, "{} system calls", all.len());
        for syscall in &all {
            kill_at(&call, "ADD", syscall);
            call.del(&Value::Null).ok();
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert!(changes.is_empty(), "ADD killed at {syscall:?}: {changes:#?}");
        }
    });
}

/// A host with the device `ens1`.
fn with_device() -> World {
    let world = World::new(&Plugins::ours(), 1);
    world.on_host(ENS1);
    world
}

/// Asserts that the device is back on the host under its original name and no address is reserved.
#[track_caller]
fn assert_device_returned(world: &World, when: &str) {
    let link = world.host_link("ens1");
    assert_eq!((&link["ifalias"], &link["group"]), (&json!(null), &json!("default")), "{when}");
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{when}: address left: {disk:?}");
}

#[test]
fn host_device_add_killed_at_any_syscall_is_undone() {
    in_netns(|| {
        check_killed_adds_in(
            &with_device(),
            &host_device(&json!({"ipam": v4()})),
            assert_device_returned,
        );
    });
}

#[test]
fn macvlan_add_killed_at_any_syscall_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add m0 type bridge");
        world.on_host("link set m0 up");
        check_killed_adds_in(&world, &macvlan(&json!({"ipam": dual()})), assert_clean);
    });
}

#[test]
fn bridge_del_killed_at_any_syscall_can_be_repeated() {
    in_netns(|| {
        let config = bridge(&json!({"isGateway": true, "ipam": dual()}));
        check_killed_dels_in(&World::new(&Plugins::ours(), 1), &config, assert_clean);
    });
}

#[test]
fn host_device_del_killed_at_any_syscall_can_repeat() {
    in_netns(|| {
        check_killed_dels_in(
            &with_device(),
            &host_device(&json!({"ipam": v4()})),
            assert_device_returned,
        );
    });
}

/// Kills a DEL at each of its system calls, then checks another DEL.
fn check_killed_dels_in(world: &World, config: &Value, assert_clean: impl Fn(&World, &str)) {
    require!(Program("strace"), Program("flock"));
    let call = world.call(config, 1);
    call.add().ok();
    for syscall in syscalls(&call, "DEL") {
        call.add().ok();
        kill_at(&call, "DEL", &syscall);
        call.del(&Value::Null).ok();
        assert_clean(world, &format!("DEL killed at {syscall:?}"));
    }
}

/// Progress of an ADD when it was killed.
#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
enum Hit {
    /// The ADD had finished.
    Done,
    /// The ADD had changed nothing yet.
    Early,
    /// The ADD was partly done.
    Midway,
}

/// Starts an ADD and kills it after `delay`.
fn kill_after(world: &World, call: &Call, delay: Duration) -> Hit {
    let mut child = call.start_under(&[], "ADD", &stdin(call));
    let start = Instant::now();
    // Busy-wait, because the delay is shorter than the resolution of a sleep.
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
    child.kill().expect("kill the plugin");
    let output = child.wait_with_output().expect("wait for the plugin");
    if output.status.success() {
        return Hit::Done;
    }
    let has_veth = world.host.ip_json(&["link", "show", "type", "veth"]) != json!([]);
    let has_bridge = world.host.try_exec("ip", &["link", "show", "br0"]).is_ok();
    let has_files = !world.disk().0.is_empty();
    if has_veth || has_bridge || has_files { Hit::Midway } else { Hit::Early }
}

/// xorshift64: pseudo-random numbers from a seed that the test prints, so that a run can be
/// repeated.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn bridge_add_killed_at_random_time_leaves_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"isDefaultGateway": true, "ipam": dual()})), 1);
        let start = Instant::now();
        call.add().ok();
        let mut usual = u64::try_from(start.elapsed().as_micros()).expect("an ADD is short");
        call.del(&Value::Null).ok();
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("clock is after 1970");
        let mut state = u64::from(now.subsec_nanos()) | 1;
        println!("seed {state}, an ADD takes {usual} µs");
        let mut hits: HashMap<Hit, usize> = HashMap::new();
        wait_for("twenty kills of a running ADD", Duration::from_secs(300), || {
            reset_network(&world);
            let delay = Duration::from_micros(next(&mut state) % usual);
            let hit = kill_after(&world, &call, delay);
            *hits.entry(hit).or_default() += 1;
            // Adapt to the load of the machine.
            match hit {
                Hit::Done => usual -= usual / 8,
                Hit::Early => usual += usual / 8,
                Hit::Midway => {}
            }
            call.del(&Value::Null).ok();
            assert_clean(&world, &format!("{hit:?} after {delay:?}"));
            let count = |hit: Hit| hits.get(&hit).copied().unwrap_or_default();
            count(Hit::Early) + count(Hit::Midway) >= HITS && count(Hit::Midway) > 0
        });
        println!("{hits:?}");
        call.add().ok();
    });
}

/// After the kill, the next ADD succeeds without a DEL, and a DEL leaves no interface.
#[test]
fn bandwidth_add_killed_at_any_syscall_can_repeat() {
    in_netns(|| {
        require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add vhost1 type veth peer name eth0 netns pod1");
        world.on_host("link set vhost1 up");
        let result = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "vhost1"}]});
        let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000,
            "egressRate": 8_000_000, "egressBurst": 800_000,
            "unshapedSubnets": ["10.9.0.0/16"], "prevResult": result});
        let call = world.call(&network("bandwidth", &limits), 1);
        let all = syscalls(&call, "ADD");
        let mut killed = 0;
        for (at, syscall) in all.iter().enumerate() {
            killed += usize::from(!kill_at(&call, "ADD", syscall).success());
            if at % 2 == 0 {
                let result = call.add().result();
                call.check(&result).ok();
            }
            call.run("DEL").ok();
            let left = world.host.ip_json(&["link", "show", "type", "ifb"]);
            assert_eq!(left, json!([]), "killed at {syscall:?}");
        }
        assert!(killed > all.len() / 2, "{killed} of {} were killed", all.len());
    });
}
