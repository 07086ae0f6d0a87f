// SPDX-License-Identifier: Apache-2.0
//! Scripts match error texts: for the same invalid input, podwire's message contains the phrase of
//! the Go plugin's message. If that message says everything, podwire adds no details to it, because
//! runtimes print message and details as one text.

use serde_json::{Value, json};
use testkit::in_netns;

use crate::call::{Answer, Call};
use crate::conf::{
    bridge, chained, dummy, host_device, host_local, ipvlan, macvlan, network, ptp, ranges,
    static_addresses, vlan, with, without,
};
use crate::world::{Plugins, World};

/// A configuration, and the phrase expected in the error.
type Row = (Value, &'static str);

/// A call with its standard input, and the phrase expected in the error.
type Phrased = (Call, &'static str, Vec<u8>, &'static str);

/// Returns the error. Panics if the call succeeded.
#[track_caller]
fn error<'a>(answer: &'a Answer, phrase: &str) -> &'a Value {
    assert!(!answer.success, "{phrase:?}: succeeded: {}", answer.stdout);
    answer.values.last().unwrap_or_else(|| panic!("{phrase:?}: {}", answer.stdout))
}

/// Returns the message of the error. Panics if the call succeeded.
#[track_caller]
fn message(answer: &Answer, phrase: &str) -> String {
    let error = error(answer, phrase);
    error["msg"].as_str().unwrap_or_else(|| panic!("{phrase:?}: {error}")).to_owned()
}

/// Makes the same calls with both sets of plugins, each on its own host, which `prepare` sets up.
/// Asserts that every message contains its phrase.
fn compare(prepare: &[&str], call: impl Fn(&World) -> Vec<Phrased>) {
    let [go, ours] = errors_of_both(prepare, call, message);
    let without_phrase = |plugins: &str, messages: &[(&str, String)]| -> Vec<String> {
        let missing = messages.iter().filter(|(phrase, msg)| !msg.contains(phrase));
        missing
            .map(|(phrase, msg)| format!("message of {plugins} does not contain {phrase:?}: {msg}"))
            .collect()
    };
    let problems = [without_phrase("Go", &go), without_phrase("podwire", &ours)].concat();
    assert!(problems.is_empty(), "{} of {}:\n{}", problems.len(), go.len(), problems.join("\n"));
}

