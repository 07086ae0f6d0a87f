// SPDX-License-Identifier: Apache-2.0
//! The iptables backend compared with the Go plugin: both write the same rules, and each removes
//! the other's. With podwire's default backend: removal of rules of both Go backends.

use serde_json::{Value, json};
use testkit::{in_netns, not_run_unless, require};

use super::lab::{HOST4, HOST6, Lab, port, portmap, wait_for_seen_address};
use crate::conf::{with, without};
use crate::mixed_rules::rules_of_containers;
use crate::world::{Plugins, World};

/// All nat rules printed by iptables-save, without counters and times. The order of chains does not
/// matter, but the order of rules in a chain does.
fn saved(world: &World) -> Vec<String> {
    let mut all = Vec::new();
    for program in ["iptables-save", "ip6tables-save"] {
        let printed = world.host.exec(program, &["-t", "nat"]);
        let lines =
            printed.lines().filter(|line| line.starts_with("-A") || line.starts_with(":CNI"));
        let mut lines: Vec<String> = lines.map(|line| format!("{program} {line}")).collect();
        lines.sort_by_key(|line| line.split(' ').nth(2).map(str::to_owned));
        all.extend(lines);
    }
    all
}

fn prev() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0},
            {"address": "fd00:1::2/64", "interface": 0}]})
}

fn portmap_iptables(mappings: &[Value], more: &Value) -> Value {
    with(with(portmap(mappings), &json!({"backend": "iptables"})), more)
}

fn configs() -> Vec<Value> {
    let at = |ip: &str, host: u16| with(port(host, 80, "tcp"), &json!({"hostIP": ip}));
    let plain = [port(8080, 80, "tcp"), port(53, 53, "udp"), port(9, 9, "sctp")];
    let placed = [
        at(HOST4, 8080),
        at("192.0.2.2", 8080),
        at(HOST6, 8081),
        at("0.0.0.0", 8082),
        at("::", 8083),
    ];
    let many: Vec<Value> = (1..=17).map(|host| port(8000 + host, host, "tcp")).collect();
    let conditions = json!({"conditionsV4": ["!", "-s", "192.0.2.77", "-i", "eth+"],
        "conditionsV6": ["-m", "addrtype", "!", "--src-type", "LOCAL"]});
    vec![
        portmap_iptables(&plain, &json!({})),
        portmap_iptables(&placed, &json!({})),
        portmap_iptables(&[at(HOST4, 8080)], &json!({})),
        portmap_iptables(&many, &json!({"snat": false})),
        portmap_iptables(&plain, &json!({"masqAll": true, "markMasqBit": 31})),
        portmap_iptables(&plain, &json!({"externalSetMarkChain": "OTHER-MARK"})),
        portmap_iptables(&plain, &conditions),
    ]
}

/// Creates a host with the chain that one of the configurations uses.
fn world(plugins: &Plugins) -> World {
    let world = World::new(plugins, 1);
    for program in ["iptables", "ip6tables"] {
        world.host.exec(program, &["-t", "nat", "-N", "OTHER-MARK"]);
    }
    world
}

#[test]
fn portmap_iptables_rules_match_go() {
    in_netns(|| {
        require!(Program("iptables"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for config in configs() {
            let rules_by = |plugins: &Plugins| {
                let world = world(plugins);
                let call = world.call(&config, 1).with_prev_result(&prev());
                call.add().ok();
                let once = saved(&world);
                call.add().ok();
                assert_eq!(saved(&world), once, "second ADD changed the rules");
                once
            };
            assert_eq!(rules_by(&ours), rules_by(&go), "{config}");
        }
    });
}

#[test]
fn portmap_iptables_rules_are_removed_by_either() {
    in_netns(|| {
        require!(Program("iptables"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for config in configs() {
            for (first, second) in [(&ours, &go), (&go, &ours), (&ours, &ours)] {
                let world = world(first);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                assert_ne!(rules_of_containers(&world), Vec::<String>::new());
                world.call_of(second, &config, 1).check(&prev()).ok();
                world.call_of(second, &config, 1).del(&prev()).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new(), "{config}");
                let by_ours = world.call_of(&ours, &config, 1).check(&prev());
                by_ours.fails_with(999, "iptables has no rule");
                world.call_of(&ours, &config, 1).del(&prev()).ok();
            }
        }
    });
}

/// Switching a node to nf_tables while pods run.
#[test]
fn go_mappings_are_checked_and_removed() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let config = portmap(&[port(8080, 80, "tcp"), port(53, 53, "udp")]);
        let bare = ["runtimeConfig", "prevResult"];
        for backend in ["iptables", "nftables"] {
            for missing_keys in [&[][..], &bare[..1], &bare[1..], &bare[..]] {
                let lab = Lab::new(&ours);
                let by_go = with(config.clone(), &json!({"backend": backend}));
                let by_go = |pod| {
                    let result = &lab.results[pod - 1];
                    lab.world.call_of(&go, &by_go, pod).with_prev_result(result)
                };
                by_go(1).add().ok();
                by_go(2)
                    .config(&with(
                        by_go(2).config,
                        &json!({"runtimeConfig": {
                    "portMappings": [port(8082, 80, "tcp")]}}),
                    ))
                    .add()
                    .ok();
                let call = lab.call(&config, 1);
                call.run("CHECK").ok();
                call.config(&without(call.config.clone(), missing_keys)).netns("").run("DEL").ok();
                let left = rules_of_containers(&lab.world).join("\n");
                let is_about = |address: &str| left.contains(address);
                let hidden = ["10.1.0.2:", "fd00:1::2]", "8080"].map(is_about);
                assert_eq!(hidden, [false; 3], "{backend} {missing_keys:?}\n{left}");
                assert!(is_about("10.1.0.3:80") && is_about("[fd00:1::3]:80"), "{left}");
                call.run("CHECK").fails_with(999, "mapped ports");
                call.run("DEL").ok();
            }
        }
    });
}

