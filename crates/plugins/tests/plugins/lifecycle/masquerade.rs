// SPDX-License-Identifier: Apache-2.0
//! `ipMasq`: traffic of containers, and removal of the rules.

use serde_json::{Value, json};
use testkit::{Ns, answers, can_ping, in_netns, require};

use crate::conf::{bridge, dual, ptp, ranges, with};
use crate::rules::{can_be_reloaded, chains, elements, ruleset};
use crate::world::{Plugins, World};

/// Creates an outside machine with addresses of both families and no route to the containers: it
/// can answer only the host's address.
fn outside(world: &World) -> Ns {
    let outside = Ns::new("outside");
    world.host.connect("up0", &outside, "eth0");
    for (ns, device, end) in [(&world.host, "up0", 1), (&outside, "eth0", 2)] {
        for address in [
            format!("192.0.2.{end}/24"),
            format!("198.51.100.{end}/24"),
            format!("2001:db8::{end}/64"),
        ] {
            ns.ip(&["addr", "add", &address, "dev", device, "nodad"]
                [..if address.contains(':') { 6 } else { 5 }]);
        }
        ns.ip(&["link", "set", device, "up"]);
    }
    outside
}

fn reaches(world: &World, pod: usize, address: &str) -> bool {
    answers(world.pod(pod), address.parse().expect("an address"))
}

fn is_unreachable(world: &World, pod: usize, address: &str) -> bool {
    !can_ping(world.pod(pod), address.parse().expect("an address"))
}

fn networks(more: &Value) -> [Value; 2] {
    let routes = json!({"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    let ptp_conf = ptp(&json!({"ipam": with(dual(), &routes), "ipMasq": true}));
    let bridge_conf = bridge(&json!({"ipam": dual(), "isDefaultGateway": true, "ipMasq": true}));
    [with(bridge_conf, more), with(ptp_conf, more)]
}

#[test]
fn masqueraded_containers_reach_outside() {
    in_netns(|| {
        let plugins = Plugins::ours();
        for config in networks(&json!({})) {
            let world = World::new(&plugins, 1);
            let _outside = outside(&world);
            let plain = with(config.clone(), &json!({"ipMasq": false}));
            let result = world.call(&plain, 1).add().result();
            assert!(is_unreachable(&world, 1, "192.0.2.2"), "reachable without masquerading");
            world.call(&plain, 1).del(&result).ok();
            let result = world.call(&config, 1).add().result();
            assert!(reaches(&world, 1, "192.0.2.2"), "{config}");
            assert!(reaches(&world, 1, "2001:db8::2"), "{config}");
            assert!(can_be_reloaded(&world.host), "{}", ruleset(&world.host));
            world.call(&config, 1).check(&result).ok();
            world.call(&config, 1).del(&result).ok();
            assert_eq!(elements(&world.host), Vec::<String>::new());
        }
    });
}

#[test]
fn masquerade_options_exclude_networks_and_families() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let _outside = outside(&world);
        let options = json!({"ipMasqOptions":
            {"exclude": ["198.51.100.0/24"], "ipv6": false, "fullyRandom": true}});
        let [config, _] = networks(&options);
        let result = world.call(&config, 1).add().result();
        assert!(reaches(&world, 1, "192.0.2.2"));
        assert!(is_unreachable(&world, 1, "198.51.100.2"));
        assert!(is_unreachable(&world, 1, "2001:db8::2"));
        assert!(ruleset(&world.host).contains("masquerade fully-random"));
        world.call(&config, 1).check(&result).ok();
    });
}

#[test]
fn del_and_gc_with_missing_state_remove_elements() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 3);
        let [config, _] = networks(&json!({}));
        let elsewhere = ranges(&json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]));
        let more = json!({"name": "two", "bridge": "br1", "ipam": elsewhere});
        let other = with(config.clone(), &more);
        let add = |config: &Value, pod| world.call(config, pod).add().result();
        let _ = (add(&config, 1), add(&config, 2), add(&other, 3));
        // Each attachment has one element of its own and two for each address.
        assert_eq!(elements(&world.host).len(), 15);
        world.call(&config, 1).netns("").del(&Value::Null).ok();
        assert_eq!(elements(&world.host).len(), 10);
        world.call(&config, 1).netns("/run/netns/gone").del(&Value::Null).ok();
        world.call(&config, 2).gc(&[("c2", "eth0")]).ok();
        assert_eq!(elements(&world.host).len(), 10);
        assert_eq!(chains(&world.host, "masq-").len(), 4);
        world.call(&config, 2).gc(&[]).ok();
        assert_eq!(elements(&world.host).len(), 5);
        assert_eq!(chains(&world.host, "masq-").len(), 2);
        world.call(&other, 3).gc(&[("c3", "eth0")]).ok();
        assert_eq!(elements(&world.host).len(), 5);
    });
}

