// SPDX-License-Identifier: Apache-2.0
//! Invalid input: the plugin prints one error with code and message, exits with failure, and
//! changes nothing.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::Call;
use crate::conf::{
    bridge, dummy, host_device, host_local, ipvlan, macvlan, ptp, static_addresses, tap, vlan,
    with, without,
};
use crate::world::{Plugins, World};

/// A multicast MAC address, which no interface can have.
const MULTICAST_MAC: &str = "01:00:00:00:00:01";

/// A call that must fail: call, verb, standard input, expected error code, text expected in the
/// message.
type Bad = (Call, &'static str, Vec<u8>, u32, &'static str);

fn text(world: &World, stdin: &str, code: u32, words: &'static str) -> Bad {
    (world.call(&bridge(&json!({})), 1), "ADD", stdin.as_bytes().to_vec(), code, words)
}

fn config(world: &World, config: &Value, code: u32, words: &'static str) -> Bad {
    (world.call(config, 1), "ADD", config.to_string().into_bytes(), code, words)
}

fn call(call: Call, code: u32, words: &'static str) -> Bad {
    let stdin = call.config.to_string().into_bytes();
    (call, "ADD", stdin, code, words)
}

fn not_json(world: &World) -> Vec<Bad> {
    let whole = bridge(&json!({})).to_string();
    vec![
        text(world, "", 6, "error unmarshall network config: "),
        text(world, " \n", 6, "error unmarshall network config: "),
        text(world, &whole[..whole.len() - 1], 6, "line 1"),
        text(world, &whole[..whole.len() / 2], 6, "line 1"),
        text(world, "{\"name\": \"net\"} trailing", 6, "line 1"),
        text(world, "[]", 6, "map"),
        text(world, "null", 6, "map"),
        text(world, "\"text\"", 6, "map"),
        text(world, &"[".repeat(10_000), 6, "error unmarshall network config: "),
        (
            world.call(&bridge(&json!({})), 1),
            "ADD",
            vec![0xff, 0xfe, 0],
            6,
            "error unmarshall network config: ",
        ),
    ]
}

