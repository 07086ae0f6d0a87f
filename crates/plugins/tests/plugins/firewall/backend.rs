// SPDX-License-Identifier: Apache-2.0
//! The iptables backend compared with the Go plugin: both write the same rules, and each removes
//! the other's.

use serde_json::{Value, json};
use testkit::{in_netns, not_run_unless, require};

use super::{Chain, OUTSIDE, assert_reaches, firewall, outside};
use crate::call::Answer;
use crate::conf::{bridge, dual, ptp, with};
use crate::mixed_rules::rules_of_containers;
use crate::world::{Plugins, World};

/// All rules printed by iptables-save, without counters and times.
fn saved(world: &World) -> Vec<String> {
    let mut printed = String::new();
    for program in ["iptables-save", "ip6tables-save"] {
        printed += &world.host.exec(program, &[]);
    }
    let lines = printed.lines().filter(|line| line.starts_with("-A") || line.starts_with(":CNI"));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    // The order of chains does not matter.
    lines.sort();
    lines
}

fn prev() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "br0"}],
           "ips": [{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]})
}

#[test]
fn firewall_iptables_rules_match_go() {
    in_netns(|| {
        require!(Program("iptables"));
        let (go, ours) = (Plugins::go(), Plugins::ours());
        for policy in ["open", "same-bridge", "isolated"] {
            let keys = json!({"backend": "iptables", "ingressPolicy": policy});
            let config = firewall("net", &keys);
            let rules_by = |plugins: &Plugins| {
                let world = World::new(plugins, 1);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                let once = saved(&world);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                assert_eq!(saved(&world), once, "second ADD changed the rules");
                once
            };
            assert_eq!(rules_by(&ours), rules_by(&go), "{policy}");
            for (first, second) in [(&ours, &go), (&go, &ours)] {
                let world = World::new(first, 1);
                world.call(&config, 1).with_prev_result(&prev()).add().ok();
                world.call_of(second, &config, 1).check(&prev()).ok();
                world.call_of(second, &config, 1).del(&prev()).ok();
                assert!(!saved(&world).iter().any(|rule| rule.contains("10.1.0.2")), "{policy}");
                // The Go plugin does not remove podwire's owner records.
                world.call_of(&ours, &config, 1).gc(&[]).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new());
                let by_ours = world.call_of(&ours, &config, 1).check(&prev());
                by_ours.fails_with(999, "iptables has no rule");
            }
        }
    });
}

/// Switching a node to nf_tables while pods run.
#[test]
fn firewall_rules_of_go_are_checked_and_removed() {
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

/// iptables rules have no owner, so podwire records the owner in nf_tables.
#[test]
fn firewall_iptables_rules_are_removed_per_container() {
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
        assert_eq!(
            [has(2), has(3), has(4)],
            [[false; 2], [true; 2], [true; 2]],
            "DEL without result"
        );
        add(&config, 1, 2);
        world.call(&config, 1).gc(&[("c2", "eth0")]).ok();
        assert_eq!([has(2), has(3), has(4)], [[false; 2], [true; 2], [true; 2]], "GC");
        add(&config, 4, 3);
        world.call(&config, 2).del(&result(3)).ok();
        assert_eq!(has(3), [true; 2], "a late DEL removed the new owner's rules");
        world.call(&config, 4).check(&result(3)).ok();
        world.call(&config, 4).gc(&[]).ok();
        world.call(&other, 3).gc(&[]).ok();
        assert_eq!(rules_of_containers(&world), Vec::<String>::new());
    });
}

/// On a node switched back and forth, an address of a podwire container moves to a container of the
/// Go plugin.
#[test]
fn gc_of_reused_address_keeps_rules_of_go() {
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

/// iptables-legacy works without nf_tables; such a kernel cannot store owner records.
#[test]
fn firewall_iptables_without_nf_tables_works() {
    in_netns(|| {
        require!(Program("iptables"), Program("strace"));
        let world = super::ours(1);
        let config = firewall("net", &json!({"backend": "iptables"}));
        let call = world.call(&config, 1).with_prev_result(&prev());
        let refuse = "inject=sendto,sendmsg:error=EINVAL";
        let wrapper = ["strace", "-qq", "-o", "/dev/null", "-e", refuse];
        let child = call.start_under(&wrapper, "ADD", call.config.to_string().as_bytes());
        Answer::of(&child.wait_with_output().expect("wait for strace")).ok();
        call.run("CHECK").ok();
        assert_eq!(crate::rules::elements(&world.host), Vec::<String>::new());
        call.run("DEL").ok();
        assert_eq!(rules_of_containers(&world), Vec::<String>::new());
    });
}

#[test]
fn check_with_missing_isolation_chains_fails() {
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
fn masquerade_iptables_rules_match_go() {
    in_netns(|| {
        let (go, ours) = (Plugins::go(), Plugins::ours());
        let keys = json!({"ipMasq": true, "ipMasqBackend": "iptables", "ipam": dual()});
        for config in [bridge(&with(keys.clone(), &json!({"isGateway": true}))), ptp(&keys)] {
            let mut rules = Vec::new();
            for (first, second) in [(&ours, &go), (&go, &ours), (&ours, &ours)] {
                let world = World::new(first, 2);
                let result = world.call(&config, 1).add().result();
                rules.push(saved(&world));
                world.call_of(second, &config, 1).check(&result).ok();
                world.call_of(second, &config, 1).del(&result).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new());
                world.call_of(&ours, &config, 2).add().ok();
                world.call_of(&ours, &config, 2).gc(&[("c2", "eth0")]).ok();
                assert_ne!(rules_of_containers(&world), Vec::<String>::new());
                world.call_of(&ours, &config, 2).gc(&[]).ok();
                assert_eq!(rules_of_containers(&world), Vec::<String>::new());
            }
            assert_eq!(rules[0], rules[1]);
        }
    });
}

/// iptables-legacy installed as iptables.
#[test]
fn firewall_with_iptables_legacy_uses_its_program() {
    in_netns(|| {
        not_run_unless!(Program("iptables-legacy"));
        let world = super::ours(1);
        std::fs::create_dir_all("/run/bin").expect("create a directory in /run");
        for name in ["iptables", "ip6tables"] {
            for what in ["save", "restore"] {
                let program = world.host.exec("which", &[&format!("{name}-legacy-{what}")]);
                std::os::unix::fs::symlink(program.trim(), format!("/run/bin/{name}-{what}"))
                    .expect("create a symlink in /run");
            }
        }
        let path = format!("/run/bin:{}", std::env::var("PATH").unwrap_or_default());
        let _outside = outside(&world);
        world.host.exec("iptables-legacy", &["-P", "FORWARD", "DROP"]);
        world.host.exec("ip6tables-legacy", &["-P", "FORWARD", "DROP"]);
        let chain = Chain::new(&world, 1, &json!({"backend": "iptables"}));
        let result = world.call(&chain.bridge, 1).add().result();
        let call = chain.call(1).with_prev_result(&result).search(&path);
        assert_reaches(&world, 1, &OUTSIDE, &[false, false]);
        call.add().ok();
        assert_reaches(&world, 1, &OUTSIDE, &[true, true]);
        call.run("CHECK").ok();
        call.run("DEL").ok();
        assert_reaches(&world, 1, &OUTSIDE, &[false, false]);
        call.run("CHECK").fails_with(999, "iptables has no rule");
    });
}