/// Makes the same calls with both sets of plugins. Returns what `read` takes from the errors.
fn errors_of_both<T>(
    prepare: &[&str],
    call: impl Fn(&World) -> Vec<Phrased>,
    read: fn(&Answer, &str) -> T,
) -> [Vec<(&'static str, T)>; 2] {
    let errors = |plugins: &Plugins| {
        let world = World::new(plugins, 1);
        prepare.iter().for_each(|line| drop(world.on_host(line)));
        let of_call = |(call, verb, stdin, phrase): Phrased| {
            (phrase, read(&call.run_raw(verb, &stdin), phrase))
        };
        call(&world).into_iter().map(of_call).collect()
    };
    [errors(&Plugins::go()), errors(&Plugins::ours())]
}

/// Message and details of the error, as runtimes print them.
fn whole(answer: &Answer, phrase: &str) -> String {
    let error = error(answer, phrase);
    let text = |key: &str| error[key].as_str().unwrap_or_default();
    format!("{}; {}", text("msg"), text("details"))
}

/// Asserts that both sets of plugins print exactly this message, without details.
fn compare_whole(call: impl Fn(&World) -> Vec<Phrased>) {
    let [go, ours] = errors_of_both(&[], call, whole);
    let expected: Vec<_> = go.iter().map(|(msg, _)| (*msg, format!("{msg}; "))).collect();
    assert_eq!(go, expected, "Go");
    assert_eq!(ours, expected, "podwire");
}

/// Compares ADD with these configurations.
fn compare_adds(prepare: &[&str], rows: &[Row]) {
    compare(prepare, |world| {
        rows.iter().map(|(config, phrase)| row(world, "ADD", config, phrase)).collect()
    });
}

fn row(world: &World, verb: &'static str, config: &Value, phrase: &'static str) -> Phrased {
    (world.call(config, 1), verb, config.to_string().into_bytes(), phrase)
}

fn with_args(world: &World, config: &Value, args: &str, phrase: &'static str) -> Phrased {
    let (call, verb, stdin, phrase) = row(world, "ADD", config, phrase);
    (call.args(args), verb, stdin, phrase)
}

#[test]
fn protocol_errors_contain_phrases_of_go() {
    in_netns(|| {
        compare(&[], |world| {
            let plain = bridge(&json!({}));
            let old = |version: &str| with(plain.clone(), &json!({"cniVersion": version}));
            let changed =
                |call: Call, phrase| (call, "ADD", plain.to_string().into_bytes(), phrase);
            let call = world.call(&plain, 1);
            let characters = "interface name contains / or : or whitespace characters";
            vec![
                row(world, "CHECK", &old("0.3.1"), "config version does not allow CHECK"),
                row(world, "STATUS", &old("1.0.0"), "config version does not allow STATUS"),
                row(world, "GC", &old("1.0.0"), "config version does not allow GC"),
                row(world, "ADD", &old("9.9.9"), "incompatible CNI versions"),
                (call.clone(), "ADD", b"{".to_vec(), "error unmarshall network config: "),
                row(
                    world,
                    "ADD",
                    &bridge(&json!({"name": 7})),
                    "error unmarshall network config: ",
                ),
                row(world, "ADD", &without(plain.clone(), &["name"]), "missing network name"),
                row(
                    world,
                    "ADD",
                    &bridge(&json!({"name": "a/b"})),
                    "invalid characters found in network name",
                ),
                row(world, "DESTROY", &plain, "unknown CNI_COMMAND: DESTROY"),
                changed(call.container("a b"), "invalid characters in containerID"),
                changed(call.container(""), "required env variables [CNI_CONTAINERID] missing"),
                changed(call.ifname("sixteen-letters-"), "interface name is too long"),
                changed(call.ifname(".."), "interface name is . or .."),
                changed(call.ifname("a/b"), characters),
                changed(call.args("junk"), "ARGS: invalid pair \"junk\""),
                changed(call.args("A=b"), "ARGS: unknown args [\"A=b\"]"),
                changed(call.netns("/nowhere"), "failed to open netns \"/nowhere\": "),
                row(world, "ADD", &bridge(&json!({"mtu": "abc"})), "failed to load netconf: "),
                row(
                    world,
                    "ADD",
                    &bridge(&json!({"ipam": {"type": "nowhere"}})),
                    "failed to find plugin \"nowhere\" in path [",
                ),
            ]
        });
    });
}

#[test]
fn bridge_and_ptp_errors_contain_phrases_of_go() {
    let trunk = |item: Value| bridge(&json!({"vlanTrunk": [item]}));
    let vlan = |id: i32| bridge(&json!({"vlan": id}));
    let together = "minID and maxID should be configured simultaneously, ";
    let rows = [
        (
            bridge(&json!({"hairpinMode": true, "promiscMode": true})),
            "cannot set hairpin mode and promiscuous mode at the same time",
        ),
        (
            bridge(&json!({"disableContainerInterface": true})),
            "cannot use IPAM when DisableContainerInterface flag is set",
        ),
        (vlan(5000), "invalid VLAN ID 5000 (must be between 0 and 4094)"),
        (vlan(-1), "invalid VLAN ID -1 (must be between 0 and 4094)"),
        (trunk(json!({"id": 4095})), "incorrect trunk id parameter"),
        (trunk(json!({"minID": 0, "maxID": 5})), "incorrect trunk minID parameter"),
        (trunk(json!({"minID": 5, "maxID": 4095})), "incorrect trunk maxID parameter"),
        (trunk(json!({"minID": 9, "maxID": 5})), "minID is greater than maxID in trunk parameter"),
        (trunk(json!({"minID": 9})), together),
        (trunk(json!({"maxID": 9})), together),
        (bridge(&json!({"bridge": "other"})), "\"other\" already exists but is not a bridge"),
        (
            bridge(&json!({"bridge": "old", "isGateway": true})),
            "\"old\" already has an IP address different from 10.1.0.1/24",
        ),
        (ptp(&json!({"mtu": "abc"})), "failed to load netconf: "),
        (without(ptp(&json!({})), &["ipam"]), "no plugin name provided"),
        (ptp(&json!({"ipam": {"type": "static"}})), "IPAM plugin returned missing IP config"),
    ];
    let prepare = [
        "link add other type veth peer name other2",
        "link add old type bridge",
        "addr add 10.9.0.1/24 dev old",
    ];
    in_netns(|| compare_adds(&prepare, &rows));
}

#[test]
fn master_link_errors_contain_phrases_of_go() {
    let rows = [
        (macvlan(&json!({"mode": "l2"})), "unknown macvlan mode: \"l2\""),
        (macvlan(&json!({"master": "m9"})), "Link not found"),
        (without(macvlan(&json!({})), &["master"]), "no default route interface found"),
        (macvlan(&json!({"mtu": 1600})), "invalid MTU 1600, must be [0, master MTU(1500)]"),
        (macvlan(&json!({"mtu": -100})), "invalid MTU -100, must be [0, master MTU(1500)]"),
        (macvlan(&json!({"mac": "02:00"})), "invalid args 02:00 for MAC addr"),
        (macvlan(&json!({"mode": 4})), "failed to load netconf: "),
        (ipvlan(&json!({"mode": "l4"})), "unknown ipvlan mode: \"l4\""),
        (
            without(vlan(&json!({})), &["master"]),
            "\"master\" field is required. It specifies the host interface name to create the VLAN for",
        ),
        (vlan(&json!({"vlanId": -1})), "invalid VLAN ID -1 (must be between 0 and 409"),
        (vlan(&json!({"mtu": 1600})), "invalid MTU 1600, must be [0, master MTU(1500)]"),
        (dummy(&json!({"ipam": {}})), "dummy interface requires an IPAM configuration"),
    ];
    in_netns(|| compare_adds(&["link add m0 type veth peer name m1"], &rows));
}

#[test]
fn host_device_errors_contain_phrases_of_go() {
    let by = |more: Value| with(without(host_device(&json!({})), &["device"]), &more);
    let rows = [
        (by(json!({})), "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\""),
        (by(json!({"hwaddr": "xx"})), "failed to parse MAC address \"xx\""),
        (
            by(json!({"kernelpath": "/etc"})),
            "kernel device path \"/etc\" must be absolute and begin with /sys/devices/",
        ),
        (by(json!({"device": "none9"})), "failed to find host device: "),
        (
            by(json!({"runtimeConfig": {"deviceID": "nowhere"}})),
            "runtime config DeviceID nowhere not found or unsupported",
        ),
    ];
    in_netns(|| compare_adds(&[], &rows));
}

#[test]
fn host_local_errors_contain_phrases_of_go() {
    let sets = |sets: Value| network("host-local", &json!({"ipam": ranges(&sets)}));
    let range = |range: Value| sets(json!([[range]]));
    let old = |version: &str, config: Value| with(config, &json!({"cniVersion": version}));
    let (net, other) = (json!({"subnet": "10.1.0.0/24"}), json!({"subnet": "10.2.0.0/24"}));
    let wide = json!({"subnet": "10.1.0.0/16"});
    in_netns(|| {
        compare(&[], |world| {
            let add = |config: Value, phrase| row(world, "ADD", &config, phrase);
            let outside = |key: &str| range(json!({"subnet": "10.1.0.0/24", key: "10.2.0.9"}));
            let reversed = json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9",
                "rangeEnd": "10.1.0.5"});
            let asked = json!({"args": {"cni": {"ips": ["10.9.0.9"]}}});
            vec![
                add(network("host-local", &json!({})), "IPAM config missing 'ipam' key"),
                add(without(sets(json!([])), &[]), "no IP ranges specified"),
                add(
                    range(json!({"subnet": "10.1.0.0/32"})),
                    "Network 10.1.0.0/32 too small to allocate from",
                ),
                add(
                    range(json!({"subnet": "10.1.0.9/24"})),
                    "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.0.0",
                ),
                add(outside("rangeStart"), "RangeStart 10.2.0.9 not in network 10.1.0.0/24"),
                add(outside("rangeEnd"), "RangeEnd 10.2.0.9 not in network 10.1.0.0/24"),
                add(range(reversed), "RangeStart 10.1.0.9 not in network 10.1.0.0/24"),
                add(sets(json!([[]])), "invalid range set 0: empty range set"),
                add(
                    sets(json!([[net, {"subnet": "fd00::/64"}]])),
                    "invalid range set 0: mixed address families",
                ),
                add(
                    sets(json!([[wide, net]])),
                    "invalid range set 0: subnets 10.1.0.1-10.1.255.254 and 10.1.0.1-10.1.0.254 overlap",
                ),
                add(sets(json!([[wide], [net]])), "range set 0 overlaps with 1"),
                add(
                    old("0.2.0", sets(json!([[net], [other]]))),
                    "CNI version 0.2.0 does not support more than 1 address per family",
                ),
                add(
                    with(host_local(&json!({})), &asked),
                    "failed to allocate all requested IPs: 10.9.0.9",
                ),
                row(
                    world,
                    "CHECK",
                    &host_local(&json!({})),
                    "host-local: Failed to find address added by container c1",
                ),
            ]
        });
    });
}