#[test]
fn check_with_missing_masquerade_rules_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let [config, _] = networks(&json!({}));
        let result = world.call(&config, 1).add().result();
        let check = || world.call(&config, 1).check(&result);
        let nft = |line: &str| world.host.exec("nft", &[line]);
        check().ok();
        nft("delete element inet podwire masq4 { 10.1.0.2 }");
        check().fails_with(999, "masq4");
        world.call(&config, 1).del(&result).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
        for number in 0..2 {
            let result = world.call(&config, 1).add().result();
            world.call(&config, 1).check(&result).ok();
            let chain = &chains(&world.host, "masq-")[number];
            nft(&format!("flush chain inet podwire {chain}"));
            world.call(&config, 1).check(&result).fails_with(999, chain);
            nft("delete table inet podwire");
            world.call(&config, 1).del(&result).ok();
        }
        let result = world.call(&config, 1).add().result();
        nft("flush chain inet podwire masq_networks");
        world.call(&config, 1).check(&result).fails_with(999, "0 rules of chain \"masq_networks\"");
        nft("flush chain inet podwire masq_postrouting");
        world.call(&config, 1).check(&result).fails_with(999, "masquerade");
        nft("delete table inet podwire");
        world.call(&config, 1).check(&result).fails_with(999, "masquerade");
        world.call(&config, 1).del(&result).ok();
    });
}

/// The rules are shared by all containers of the host. GC, which runtimes call regularly, restores
/// them.
#[test]
fn gc_restores_flushed_rules() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let [config, _] = networks(&json!({}));
        let call = world.call(&config, 1);
        call.gc(&[("c1", "eth0")]).ok();
        assert_eq!(ruleset(&world.host), "", "GC created unused rules");
        let result = call.add().result();
        let before = ruleset(&world.host);
        let nft = |line: &str| world.host.exec("nft", &[line]);
        nft("flush chain inet podwire masq_postrouting");
        call.check(&result).fails_with(999, "masq_postrouting");
        call.gc(&[("c1", "eth0")]).ok();
        call.check(&result).ok();
        assert_eq!(ruleset(&world.host), before);
        nft("add rule inet podwire masq_postrouting counter");
        let more = ruleset(&world.host);
        call.gc(&[("c1", "eth0")]).ok();
        assert_eq!(ruleset(&world.host), more, "GC changed intact rules");
    });
}

/// A new container gets the address while the element of the old container still exists.
#[test]
fn address_reused_belongs_to_new_container() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let fixed = json!({"type": "static", "addresses": [{"address": "10.1.0.9/24"}]});
        let config = with(networks(&json!({}))[0].clone(), &json!({"ipam": fixed}));
        world.call(&config, 1).add().ok();
        let result = world.call(&config, 2).add().result();
        world.call(&config, 2).check(&result).ok();
        world.call(&config, 1).netns("").del(&Value::Null).ok();
        world.call(&config, 2).check(&result).ok();
        world.call(&config, 2).del(&result).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}

/// A second network assigns the address of a dead container whose element still exists.
#[test]
fn address_reused_by_other_network_uses_its_options() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 2);
        let _outside = outside(&world);
        let fixed = json!({"type": "static", "addresses": [{"address": "10.1.0.9/24"}]});
        let old = with(networks(&json!({}))[0].clone(), &json!({"ipam": fixed, "name": "old"}));
        let exclude = json!({"exclude": ["198.51.100.0/24"]});
        let new = with(old.clone(), &json!({"name": "new", "ipMasqOptions": exclude}));
        world.call(&old, 1).add().ok();
        world.pod(1).ip(&["link", "del", "eth0"]);
        let result = world.call(&new, 2).add().result();
        assert!(reaches(&world, 2, "192.0.2.2"));
        assert!(is_unreachable(&world, 2, "198.51.100.2"), "{}", ruleset(&world.host));
        world.call(&old, 1).netns("").del(&Value::Null).ok();
        world.call(&new, 2).check(&result).ok();
        assert!(reaches(&world, 2, "192.0.2.2"));
        world.call(&old, 1).gc(&[]).ok();
        assert_eq!(chains(&world.host, "masq-").len(), 1);
        world.call(&new, 2).check(&result).ok();
        world.call(&new, 2).del(&result).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}

/// With iptables, all interfaces of a container on a network share a chain.
#[test]
fn failed_add_keeps_rules_of_other_interface() {
    in_netns(|| {
        require!(Program("iptables"));
        for config in networks(&json!({"ipMasqBackend": "iptables"})) {
            let world = World::new(&Plugins::ours(), 1);
            let result = world.call(&config, 1).add().result();
            let path = format!("/run/bin:{}", std::env::var("PATH").unwrap_or_default());
            let broken = world.call(&config, 1).ifname("eth1").search(&path);
            std::fs::create_dir_all("/run/bin").expect("create a directory in /run");
            let _ = std::os::unix::fs::symlink("/bin/false", "/run/bin/ip6tables-restore");
            let answer = broken.add();
            assert!(!answer.success && answer.stdout.contains("ip6tables-restore"), "{answer:?}");
            world.call(&config, 1).check(&result).ok();
            let left = world.host.exec("iptables-save", &["-t", "nat"]);
            assert!(left.contains("10.1.0.2") && !left.contains("10.1.0.3"), "{left}");
            world.call(&config, 1).del(&result).ok();
        }
    });
}