fn wrong_types(world: &World) -> Vec<Bad> {
    let range = |range: Value| host_local(&json!({"ranges": [[range]]}));
    vec![
        config(world, &bridge(&json!({"mtu": "abc"})), 7, "\"mtu\" is \"abc\""),
        config(world, &bridge(&json!({"mtu": -1})), 7, "\"mtu\" is -1, allowed are 68 to 65535"),
        config(world, &bridge(&json!({"mtu": 67})), 7, "\"mtu\" is 67, allowed are 68 to 65535"),
        config(world, &ptp(&json!({"mtu": 70000})), 7, "\"mtu\" is 70000"),
        config(world, &bridge(&json!({"ipam": "host-local"})), 7, "\"ipam\" is \"host-local\""),
        config(world, &bridge(&json!({"ipam": []})), 7, "\"ipam\" is []"),
        config(world, &bridge(&json!({"ipam": {"type": 5}})), 7, "\"ipam.type\" is 5"),
        config(world, &bridge(&json!({"bridge": "br%d"})), 7, "contains a '%'"),
        call(world.call(&bridge(&json!({})), 1).ifname("eth%d"), 4, "'%'"),
        config(world, &bridge(&json!({"mtu": -1})), 7, "\"mtu\" is -1"),
        config(world, &bridge(&json!({"mtu": 1.5})), 7, "\"mtu\" is 1.5"),
        config(world, &bridge(&json!({"isGateway": "yes"})), 7, "\"isGateway\" is \"yes\""),
        config(world, &bridge(&json!({"bridge": 7})), 7, "\"bridge\" is 7"),
        config(world, &bridge(&json!({"bridge": "a/b"})), 7, "a/b"),
        config(world, &bridge(&json!({"vlan": "7"})), 7, "\"vlan\" is \"7\""),
        config(world, &bridge(&json!({"vlanTrunk": 7})), 7, "\"vlanTrunk\" is 7"),
        config(world, &bridge(&json!({"vlanTrunk": [{"id": "x"}]})), 7, "vlanTrunk[0].id\" is"),
        config(world, &bridge(&json!({"preserveDefaultVlan": 1})), 7, "preserveDefaultVlan"),
        config(world, &bridge(&json!({"dns": []})), 7, "\"dns\""),
        config(world, &bridge(&json!({"dns": {"nameservers": "x"}})), 7, "dns.nameservers"),
        config(world, &bridge(&json!({"name": 7})), 6, "\"name\" is 7"),
        config(world, &bridge(&json!({"cniVersion": 1.0})), 6, "\"cniVersion\" is 1.0"),
        config(world, &ptp(&json!({"mtu": {}})), 7, "\"mtu\""),
        config(world, &range(json!({"subnet": 7})), 7, "ipam.ranges[0][0].subnet\" is 7"),
        config(world, &range(json!({})), 7, "\"ipam.ranges[0][0].subnet\": it must be set"),
        config(
            world,
            &range(json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.300"})),
            7,
            "\"10.1.0.300\": expected an address such as",
        ),
        config(world, &host_local(&json!({"ranges": {}})), 7, "ipam.ranges"),
        config(world, &host_local(&json!({"routes": [{"dst": "x"}]})), 7, "\"dst\" is \"x\""),
        config(world, &host_local(&json!({"dataDir": []})), 7, "ipam.dataDir\": expected a text"),
        config(world, &static_addresses(&json!({"addresses": ["x"]})), 7, "ipam.addresses[0]"),
    ]
}

fn wrong_values(world: &World) -> Vec<Bad> {
    let range = |range: Value| host_local(&json!({"ranges": [[range]]}));
    let far = json!({"type": "static", "routes": [{"dst": "0.0.0.0/0"}],
        "addresses": [{"address": "10.3.0.5/24", "gateway": "10.9.0.1"}]});
    let outside = |key: &str| range(json!({"subnet": "10.1.0.0/24", key: "10.2.0.9"}));
    vec![
        config(world, &bridge(&json!({"cniVersion": "9.9.9"})), 1, "incompatible"),
        config(world, &bridge(&json!({"cniVersion": "1.0"})), 1, "incompatible"),
        config(world, &without(bridge(&json!({})), &["name"]), 7, "\"name\""),
        config(world, &bridge(&json!({"name": "../etc"})), 7, "\"name\""),
        config(world, &bridge(&json!({"vlan": -1})), 7, "\"vlan\" is -1, allowed are 0 to 4094"),
        config(world, &bridge(&json!({"vlan": 4095})), 7, "\"vlan\" is 4095"),
        config(world, &bridge(&json!({"vlanTrunk": [{"id": 0}]})), 7, "\"vlanTrunk[0].id\" is 0"),
        config(
            world,
            &bridge(&json!({"bridge": "fourteen-bytes", "vlan": 100, "isGateway": true})),
            7,
            "\"fourteen-bytes.100\"",
        ),
        config(world, &bridge(&json!({"ipam": {"type": "nowhere"}})), 7, "\"nowhere\""),
        config(world, &bridge(&json!({"ipam": {"type": "../../bin/sh"}})), 7, "../../bin/sh"),
        config(world, &ptp(&json!({"ipam": {"type": "nowhere"}})), 7, "\"nowhere\""),
        config(world, &bridge(&json!({"ipam": far})), 999, "via 10.9.0.1 dev eth0: Network"),
        config(
            world,
            &bridge(&json!({"runtimeConfig": {"mac": MULTICAST_MAC}})),
            7,
            "\"runtimeConfig.mac\" is \"01:00:00:00:00:01\", a unicast address",
        ),
        config(world, &outside("rangeStart"), 7, "10.2.0.9"),
        config(world, &outside("rangeEnd"), 7, "10.2.0.9"),
        config(world, &range(json!({"subnet": "10.1.0.0/33"})), 7, "10.1.0.0/33"),
        config(world, &range(json!({"subnet": "10.1.0.9/24"})), 7, "10.1.0.9/24"),
        config(world, &range(json!({"subnet": "10.1.0.0/32"})), 7, "10.1.0.0/32"),
    ]
}

fn wrong_devices(world: &World) -> Vec<Bad> {
    let by = |more: Value| with(without(host_device(&json!({})), &["device"]), &more);
    let id = |id: &str| by(json!({"runtimeConfig": {"deviceID": id}}));
    vec![
        config(world, &host_device(&json!({"device": "a/b"})), 7, "\"a/b\""),
        config(world, &host_device(&json!({"device": []})), 7, "\"device\": expected a text"),
        config(world, &by(json!({})), 7, "\"device\", \"hwaddr\", \"kernelpath\""),
        config(world, &by(json!({"capabilities": {"deviceID": true}})), 7, "\"deviceID\""),
        config(world, &by(json!({"hwaddr": "xx"})), 7, "\"xx\""),
        config(world, &by(json!({"kernelpath": "/sys/class"})), 7, "\"/sys/class\""),
        config(world, &by(json!({"pciBusID": "../x"})), 7, "\"../x\""),
        config(world, &by(json!({"pciBusID": ".."})), 7, "\"..\""),
        config(world, &id("nowhere"), 7, "\"nowhere\""),
        config(world, &id("/etc"), 7, "\"/etc\""),
        config(world, &host_device(&json!({"useInterfaceNetwork": 1})), 7, "useInterfaceNetwork"),
        config(world, &tap(&json!({"owner": -1})), 7, "\"owner\" is -1"),
        config(world, &tap(&json!({"owner": 4_294_967_295_u32})), 7, "\"owner\" is 4294967295"),
        config(world, &tap(&json!({"group": "kvm"})), 7, "\"group\" is \"kvm\""),
        config(world, &tap(&json!({"multiQueue": 2})), 7, "\"multiQueue\" is 2"),
        config(world, &tap(&json!({"mac": "02:00"})), 7, "\"02:00\""),
        config(world, &tap(&json!({"mac": MULTICAST_MAC})), 7, "\"mac\" is \"01:00:00:00:00:01\""),
        config(world, &tap(&json!({"mac": "00:00:00:00:00:00"})), 7, "\"00:00:00:00:00:00\""),
        config(world, &tap(&json!({"mtu": 67})), 7, "\"mtu\" is 67"),
        config(world, &tap(&json!({"mtu": 65522})), 7, "\"mtu\" is 65522, allowed are 68 to 65521"),
        config(world, &tap(&json!({"bridge": "a/b"})), 7, "\"a/b\""),
        config(world, &tap(&json!({"bridge": "none0"})), 7, "\"none0\""),
        config(world, &tap(&json!({"selinuxContext": 7})), 7, "\"selinuxContext\" is 7"),
        call(world.call(&tap(&json!({})), 1).args("MAC=02:00"), 4, "02:00"),
    ]
}

/// The plugins reject these before they create a link, so the kernel need not support the link
/// types.
fn wrong_links(world: &World) -> Vec<Bad> {
    vec![
        config(
            world,
            &macvlan(&json!({"mode": "l2"})),
            7,
            "\"mode\" is \"l2\", allowed are bridge",
        ),
        config(world, &macvlan(&json!({"mode": 4})), 7, "\"mode\" is 4"),
        config(world, &macvlan(&json!({"bcqueuelen": -1})), 7, "\"bcqueuelen\" is -1"),
        config(world, &macvlan(&json!({"mac": "02:00"})), 7, "\"mac\" is \"02:00\""),
        config(
            world,
            &macvlan(&json!({"mac": MULTICAST_MAC})),
            7,
            "\"mac\" is \"01:00:00:00:00:01\"",
        ),
        config(world, &macvlan(&json!({"master": "a/b"})), 7, "\"master\""),
        config(
            world,
            &macvlan(&json!({"master": "m9", "linkInContainer": true})),
            7,
            "Link not found in the container",
        ),
        config(world, &macvlan(&json!({"master": "m9"})), 7, "\"master\" is \"m9\""),
        config(world, &macvlan(&json!({"master": "lo", "mtu": 67})), 7, "68 to 65536"),
        config(world, &without(macvlan(&json!({})), &["master"]), 7, "no default route"),
        config(world, &ipvlan(&json!({"mode": "l4"})), 7, "\"mode\" is \"l4\", allowed are l2"),
        config(world, &ipvlan(&json!({"ipam": {}})), 7, "\"ipam.type\""),
        config(world, &ipvlan(&json!({"prevResult": 7})), 6, "prevResult"),
        config(world, &ipvlan(&json!({"linkInContainer": 1})), 7, "\"linkInContainer\" is 1"),
        config(world, &vlan(&json!({"vlanId": 4095})), 7, "\"vlanId\" is 4095, allowed are 0 to"),
        config(world, &vlan(&json!({"vlanId": -1})), 7, "\"vlanId\" is -1"),
        config(world, &vlan(&json!({"vlanId": "5"})), 7, "\"vlanId\" is \"5\""),
        config(world, &vlan(&json!({"mtu": -1})), 7, "\"mtu\" is -1"),
        config(world, &without(vlan(&json!({})), &["master"]), 7, "\"master\" must be set"),
        config(world, &vlan(&json!({"ipam": {}})), 7, "\"ipam.type\" must be set"),
        config(world, &dummy(&json!({"ipam": {}})), 7, "\"ipam.type\" must be set"),
        config(world, &dummy(&json!({"dns": 1})), 7, "\"dns\""),
    ]
}

fn wrong_environment(world: &World) -> Vec<Bad> {
    let plain = world.call(&bridge(&json!({})), 1);
    let long = "x".repeat(300);
    vec![
        call(plain.ifname(&long), 4, "300 bytes"),
        call(plain.ifname("a/b"), 4, "\"a/b\""),
        call(plain.ifname(""), 4, "CNI_IFNAME"),
        call(plain.container("a b"), 4, "containerID"),
        call(plain.container(""), 4, "CNI_CONTAINERID"),
        call(plain.netns(""), 4, "CNI_NETNS"),
        call(plain.netns("/nowhere"), 3, "/nowhere"),
        call(plain.netns("/proc/self/mem"), 999, "/proc/self/mem"),
        call(plain.netns("/proc/self/ns/mnt"), 999, "/proc/self/ns/mnt"),
        call(plain.path(&[]), 4, "CNI_PATH"),
        call(plain.args("junk"), 4, "\"junk\""),
        call(plain.args("A=b;;"), 4, "\"\""),
        call(plain.args("A=b"), 4, "A=b"),
        call(plain.args("MAC=02:00:00:00:00:01"), 4, "IPAM plugin \"host-local\": ARGS: unknown"),
        call(plain.args("IgnoreUnknown=maybe"), 4, "maybe"),
        call(plain.args("IgnoreUnknown=1;IP=10.9.0.300"), 4, "10.9.0.300"),
        (plain.clone(), "add", b"{}".to_vec(), 4, "add"),
        (plain.clone(), "DESTROY", b"{}".to_vec(), 4, "DESTROY"),
    ]
}

#[test]
fn invalid_input_prints_one_error_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let tables =
            [not_json, wrong_types, wrong_values, wrong_devices, wrong_links, wrong_environment];
        for (call, verb, stdin, code, words) in tables.iter().flat_map(|table| table(&world)) {
            let answer = call.run_raw(verb, &stdin);
            println!("{}", answer.stdout);
            answer.fails_with(code, words);
            assert_eq!(answer.stderr, "", "{words}");
            assert_eq!(answer.stdout.trim(), answer.stdout, "extra output around the JSON value");
            let disk = world.disk();
            assert!(disk.0.is_empty(), "{words}: {disk:?}");
        }
        let changes = before.changes_to(&world.snapshot());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

/// Without CNI_COMMAND a plugin prints its name and versions to standard error, like the Go
/// plugins.
#[test]
fn plugin_without_verb_prints_name_and_versions() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 0);
        for plugins in [&go, &ours] {
            let answer = world.call_of(plugins, &bridge(&json!({})), 1).run_raw("", b"");
            answer.ok();
            assert_eq!(answer.stdout, "");
            assert!(answer.stderr.starts_with("CNI bridge plugin"), "{}", answer.stderr);
            let versions = "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0";
            assert!(answer.stderr.contains(versions), "{}", answer.stderr);
            let version = world.call_of(plugins, &bridge(&json!({})), 1).run_raw("VERSION", b"");
            let versions: Vec<&str> = versions.split(", ").collect();
            assert_eq!(version.result()["supportedVersions"], json!(versions));
        }
    });
}

