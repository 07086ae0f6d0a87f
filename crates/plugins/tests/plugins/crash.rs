// SPDX-License-Identifier: Apache-2.0
//! `kill -9` at any moment, then DEL: no interface, no address and no lock is left, and the next
//! ADD works.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use testkit::{in_netns, require, succeeds, wait_for};

use crate::call::Call;
use crate::conf::{
    ENS1, HAVING_ETH0, bridge, chained, dual, host_device, macvlan, network, ptp, tap, v4,
};
use crate::world::{DATA, Plugins, World};

/// How many kills must hit an ADD that is under way.
const HITS: usize = 20;

/// One system call: its name, and which call of that name it is, from 1.
type Moment = (String, usize);

/// The system calls of a verb from the reading of its input on, in order.
fn moments(call: &Call, verb: &str) -> Vec<Moment> {
    let log = "/run/strace.log";
    let child = call.start_under(&["strace", "-qq", "-o", log], verb, &stdin(call));
    let output = child.wait_with_output().expect("strace can be waited for");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = fs::read_to_string(log).expect("strace has written its log");
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut has_begun = false;
    let mut moments = Vec::new();
    for line in text.lines() {
        let Some((name, _)) = line.split_once('(') else { continue };
        let count = counts.entry(name).or_default();
        *count += 1;
        has_begun |= line.starts_with("read(0,");
        if has_begun && name != "exit_group" {
            moments.push((name.to_owned(), *count));
        }
    }
    moments
}

fn stdin(call: &Call) -> Vec<u8> {
    call.config.to_string().into_bytes()
}

/// Runs a verb that is killed when it is about to make this system call.
fn kill_at(call: &Call, verb: &str, (name, count): &Moment) -> ExitStatus {
    let inject = format!("inject={name}:signal=SIGKILL:when={count}");
    let wrapper = ["strace", "-qq", "-o", "/dev/null", "-e", &inject];
    let mut child = call.start_under(&wrapper, verb, &stdin(call));
    child.wait().expect("strace can be waited for")
}

#[track_caller]
fn assert_clean(world: &World, when: &str) {
    let links = world.host.ip_json(&["link", "show", "type", "veth"]);
    assert_eq!(links, json!([]), "{when}: an interface is left on the host");
    for kind in ["veth", "macvlan"] {
        let links = world.pod(1).ip_json(&["link", "show", "type", kind]);
        assert_eq!(links, json!([]), "{when}: an interface is left in the pod");
    }
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{when}: an address is left: {disk:?}");
    let lock = Path::new(DATA).join("net/lock");
    let is_free = !lock.exists() || succeeds("flock", &["-n", &lock.to_string_lossy(), "true"]);
    assert!(is_free, "{when}: the lock is held");
}

/// Back to a host that has never seen the network.
fn forget(world: &World) {
    // Not there in a network without a bridge, or before the first ADD.
    let _ = world.host.try_exec("ip", &["link", "del", "br0"]);
    let _ = fs::remove_dir_all(DATA);
}

fn sweep_add(config: &Value) {
    sweep_add_in(&World::new(&Plugins::ours(), 1), config, assert_clean);
}

/// Kills an ADD before each of its system calls.
fn sweep_add_in(world: &World, config: &Value, assert_clean: impl Fn(&World, &str)) {
    require!(Program("strace"), Program("flock"));
    let call = world.call(config, 1);
    // How often it waits for the kernel differs from run to run: that which waited least is taken.
    let runs = (0..3).map(|_| {
        forget(world);
        let all = moments(&call, "ADD");
        call.del(&Value::Null).ok();
        all
    });
    let all = runs.min_by_key(Vec::len).expect("there are three");
    assert!(all.len() > 20, "{} system calls", all.len());
    let mut killed = 0;
    for moment in &all {
        forget(world);
        let status = kill_at(&call, "ADD", moment);
        killed += usize::from(!status.success());
        call.del(&Value::Null).ok();
        assert_clean(world, &format!("ADD killed at {moment:?}"));
        let result = call.add().result();
        call.check(&result).ok();
        call.del(&result).ok();
    }
    println!("{killed} of {} system calls were the last", all.len());
    // Others may have waited less still.
    assert!(killed * 2 >= all.len(), "only {killed} of {} kills hit", all.len());
}

#[test]
fn bridge_add_may_die_at_every_system_call() {
    in_netns(|| sweep_add(&bridge(&json!({"isDefaultGateway": true, "ipam": dual()}))));
}

#[test]
fn ptp_add_may_die_at_every_system_call() {
    in_netns(|| sweep_add(&ptp(&json!({"ipam": dual()}))));
}

#[test]
fn tap_add_may_die_at_every_system_call() {
    let assert_clean = |world: &World, when: &str| {
        assert_clean(world, when);
        let links = world.pod(1).ip_json(&["link", "show", "type", "tun"]);
        assert_eq!(links, json!([]), "{when}: an interface is left in the pod");
    };
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        sweep_add_in(&world, &tap(&json!({"ipam": dual(), "mtu": 1400})), assert_clean);
    });
}

#[test]
fn flannel_add_may_die_at_every_system_call() {
    let config = network(
        "flannel",
        &json!({"dataDir": "/run/data/flannel", "delegate": {"bridge": "br0"},
            "ipam": {"dataDir": DATA}}),
    );
    in_netns(|| {
        let daemons = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
            FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        fs::create_dir_all("/run/flannel").expect("a directory below /run");
        fs::write("/run/flannel/subnet.env", daemons).expect("a file below /run");
        sweep_add(&config);
    });
}