#[test]
fn static_and_dhcp_errors_contain_phrases_of_go() {
    let plain = static_addresses(&json!({}));
    let in_cidr = "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.5'";
    in_netns(|| {
        compare(&[], |world| {
            let add = |config: Value, phrase| row(world, "ADD", &config, phrase);
            let two = json!([{"address": "10.1.0.5/24"}, {"address": "10.2.0.5/24"}]);
            let two =
                with(static_addresses(&json!({"addresses": two})), &json!({"cniVersion": "0.2.0"}));
            let ips = json!({"ips": ["10.1.0.5"]});
            vec![
                add(network("static", &json!({})), "IPAM config missing 'ipam' key"),
                add(
                    static_addresses(&json!({"addresses": [{"address": "10.1.0.5"}]})),
                    "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'",
                ),
                with_args(
                    world,
                    &plain,
                    "IP=10.1.0.5",
                    "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.5'",
                ),
                with_args(world, &plain, "GATEWAY=x", "invalid gateway address: x"),
                add(with(plain.clone(), &json!({"runtimeConfig": ips})), in_cidr),
                add(with(plain.clone(), &json!({"args": {"cni": ips}})), in_cidr),
                add(two, "CNI version 0.2.0 does not support more than 1 address per family"),
                row(world, "CHECK", &plain, "Required prevResult missing"),
                add(
                    network(
                        "dhcp",
                        &json!({"ipam": {"type": "dhcp", "daemonSocketPath": "/run/none"}}),
                    ),
                    "error dialing DHCP daemon: ",
                ),
            ]
        });
    });
}

