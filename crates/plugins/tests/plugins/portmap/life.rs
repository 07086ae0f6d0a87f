// SPDX-License-Identifier: Apache-2.0
//! Lifecycle of an attachment's ports: a failed ADD leaves nothing, DEL needs only the attachment's
//! name, CHECK detects damage, STATUS reports causes, and `nft` can print and load the rules.

use std::fs;

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::lab::{Lab, port, portmap};
use crate::conf::{network, with, without};
use crate::world::{Plugins, World};

/// A result of a preceding plugin that does not match the host's state.
fn some_result() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0, "strange": 7}]})
}

fn ruleset(world: &World) -> String {
    world.host.exec("nft", &["list", "ruleset"])
}

#[test]
fn portmap_without_mappings_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        for mappings in [json!({}), json!({"runtimeConfig": {"portMappings": []}})] {
            let call = world.call(&network("portmap", &mappings), 1);
            let passed_on = call.with_prev_result(&some_result()).add().result();
            assert_eq!(passed_on["ips"], some_result()["ips"], "unknown keys are dropped");
            call.check(&some_result()).ok();
            call.del(&some_result()).ok();
            call.gc(&[]).ok();
            call.status().ok();
        }
        let config = portmap(&[port(1, 1, "tcp")]);
        let no_address = json!({"cniVersion": "1.1.0", "ips": []});
        world.call(&config, 1).with_prev_result(&no_address).add().ok();
        world.call(&config, 1).check(&no_address).ok();
        assert_eq!(ruleset(&world), "");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

/// Invalid configurations, and text expected in the error.
fn refused() -> [(Value, String); 13] {
    let good = portmap(&[port(8080, 80, "tcp")]);
    let mapping = |more: Value| portmap(&[with(port(8080, 80, "tcp"), &more)]);
    let key = |more: Value| with(good.clone(), &more);
    let first = "\"runtimeConfig.portMappings[0]";
    [
        (
            mapping(json!({"hostPort": 0})),
            format!("{first}.hostPort\" is 0, allowed are 1 to 65535"),
        ),
        (mapping(json!({"containerPort": null})), format!("{first}.containerPort\" must be set")),
        (mapping(json!({"hostPort": 70000})), format!("{first}.hostPort\" is 70000")),
        (mapping(json!({"hostPort": "8000-8010"})), "\"8000-8010\"".to_owned()),
        (mapping(json!({"containerPort": -5})), format!("{first}.containerPort\" is -5")),
        (mapping(json!({"protocol": "icmp"})), format!("{first}.protocol\" is \"icmp\"")),
        (mapping(json!({"hostIP": "localhost"})), format!("{first}.hostIP\" is \"localhost\"")),
        (
            portmap(&[port(1, 2, "tcp"), port(1, 3, "TCP")]),
            "maps tcp port 1 of every IPv4 address to container ports 2 and 3".to_owned(),
        ),
        (key(json!({"markMasqBit": 32})), "\"markMasqBit\" is 32, allowed are 0 to 31".to_owned()),
        (
            key(json!({"markMasqBit": 1, "externalSetMarkChain": "X"})),
            "Cannot specify externalSetMarkChain and markMasqBit".to_owned(),
        ),
        (key(json!({"snat": "yes"})), "\"snat\" is \"yes\"".to_owned()),
        (key(json!({"backend": "ipfw"})), "\"backend\" is \"ipfw\", allowed are".to_owned()),
        (key(json!({"conditionsV4": "-s"})), "\"conditionsV4\" is \"-s\"".to_owned()),
    ]
}

#[test]
fn portmap_with_invalid_input_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let good = portmap(&[port(8080, 80, "tcp")]);
        let key = |more: Value| with(good.clone(), &more);
        for (config, words) in refused() {
            let call = world.call(&config, 1).with_prev_result(&some_result());
            call.add().fails_with(7, &words);
            call.run("CHECK").fails_with(7, &words);
            call.run("DEL").ok();
        }
        world.call(&good, 1).add().fails_with(7, "must be called as chained plugin");
        world.call(&good, 1).run("CHECK").fails_with(7, "prevResult");
        assert_eq!(ruleset(&world), "");
        let accepted = key(json!({"markMasqBit": 5, "snat": null, "backend": "nftables"}));
        world.call(&accepted, 1).with_prev_result(&some_result()).add().ok();
        let accepted = key(json!({"externalSetMarkChain": "X"}));
        world.call(&accepted, 1).with_prev_result(&some_result()).add().ok();
    });
}

#[test]
fn portmap_del_with_name_only_removes_elements() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let config = portmap(&[port(8080, 80, "tcp"), port(53, 53, "udp")]);
        let call = lab.call(&config, 1);
        let bare =
            call.config(&without(config.clone(), &["runtimeConfig", "prevResult"])).netns("");
        bare.run("DEL").ok();
        call.add().ok();
        assert_eq!(lab.all_elements().len(), 12);
        bare.run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
        assert_eq!(lab.elements("owned"), Vec::<String>::new());
        bare.run("DEL").ok();
        call.add().ok();
        call.run("DEL").ok();
        let broken = call.config(&with(config, &json!({"backend": 7, "prevResult": "x"})));
        broken.run("DEL").ok();
    });
}

/// Stale elements of the same attachment, after a killed ADD or a lost DEL.
#[test]
fn portmap_add_replaces_its_stale_elements() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        lab.call(&portmap(&[port(1, 1, "tcp"), port(2, 2, "tcp")]), 1).add().ok();
        let call = lab.call(&portmap(&[port(2, 22, "tcp"), port(3, 33, "udp")]), 1);
        call.add().ok();
        let mine = [
            "tcp . 2 comment \"c1/eth0 net\" : 10.1.0.2 . 22",
            "udp . 3 comment \"c1/eth0 net\" : 10.1.0.2 . 33",
        ];
        assert_eq!(lab.elements("ports4"), mine);
        call.run("CHECK").ok();
        call.run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
    });
}