#[test]
fn tuning_add_may_die_at_every_system_call() {
    in_netns(|| {
        require!(Program("strace"));
        let world = World::new(&Plugins::ours(), 1);
        HAVING_ETH0.iter().for_each(|line| drop(world.in_pod(1, line)));
        let config = chained(
            "tuning",
            &json!({"dataDir": "/run/data/tuning", "mac": "02:00:00:00:00:07", "mtu": 1400,
                "promisc": true}),
        );
        let call = world.call(&config, 1);
        let before = world.snapshot().without_bookkeeping();
        let all = moments(&call, "ADD");
        assert!(all.len() > 15, "{} system calls", all.len());
        for moment in &all {
            kill_at(&call, "ADD", moment);
            call.del(&Value::Null).ok();
            let changes = before.changes_to(&world.snapshot().without_bookkeeping());
            assert!(changes.is_empty(), "ADD killed at {moment:?}: {changes:#?}");
        }
    });
}

/// A host with a device to give away.
fn with_device() -> World {
    let world = World::new(&Plugins::ours(), 1);
    world.on_host(ENS1);
    world
}

/// The device is at home under its own name, and the addresses are free.
#[track_caller]
fn assert_home(world: &World, when: &str) {
    let link = world.host_link("ens1");
    assert_eq!((&link["ifalias"], &link["group"]), (&json!(null), &json!("default")), "{when}");
    let disk = world.disk().without_bookkeeping().0;
    assert!(disk.is_empty(), "{when}: an address is left: {disk:?}");
}

#[test]
fn host_device_add_may_die_at_every_system_call() {
    in_netns(|| sweep_add_in(&with_device(), &host_device(&json!({"ipam": v4()})), assert_home));
}

#[test]
fn macvlan_add_may_die_at_every_system_call() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add m0 type bridge");
        world.on_host("link set m0 up");
        sweep_add_in(&world, &macvlan(&json!({"ipam": dual()})), assert_clean);
    });
}

#[test]
fn del_may_die_at_every_system_call() {
    in_netns(|| {
        let config = bridge(&json!({"isGateway": true, "ipam": dual()}));
        sweep_del_in(&World::new(&Plugins::ours(), 1), &config, assert_clean);
    });
}

#[test]
fn host_device_del_may_die_at_every_system_call() {
    in_netns(|| sweep_del_in(&with_device(), &host_device(&json!({"ipam": v4()})), assert_home));
}

fn sweep_del_in(world: &World, config: &Value, assert_clean: impl Fn(&World, &str)) {
    require!(Program("strace"), Program("flock"));
    let call = world.call(config, 1);
    call.add().ok();
    for moment in moments(&call, "DEL") {
        call.add().ok();
        kill_at(&call, "DEL", &moment);
        call.del(&Value::Null).ok();
        assert_clean(world, &format!("DEL killed at {moment:?}"));
    }
}

/// What a kill met with.
#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
enum Hit {
    /// It came too late.
    Done,
    /// Nothing had been made yet.
    Early,
    /// Something was there, and not all of it.
    Midway,
}

/// Kills an ADD after some time.
fn kill_after(world: &World, call: &Call, delay: Duration) -> Hit {
    let mut child = call.start_under(&[], "ADD", &stdin(call));
    let start = Instant::now();
    // Shorter than any sleep can be.
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
    child.kill().expect("a child not waited for can be killed");
    let output = child.wait_with_output().expect("a child can be waited for");
    if output.status.success() {
        return Hit::Done;
    }
    let has_veth = world.host.ip_json(&["link", "show", "type", "veth"]) != json!([]);
    let has_bridge = world.host.try_exec("ip", &["link", "show", "br0"]).is_ok();
    let has_files = !world.disk().0.is_empty();
    if has_veth || has_bridge || has_files { Hit::Midway } else { Hit::Early }
}

/// xorshift64: numbers that only need to differ, from a seed that a person can repeat.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn add_may_die_at_random_moments() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"isDefaultGateway": true, "ipam": dual()})), 1);
        let start = Instant::now();
        call.add().ok();
        let mut usual = u64::try_from(start.elapsed().as_micros()).expect("an ADD is short");
        call.del(&Value::Null).ok();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let mut state = u64::from(now.subsec_nanos()) | 1;
        println!("seed {state}, an ADD takes {usual} µs");
        let mut hits: HashMap<Hit, usize> = HashMap::new();
        wait_for("twenty kills that hit", Duration::from_secs(300), || {
            forget(&world);
            let delay = Duration::from_micros(next(&mut state) % usual);
            let hit = kill_after(&world, &call, delay);
            *hits.entry(hit).or_default() += 1;
            // It takes longer or shorter as others leave it the machine.
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

/// Kills an ADD of bandwidth before each of its system calls. The next ADD works without a DEL, and a DEL
/// leaves no interface.
#[test]
fn bandwidth_add_may_die_at_any_moment() {
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
        let all = moments(&call, "ADD");
        let mut killed = 0;
        for (at, moment) in all.iter().enumerate() {
            killed += usize::from(!kill_at(&call, "ADD", moment).success());
            if at % 2 == 0 {
                let result = call.add().result();
                call.check(&result).ok();
            }
            call.run("DEL").ok();
            let left = world.host.ip_json(&["link", "show", "type", "ifb"]);
            assert_eq!(left, json!([]), "killed at {moment:?}");
        }
        assert!(killed > all.len() / 2, "{killed} of {} were killed", all.len());
    });
}