#[test]
fn portmap_and_firewall_errors_contain_phrases_of_go() {
    let mapped = |mapping: Value| json!({"runtimeConfig": {"portMappings": [mapping]}});
    let one = mapped(json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}));
    let portmap = |more: Value| with(chained("portmap", &one), &more);
    let rows = [
        (without(portmap(json!({})), &["prevResult"]), "must be called as chained plugin"),
        (portmap(json!({"snat": 7})), "failed to parse network configuration: "),
        (portmap(json!({"backend": "x"})), "unrecognized backend \"x\""),
        (portmap(json!({"markMasqBit": 32})), "MasqMarkBit must be between 0 and 31"),
        (
            portmap(json!({"markMasqBit": 5, "externalSetMarkChain": "X"})),
            "Cannot specify externalSetMarkChain and markMasqBit",
        ),
        (
            portmap(mapped(json!({"hostPort": 0, "containerPort": 80}))),
            "Invalid host port number: 0",
        ),
        (
            portmap(mapped(json!({"hostPort": 80, "containerPort": 0}))),
            "Invalid container port number: 0",
        ),
        (
            portmap(json!({"backend": "iptables", "conditionsV4": ["ip", "saddr", "10.0.0.1"]})),
            "iptables backend was requested but configuration contains nftables-specific options [conditionsV4]",
        ),
        (
            without(chained("firewall", &json!({})), &["prevResult"]),
            "missing prevResult from earlier plugin",
        ),
        (chained("firewall", &json!({"backend": 7})), "failed to load netconf: "),
        (
            chained("firewall", &json!({"backend": "iptables", "ingressPolicy": "x"})),
            "unknown ingress policy: \"x\"",
        ),
    ];
    in_netns(|| compare_adds(&[], &rows));
}

