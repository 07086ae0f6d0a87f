// SPDX-License-Identifier: Apache-2.0
//! The backend iptables, next to the Go plugin: the same rules, removed by either.

use serde_json::{Value, json};
use testkit::{in_netns, not_run_unless, require};

use super::{Chain, OUTSIDE, firewall, outside, reaches};
use crate::call::Answer;
use crate::conf::{bridge, dual, ptp, with};
use crate::mixed_rules::rules_of_containers;
use crate::world::{Plugins, World};

/// All rules as iptables prints them, without counters and times.
fn saved(world: &World) -> Vec<String> {
    let mut told = String::new();
    for program in ["iptables-save", "ip6tables-save"] {
        told += &world.host.exec(program, &[]);
    }
    let lines = told.lines().filter(|line| line.starts_with("-A") || line.starts_with(":CNI"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    // The order of chains is of no consequence.
    lines.sort();
    lines
}

fn prev() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "br0"}],
           "ips": [{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]})
}

#[test]
fn firewall_writes_and_removes_what_gos_does() {
    in_netns(|| {
        require!(Program("iptables"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for policy in ["open", "same-bridge", "isolated"] {
            let keys = json!({"backend": "iptables", "ingressPolicy": policy});
            let config = firewall("net", &keys);
            let made = |plugins: &Plugins| {
                let world = World::new(plugins, 1);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                let once = saved(&world);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                assert_eq!(saved(&world), once, "a second time");
                once
            };
            assert_eq!(made(&ours), made(&go), "{policy}");
            for (first, second) in [(&ours, &go), (&go, &ours)] {
                let world = World::new(first, 1);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                world.call_of(second, &config, 1).check(&prev()).ok();
                world.call_of(second, &config, 1).del(&prev()).ok();
                assert!(!saved(&world).iter().any(|rule| rule.contains("10.1.0.2")), "{policy}");
                // The Go plugin knows nothing of what ours remembers.
                world.call_of(&ours, &config, 1).gc(&[]).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new());
                let by_ours = world.call_of(&ours, &config, 1).check(&prev());
                by_ours.fails_with(999, "iptables has no rule");
            }
        }
    });
}

/// A node that is switched over to nf_tables with pods running.
#[test]
fn firewall_rules_by_go_are_checked_and_removed() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let config = firewall("net", &json!({}));
        let world = World::new(&go, 1);
        world.call(&config, 1).with_prev_result(&prev()).add().ok();
        world.call_of(&ours, &config, 1).check(&prev()).ok();
        world.call_of(&ours, &config, 1).del(&prev()).ok();
        assert_eq!(rules_of_containers(&world), Vec::<String>::new());
        world.call_of(&ours, &config, 1).check(&prev()).fails_with(999, "");
    });
}

/// Rules of iptables name no owner: it is remembered in nf_tables.
#[test]
fn rules_go_with_their_container_only() {
    in_netns(|| {
        require!(Program("iptables"));
        let world = super::ours(4);
        let config = firewall("net", &json!({"backend": "iptables"}));
        let other = firewall("other", &json!({"backend": "iptables"}));
        let result = |last: usize| {
            json!({"cniVersion": "1.1.0", "ips": [
                {"address": format!("10.1.0.{last}/24")}, {"address": format!("fd00:1::{last}/64")}]})
        };
        let add = |config, pod, address| {
            world.call(config, pod).with_prev_result(&result(address)).add().ok();
        };
        let has = |address: usize| {
            let rules = rules_of_containers(&world).join("\n");
            [format!("-s 10.1.0.{address}/32"), format!("-s fd00:1::{address}/128")]
                .map(|words| rules.contains(&words))
        };
        add(&config, 1, 2);
        add(&config, 2, 3);
        add(&other, 3, 4);
        world.call(&config, 1).netns("").run("DEL").ok();
        assert_eq!([has(2), has(3), has(4)], [[false; 2], [true; 2], [true; 2]], "without result");
        add(&config, 1, 2);
        world.call(&config, 1).gc(&[("c2", "eth0")]).ok();
        assert_eq!([has(2), has(3), has(4)], [[false; 2], [true; 2], [true; 2]], "by GC");
        add(&config, 4, 3);
        world.call(&config, 2).del(&result(3)).ok();
        assert_eq!(has(3), [true; 2], "a late DEL leaves the new holder alone");
        world.call(&config, 4).check(&result(3)).ok();
        world.call(&config, 4).gc(&[]).ok();
        world.call(&other, 3).gc(&[]).ok();
        assert_eq!(rules_of_containers(&world), Vec::<String>::new());
    });
}