/// Pods whose DEL was lost before or after the switch.
#[test]
fn gc_removes_unlisted_go_mappings() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&go, 2);
        let config = portmap(&[port(8080, 80, "tcp"), port(53, 53, "udp")]);
        let by_go = with(config.clone(), &json!({"backend": "iptables"}));
        let other = json!({"name": "other", "runtimeConfig": {
            "portMappings": [port(8081, 80, "tcp")]}});
        let other = with(by_go.clone(), &other);
        world.call(&by_go, 1).with_prev_result(&prev()).add().ok();
        world.call(&other, 2).with_prev_result(&prev()).add().ok();
        let gc = |valid| world.call_of(&ours, &config, 1).gc(valid).ok();
        gc(&[("c1", "eth0"), ("c3", "eth0")]);
        world.call(&by_go, 1).check(&prev()).ok();
        gc(&[("c3", "eth0")]);
        let left = rules_of_containers(&world).join("\n");
        assert!(!left.contains("8080") && left.contains("8081"), "{left}");
        world.call(&other, 2).check(&prev()).ok();
    });
}

/// The Go plugin's nft rules contain only the container's id. Mappings of another network must
/// stay.
#[test]
fn del_of_go_mappings_keeps_other_network() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&go, 1);
        let elsewhere = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.2.0.2/24"}]});
        let config = with(portmap(&[port(8080, 80, "tcp")]), &json!({"backend": "nftables"}));
        let other = json!({"name": "other", "runtimeConfig": {
            "portMappings": [port(8081, 80, "tcp")]}});
        let other = with(config.clone(), &other);
        world.call(&config, 1).with_prev_result(&prev()).add().ok();
        world.call(&other, 1).with_prev_result(&elsewhere).add().ok();
        world.call_of(&ours, &config, 1).del(&prev()).ok();
        world.call_of(&ours, &other, 1).check(&elsewhere).ok();
        let left = world.host.exec("nft", &["list", "ruleset"]);
        assert!(left.contains("10.2.0.2:80") && !left.contains("10.1.0.2"), "{left}");
        world.call_of(&ours, &other, 1).run("DEL").ok();
        let left = world.host.exec("nft", &["list", "ruleset"]);
        assert!(!left.contains("10.2.0.2"), "{left}");
    });
}

#[test]
fn portmap_iptables_check_of_damaged_rules_fails() {
    in_netns(|| {
        require!(Program("iptables"));
        let lab = Lab::new(&Plugins::ours());
        let call = lab.call(&portmap_iptables(&[port(8080, 80, "tcp")], &json!({})), 1);
        for line in [
            "iptables -t nat -F CNI-HOSTPORT-DNAT",
            "ip6tables -t nat -F CNI-HOSTPORT-SETMARK",
            "iptables -t nat -F POSTROUTING",
            "iptables -t nat -F OUTPUT",
            "iptables -t nat -D PREROUTING 1",
        ] {
            call.add().ok();
            call.run("CHECK").ok();
            let words: Vec<&str> = line.split(' ').collect();
            lab.world.host.exec(words[0], &words[1..]);
            call.run("CHECK").fails_with(999, "iptables has no rule");
            call.run("DEL").ok();
        }
    });
}

