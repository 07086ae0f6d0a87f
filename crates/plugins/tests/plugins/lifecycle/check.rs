// SPDX-License-Identifier: Apache-2.0
//! CHECK detects each kind of damage and names it.

use std::fs;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::conf::{bridge, dual, network, ptp, static_addresses, with};
use crate::world::{Plugins, World};

/// Damage done to a healthy attachment. `@` stands for the name of the host veth.
enum Damage {
    Host(&'static str),
    Pod(&'static str),
    /// Removes a file.
    Gone(&'static str),
    /// Overwrites a file: path, content.
    Written(&'static str, &'static str),
}

use Damage::{Gone, Host, Pod, Written};

fn check(plugins: &Plugins, config: &Value, damage: &Damage, words: &str) {
    let world = World::new(plugins, 1);
    let call = world.call(config, 1);
    let result = call.add().result();
    call.check(&result).ok();
    let interfaces = result["interfaces"].as_array().expect("interfaces");
    let on_host = interfaces.iter().filter_map(|one| one["name"].as_str());
    let veth = on_host
        .into_iter()
        .find(|name| name.starts_with("veth"))
        .expect("the result contains a host veth");
    match damage {
        Host(line) => drop(world.on_host(&line.replace('@', veth))),
        Pod(line) => drop(world.in_pod(1, line)),
        Gone(file) => fs::remove_file(file).expect("remove the file"),
        Written(file, text) => fs::write(file, text).expect("write the file"),
    }
    let after = world.snapshot();
    println!("{words}");
    call.check(&result).fails_with(999, words);
    let changes = after.without_bookkeeping().changes_to(&world.snapshot().without_bookkeeping());
    assert!(changes.is_empty(), "CHECK changed state: {changes:#?}");
    call.del(&result).ok();
}

#[test]
fn check_of_damaged_bridge_fails() {
    let config = bridge(&json!({"isDefaultGateway": true, "hairpinMode": true, "ipam": dual()}));
    let damage = [
        (Pod("addr del 10.1.0.2/24 dev eth0"), "10.1.0.2/24 is missing"),
        (Pod("addr del fd00:1::2/64 dev eth0"), "fd00:1::2/64 is missing"),
        (Pod("route del default"), "route to 0.0.0.0/0 via 10.1.0.1 is missing"),
        (Pod("-6 route del default"), "route to ::/0 via fd00:1::1 is missing"),
        (Pod("route replace default via 10.1.0.9"), "route to 0.0.0.0/0 via 10.1.0.1 is missing"),
        (Pod("link set eth0 down"), "eth0 is down"),
        (Pod("link set eth0 address 02:00:00:00:00:09"), "02:00:00:00:00:09"),
        (Pod("link set eth0 name eth9"), "eth0 does not exist"),
        (Host("link set @ nomaster"), "not a port of bridge br0"),
        (Host("link set @ down"), "is down"),
        (Host("link set @ type bridge_slave hairpin off"), "hairpinMode"),
        (Host("link set br0 down"), "br0 is down"),
        (Host("link set br0 address 02:00:00:00:00:09"), "02:00:00:00:00:09"),
        (Host("link del br0"), "br0 does not exist"),
        (Host("addr del 10.1.0.1/24 dev br0"), "10.1.0.1/24 is missing on bridge br0"),
        (Gone("/run/data/net/10.1.0.2"), "10.1.0.2"),
        (Written("/run/data/net/fd00:1::2", "other\r\neth0"), "fd00:1::2"),
    ];
    in_netns(|| {
        let plugins = Plugins::ours();
        damage.iter().for_each(|(damage, words)| check(&plugins, &config, damage, words));
    });
}

#[test]
fn check_of_changed_bridge_options_fails() {
    in_netns(|| {
        let plugins = Plugins::ours();
        let isolated = bridge(&json!({"portIsolation": true}));
        let damage = Host("link set @ type bridge_slave isolated off");
        check(&plugins, &isolated, &damage, "portIsolation");
        let promisc = bridge(&json!({"promiscMode": true}));
        check(&plugins, &promisc, &Host("link set br0 promisc off"), "promiscuous");
        let plain = bridge(&json!({"ipam": {}}));
        check(&plugins, &plain, &Pod("link set eth0 down"), "eth0 is down");
    });
}

#[test]
fn check_of_damaged_ptp_fails() {
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}]});
    let config = ptp(&json!({"ipam": with(dual(), &routes)}));
    let damage = [
        (Pod("addr del 10.1.0.2/24 dev eth0"), "10.1.0.2/24 is missing"),
        (Pod("route del 10.1.0.0/24"), "route to 10.1.0.0/24 is missing"),
        (Pod("route del default"), "route to 0.0.0.0/0 is missing"),
        (Pod("link set eth0 down"), "eth0 is down"),
        (Host("route del 10.1.0.2"), "does not route 10.1.0.2"),
        (Host("-6 route del fd00:1::2"), "does not route fd00:1::2"),
        (Host("addr del 10.1.0.1/32 dev @"), "gateway 10.1.0.1 is missing on the host"),
        (Host("addr del fd00:1::1/128 dev @"), "gateway fd00:1::1 is missing on the host"),
        (Host("link set @ down"), "is down"),
        (Gone("/run/data/net/fd00:1::2"), "fd00:1::2"),
    ];
    in_netns(|| {
        let plugins = Plugins::ours();
        damage.iter().for_each(|(damage, words)| check(&plugins, &config, damage, words));
    });
}

#[test]
fn check_of_damaged_loopback_and_static_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let loopback = world.call(&network("loopback", &json!({})), 1).ifname("lo");
        let result = loopback.add().result();
        loopback.check(&result).ok();
        world.in_pod(1, "link set lo down");
        loopback.check(&result).fails_with(999, "down");

        let address = |text: &str| json!({"addresses": [{"address": text, "gateway": "10.1.0.1"}]});
        let fixed = world.call(&static_addresses(&address("10.1.0.5/24")), 1);
        let result = fixed.add().result();
        fixed.check(&result).ok();
        let other = fixed.config(&static_addresses(&address("10.1.0.6/24")));
        other.check(&result).fails_with(999, "10.1.0.6/24");
        fixed.run("CHECK").fails_with(7, "prevResult");
    });
}