#[test]
fn chained_plugin_errors_contain_phrases_of_go() {
    let alone = |kind: &str, more: Value| without(chained(kind, &more), &["prevResult"]);
    let limits = |more: Value| chained("bandwidth", &more);
    in_netns(|| {
        compare(&[], |world| {
            let add = |config: Value, phrase| row(world, "ADD", &config, phrase);
            let limit = json!({"ingressRate": 8000, "ingressBurst": 8000});
            vec![
                add(alone("bandwidth", limit.clone()), "must be called as chained plugin"),
                row(
                    world,
                    "CHECK",
                    &alone("bandwidth", limit),
                    "must be called as a chained plugin",
                ),
                add(limits(json!({"ingressRate": 8000})), "if rate is set, burst must also be set"),
                add(limits(json!({"egressBurst": 8000})), "if burst is set, rate must also be set"),
                add(
                    limits(json!({"egressRate": 8000, "egressBurst": 34_359_738_400_u64})),
                    "burst cannot be more than 4GB",
                ),
                add(alone("sbr", json!({})), "This plugin must be called as chained plugin"),
                add(
                    chained("sbr", &json!({"table": "x"})),
                    "failed to parse network configuration: ",
                ),
                add(alone("tuning", json!({"mtu": 1400})), "Required prevResult missing"),
                add(chained("tuning", &json!({"mtu": "x"})), "failed to load netconf: "),
                add(
                    chained("tuning", &json!({"sysctl": {"kernel.hostname": "x"}})),
                    "invalid net sysctl key: \"kernel",
                ),
                row(world, "CHECK", &alone("tuning", json!({})), "Required prevResult missing"),
                add(
                    chained("vrf", &json!({})),
                    "configuration is expected to have a valid vrf name",
                ),
                add(
                    alone("vrf", json!({"vrfname": "v0"})),
                    "missing prevResult from earlier plugin",
                ),
                row(
                    world,
                    "CHECK",
                    &alone("vrf", json!({"vrfname": "v0"})),
                    "missing prevResult from earlier plugin",
                ),
            ]
        });
    });
}

#[test]
fn complete_messages_of_go_have_no_details() {
    let plain = bridge(&json!({}));
    let old = |version: &str| with(plain.clone(), &json!({"cniVersion": version}));
    let in_cidr = "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.5'";
    let ips = json!({"ips": ["10.1.0.5"]});
    let address = static_addresses(&json!({"addresses": [{"address": "10.1.0.5"}]}));
    let nothing = static_addresses(&json!({}));
    let no_device = without(host_device(&json!({})), &["device"]);
    let alone = |kind: &str| without(chained(kind, &json!({})), &["prevResult"]);
    let limit = |key: &str| {
        let mut config = chained("bandwidth", &json!({}));
        config[key] = json!(8000);
        config
    };
    in_netns(|| {
        compare_whole(|world| {
            let add = |config: Value, msg| row(world, "ADD", &config, msg);
            vec![
                row(world, "CHECK", &old("0.3.1"), "config version does not allow CHECK"),
                row(world, "STATUS", &old("1.0.0"), "config version does not allow STATUS"),
                row(world, "GC", &old("1.0.0"), "config version does not allow GC"),
                add(
                    address.clone(),
                    "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'",
                ),
                with_args(
                    world,
                    &nothing,
                    "IP=10.1.0.5",
                    "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.5'",
                ),
                add(with(nothing.clone(), &json!({"runtimeConfig": ips})), in_cidr),
                add(with(nothing.clone(), &json!({"args": {"cni": ips}})), in_cidr),
                add(
                    no_device.clone(),
                    "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"",
                ),
                add(limit("ingressRate"), "if rate is set, burst must also be set"),
                add(limit("egressBurst"), "if burst is set, rate must also be set"),
                add(alone("portmap"), "must be called as chained plugin"),
                add(alone("sbr"), "This plugin must be called as chained plugin"),
                add(without(old("0.2.0"), &["ipam"]), "cannot convert: no valid IP addresses"),
            ]
        });
    });
}