#[test]
fn portmap_iptables_gc_removes_unlisted_chains() {
    in_netns(|| {
        require!(Program("iptables"));
        let lab = Lab::new(&Plugins::ours());
        let config = |host| portmap_iptables(&[port(host, 80, "tcp")], &json!({}));
        lab.call(&config(8081), 1).add().ok();
        lab.call(&config(8082), 2).add().ok();
        let other = with(config(8083), &json!({"name": "two"}));
        lab.call(&other, 1).add().ok();
        lab.call(&config(8081), 1).gc(&[("c1", "eth0")]).ok();
        lab.call(&config(8081), 1).run("CHECK").ok();
        lab.call(&config(8082), 2).run("CHECK").fails_with(999, "iptables has no rule");
        lab.call(&config(8081), 1).gc(&[]).ok();
        lab.call(&config(8081), 1).run("CHECK").fails_with(999, "iptables has no rule");
        lab.call(&other, 1).run("CHECK").ok();
        lab.call(&other, 1).run("STATUS").ok();
    });
}

/// All interfaces of a container on a network share a chain.
#[test]
fn failed_add_keeps_ports_of_other_interface() {
    in_netns(|| {
        require!(Program("iptables"));
        let world = World::new(&Plugins::ours(), 1);
        let config = portmap_iptables(&[port(8080, 80, "tcp")], &json!({}));
        world.call(&config, 1).with_prev_result(&prev()).add().ok();
        let before = saved(&world);
        std::fs::create_dir_all("/run/bin").expect("create a directory in /run");
        std::os::unix::fs::symlink("/bin/false", "/run/bin/ip6tables-restore")
            .expect("create a symlink in /run");
        let path = format!("/run/bin:{}", std::env::var("PATH").unwrap_or_default());
        let second = json!({"cniVersion": "1.1.0",
            "interfaces": [{"name": "eth1", "sandbox": "/run/netns/pod1"}],
            "ips": [{"address": "10.1.0.3/24", "interface": 0},
                {"address": "fd00:1::3/64", "interface": 0}]});
        for host in [8080, 8081] {
            let config = portmap_iptables(&[port(host, 81, "tcp")], &json!({}));
            let call = world.call(&config, 1).ifname("eth1").with_prev_result(&second);
            let answer = call.search(&path).add();
            assert!(!answer.success && answer.stdout.contains("ip6tables-restore"), "{answer:?}");
            assert_eq!(saved(&world), before, "{host}");
        }
        world.call(&config, 1).check(&prev()).ok();
    });
}

#[test]
fn portmap_iptables_invalid_conditions_are_rejected() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let mappings = [port(8080, 80, "tcp")];
        for (more, words) in [
            (json!({"conditionsV4": ["ip", "saddr", "10.0.0.1"]}), "\"conditionsV4\": \"ip\""),
            (json!({"conditionsV6": ["-s", "::1\nCOMMIT"]}), "is not a valid word for iptables"),
            (json!({"conditionsV4": ["-s", ""]}), "is not a valid word for iptables"),
            (json!({"externalSetMarkChain": "a b"}), "\"externalSetMarkChain\" is \"a b\""),
        ] {
            let call = world.call(&portmap_iptables(&mappings, &more), 1).with_prev_result(&prev());
            call.add().fails_with(7, words);
            call.run("DEL").ok();
        }
        // An error that only ip6tables-restore detects.
        let nonsense = portmap_iptables(&mappings, &json!({"conditionsV6": ["--nonsense"]}));
        let answer = world.call(&nonsense, 1).with_prev_result(&prev()).add();
        assert!(!answer.success && answer.stdout.contains("ip6tables-restore"), "{answer:?}");
        assert_eq!(rules_of_containers(&world), Vec::<String>::new(), "failed ADD left rules");
    });
}

/// iptables-legacy installed as iptables.
#[test]
fn portmap_with_iptables_legacy_uses_its_program() {
    in_netns(|| {
        not_run_unless!(Program("iptables-legacy"));
        let lab = Lab::new(&Plugins::ours());
        std::fs::create_dir_all("/run/bin").expect("create a directory in /run");
        for name in ["iptables", "ip6tables"] {
            for what in ["save", "restore"] {
                let program = lab.world.host.exec("which", &[&format!("{name}-legacy-{what}")]);
                std::os::unix::fs::symlink(program.trim(), format!("/run/bin/{name}-{what}"))
                    .expect("create a symlink in /run");
            }
        }
        let path = format!("/run/bin:{}", std::env::var("PATH").unwrap_or_default());
        let config = portmap_iptables(&[port(8080, 80, "tcp")], &json!({}));
        let call = lab.call(&config, 1).search(&path);
        call.add().ok();
        call.run("CHECK").ok();
        assert_eq!(wait_for_seen_address(&lab.client, "TCP4:192.0.2.1:8080"), "192.0.2.9");
        call.run("DEL").ok();
        let left = lab.world.host.exec("iptables-legacy-save", &[]);
        assert!(!left.contains("CNI-DN-"), "{left}");
    });
}