/// Calls a plugin in-process with a namespace path that does not exist, so that it fails before it
/// changes the kernel.
fn answer(name: &str, verb: &str, args: &str, stdin: &[u8]) -> cni::plugin::Reply {
    let plugins = plugins::registry::PLUGINS;
    let host = cni::plugin::Host {
        plugins,
        program: None,
        always_exec: false,
        builtin_fallback: false,
        locks: None,
    };
    let env = cni::plugin::Env {
        command: verb.to_owned(),
        container_id: "c1".to_owned(),
        netns: "/nowhere/at/all".to_owned(),
        ifname: "eth0".to_owned(),
        args: args.to_owned(),
        path: "/nowhere".to_owned(),
        netns_override: String::new(),
        depth: 0,
    };
    let plugin = host.plugin(name).expect("podwire has this plugin");
    cni::plugin::answer(plugin, &env, &mut &*stdin, &host)
}

/// JSON similar to a configuration: valid keys with random values.
fn random_config() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[0-9a-f.:/]{0,24}".prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let keys = "name|type|ipam|ranges|subnet|rangeStart|gateway|routes|dst|gw|mtu|vlan|dns|args|cni\
        |ips|mac|runtimeConfig|ipRanges|prevResult|interfaces|addresses|address|bridge|cniVersion\
        |cni.dev/valid-attachments|containerID|ifname|anotherAwesomeArg|master|mode|vlanId|bcqueuelen\
        |linkInContainer";
    let value = leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(keys, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    value.prop_map(|value| match value {
        // A nonexistent dataDir: the test must not read host-local's files on this machine.
        object @ Value::Object(_) => {
            let dir = json!({"type": "host-local", "dataDir": "/nowhere"});
            let ipam = match &object["ipam"] {
                ipam @ Value::Object(_) => with(ipam.clone(), &dir),
                _ => dir,
            };
            with(object, &json!({"cniVersion": "1.1.0", "name": "net", "ipam": ipam}))
        }
        other => other,
    })
}

fn check_reply(stdin: &[u8], args: &str) -> Result<(), TestCaseError> {
    for name in ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy", "loopback", "sample"] {
        let reply = answer(name, "ADD", args, stdin);
        let printed: Value = serde_json::from_slice(&reply.stdout)
            .map_err(|cause| TestCaseError::fail(format!("{name} printed no JSON: {cause}")))?;
        let is_error = printed["code"].is_u64() && printed["msg"].is_string();
        prop_assert!(is_error != reply.success, "{name}: {printed}");
    }
    for name in ["host-local", "static"] {
        for verb in ["DEL", "GC"] {
            answer(name, verb, args, stdin);
        }
    }
    Ok(())
}

#[test]
fn plugins_with_random_input_do_not_panic() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let bytes = (any::<Vec<u8>>(), ".{0,40}");
    runner.run(&bytes, |(stdin, args)| check_reply(&stdin, &args)).expect("bytes");
    let configs = (random_config(), "(IP|MAC|GATEWAY|IgnoreUnknown|;|=|,|[0-9.:/]){0,8}");
    let check = |(config, args): (Value, String)| check_reply(config.to_string().as_bytes(), &args);
    runner.run(&configs, check).expect("configurations");
}