#[test]
fn portmap_check_of_damaged_rules_fails() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        let call = lab.call(&portmap(&[port(8080, 80, "tcp")]), 1);
        let damage = [
            ("delete element inet podwire ports4 { tcp . 8080 }", "\"ports4\" has no element"),
            ("delete element inet podwire hairpin6 { \"br0\" . fd00:1::2 }", "hairpin6"),
            ("delete element inet podwire self4 { 10.1.0.2 . 10.1.0.2 }", "self4"),
            ("flush chain inet podwire hostports", "chain \"hostports\""),
            ("flush chain inet podwire portmap_output", "portmap_output"),
            ("delete table inet podwire", "table \"podwire\" is gone, as after"),
        ];
        for (line, words) in damage {
            call.add().ok();
            call.run("CHECK").ok();
            lab.world.host.exec("nft", &[line]);
            call.run("CHECK").fails_with(999, words);
            call.run("DEL").ok();
            let _ = lab.world.host.try_exec("nft", &["delete table inet podwire"]);
        }
        call.add().ok();
        lab.world.host.exec("sysctl", &["-w", "net.ipv4.conf.br0.route_localnet=0"]);
        call.run("CHECK").fails_with(999, "net/ipv4/conf/br0/route_localnet is not 1");
        let other = lab.call(&portmap(&[port(8080, 81, "tcp")]), 1);
        other.run("CHECK").fails_with(999, "other data");
    });
}

/// Loading a saved ruleset restores everything, as after a restart of the nftables service.
#[test]
fn saved_ruleset_can_be_loaded_by_nft() {
    in_netns(|| {
        require!(Program("nft"));
        let lab = Lab::new(&Plugins::ours());
        let at = |host, ip: &str| with(port(host, 80, "sctp"), &json!({"hostIP": ip}));
        let ports = |host| {
            let tcp = port(host, 80, "tcp");
            portmap(&[tcp, port(host, 53, "udp"), at(host, "192.0.2.1"), at(host, "fd00:2::1")])
        };
        lab.call(&ports(8080), 1).add().ok();
        let keys = json!({"name": "two", "conditionsV4": ["-i", "eth+", "!", "-s", "10.0.0.0/8"],
            "conditionsV6": ["ip6 saddr { fd00::/8, fc00::1 } fib daddr type local"]});
        lab.call(&with(ports(8081), &keys), 2).add().ok();
        let all = with(portmap(&[port(9, 9, "udp")]), &json!({"name": "three", "masqAll": true}));
        lab.call(&all, 1).add().ok();
        let printed = lab.ruleset();
        for words in
            ["192.0.2.1 . sctp . 8080 comment \"c1/eth0 net\" : 10.1.0.2 . 80", "jump ports-"]
        {
            assert!(printed.contains(words), "{words}\n{printed}");
        }
        fs::write("/run/saved.nft", format!("flush ruleset\n{printed}"))
            .expect("write a file in /run");
        lab.world.host.exec("nft", &["-f", "/run/saved.nft"]);
        assert_eq!(lab.ruleset(), printed);
        let json = lab.world.host.exec("nft", &["-j", "list", "ruleset"]);
        assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
    });
}

#[test]
fn container_with_thousand_ports_works() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let many: Vec<Value> = (1..=500)
            .flat_map(|n| {
                [port(n, n + 1000, "tcp"), with(port(n, n, "udp"), &json!({"hostIP": "fd00:2::1"}))]
            })
            .collect();
        let call = lab.call(&portmap(&many), 1);
        call.add().ok();
        call.run("CHECK").ok();
        assert_eq!((lab.elements("ports4").len(), lab.elements("ports_at6").len()), (500, 500));
        lab.call(&portmap(&[port(1, 1, "tcp")]), 2).add().fails_with(11, "tcp port 1 of every");
        call.add().ok();
        call.run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
        assert_eq!(lab.elements("owned"), Vec::<String>::new());
        let too_many: Vec<Value> = (1..=65000).map(|n| port(n, 1, "tcp")).collect();
        let words = "\"runtimeConfig.portMappings\" needs 260004 nf_tables elements, allowed";
        lab.call(&portmap(&too_many), 1).add().fails_with(7, words);
        assert_eq!(lab.all_elements(), Vec::<String>::new());
    });
}

/// Mappings of `podman run -p 10000-20000:10000-20000/udp`.
#[test]
fn container_with_ten_thousand_ports_works() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let many: Vec<Value> = (10_000..=20_000).map(|n| port(n, n, "udp")).collect();
        let call = lab.call(&portmap(&many), 1);
        call.add().ok();
        assert_eq!((lab.elements("ports4").len(), lab.elements("ports6").len()), (10_001, 10_001));
        let one = portmap(&[port(20_000, 1, "udp")]);
        lab.call(&one, 2).add().fails_with(11, "udp port 20000 of every IPv4 address");
        call.run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
        assert_eq!(lab.elements("owned"), Vec::<String>::new());
    });
}

#[test]
fn portmap_status_reports_invalid_configuration() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&network("portmap", &json!({})), 1);
        call.status().ok();
        assert_eq!(ruleset(&world), "", "STATUS changed the ruleset");
        let bad = call.config(&network("portmap", &json!({"conditionsV4": ["--ttl", "5"]})));
        bad.status().fails_with(7, "--ttl");
        call.with_prev_result(&some_result())
            .config(&with(portmap(&[port(1, 1, "tcp")]), &json!({"prevResult": some_result()})))
            .add()
            .ok();
        call.status().ok();
    });
}