/// On a node that goes back and forth, an address of ours comes to a container of the Go plugin's.
#[test]
fn rules_of_the_go_plugin_are_not_taken_for_ours() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let world = World::new(&ours, 2);
        let config = firewall("net", &json!({"backend": "iptables"}));
        let call = |plugins, pod| world.call_of(plugins, &config, pod).with_prev_result(&prev());
        for is_by_gc in [true, false] {
            call(&ours, 1).add().ok();
            call(&go, 1).run("DEL").ok();
            call(&go, 2).add().ok();
            if is_by_gc {
                call(&ours, 2).gc(&[("c2", "eth0")]).ok();
                call(&go, 2).run("CHECK").ok();
            }
            call(&ours, 2).run("DEL").ok();
            assert!(!saved(&world).iter().any(|rule| rule.contains("10.1.0.2")));
        }
    });
}

/// The older iptables needs no nf_tables: a kernel without has no place to remember anything.
#[test]
fn iptables_is_served_without_nf_tables() {
    in_netns(|| {
        require!(Program("iptables"), Program("strace"));
        let world = super::ours(1);
        let config = firewall("net", &json!({"backend": "iptables"}));
        let call = world.call(&config, 1).with_prev_result(&prev());
        let refuse = "inject=sendto,sendmsg:error=EINVAL";
        let wrapper = ["strace", "-qq", "-o", "/dev/null", "-e", refuse];
        let child = call.start_under(&wrapper, "ADD", call.config.to_string().as_bytes());
        Answer::of(&child.wait_with_output().expect("strace can be waited for")).ok();
        call.run("CHECK").ok();
        assert_eq!(crate::rules::elements(&world.host), Vec::<String>::new());
        call.run("DEL").ok();
        assert_eq!(rules_of_containers(&world), Vec::<String>::new());
    });
}

#[test]
fn check_notices_that_bridges_are_not_kept_apart() {
    in_netns(|| {
        require!(Program("iptables"));
        let world = super::ours(1);
        for policy in ["same-bridge", "isolated"] {
            let config = firewall("net", &json!({"backend": "iptables", "ingressPolicy": policy}));
            let call = world.call(&config, 1).with_prev_result(&prev());
            for line in [
                "iptables -F CNI-ISOLATION-STAGE-1",
                "ip6tables -F CNI-ISOLATION-STAGE-2",
                "iptables -D FORWARD 1",
            ] {
                call.add().ok();
                call.run("CHECK").ok();
                let words: Vec<&str> = line.split(' ').collect();
                world.host.exec(words[0], &words[1..]);
                call.run("CHECK").fails_with(999, "CNI-ISOLATION-STAGE");
            }
        }
    });
}

#[test]
fn masquerading_writes_and_removes_what_gos_does() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let keys = json!({"ipMasq": true, "ipMasqBackend": "iptables", "ipam": dual()});
        for config in [bridge(&with(keys.clone(), &json!({"isGateway": true}))), ptp(&keys)] {
            let mut made = Vec::new();
            for (first, second) in [(&ours, &go), (&go, &ours), (&ours, &ours)] {
                let world = World::new(first, 2);
                let result = world.call(&config, 1).add().result();
                made.push(saved(&world));
                world.call_of(second, &config, 1).check(&result).ok();
                world.call_of(second, &config, 1).del(&result).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new());
                world.call_of(&ours, &config, 2).add().ok();
                world.call_of(&ours, &config, 2).gc(&[("c2", "eth0")]).ok();
                assert_ne!(rules_of_containers(&world), Vec::<String>::new());
                world.call_of(&ours, &config, 2).gc(&[]).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new());
            }
            assert_eq!(made[0], made[1]);
        }
    });
}

/// With the older program in place of the other one.
#[test]
fn iptables_legacy_is_served_by_its_program() {
    in_netns(|| {
        not_run_unless!(Program("iptables-legacy"));
        let world = super::ours(1);
        std::fs::create_dir_all("/run/bin").expect("a directory below /run");
        for name in ["iptables", "ip6tables"] {
            for what in ["save", "restore"] {
                let program = world.host.exec("which", &[&format!("{name}-legacy-{what}")]);
                std::os::unix::fs::symlink(program.trim(), format!("/run/bin/{name}-{what}"))
                    .expect("a link below /run");
            }
        }
        let path = format!("/run/bin:{}", std::env::var("PATH").unwrap_or_default());
        let _outside = outside(&world);
        world.host.exec("iptables-legacy", &["-P", "FORWARD", "DROP"]);
        world.host.exec("ip6tables-legacy", &["-P", "FORWARD", "DROP"]);
        let chain = Chain::new(&world, 1, &json!({"backend": "iptables"}));
        let result = world.call(&chain.bridge, 1).add().result();
        let call = chain.call(1).with_prev_result(&result).search(&path);
        reaches(&world, 1, &OUTSIDE, &[false, false]);
        call.add().ok();
        reaches(&world, 1, &OUTSIDE, &[true, true]);
        call.run("CHECK").ok();
        call.run("DEL").ok();
        reaches(&world, 1, &OUTSIDE, &[false, false]);
        call.run("CHECK").fails_with(999, "iptables has no rule");
    });
}
