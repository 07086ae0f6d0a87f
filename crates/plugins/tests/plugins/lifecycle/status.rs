// SPDX-License-Identifier: Apache-2.0
//! STATUS reports whether an ADD would succeed, and why not.

use std::time::Duration;

use serde_json::json;
use testkit::{Daemon, in_netns, require, run, wait_for};

use crate::conf::{bridge, host_device, host_local, network, ptp, ranges, with};
use crate::world::{Plugins, World};

#[test]
fn status_of_valid_networks_changes_nothing() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 0);
        let before = world.snapshot();
        for config in [
            bridge(&json!({})),
            ptp(&json!({})),
            host_local(&json!({})),
            network("loopback", &json!({})),
            network("static", &json!({"ipam": {"type": "static"}})),
        ] {
            world.call(&config, 1).status().ok();
        }
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn status_with_exhausted_range_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let small = ranges(&json!([[{"subnet": "10.1.0.0/30"}]]));
        for config in [bridge(&json!({"ipam": small})), ptp(&json!({"ipam": small}))] {
            let call = world.call(&config, 1);
            call.status().ok();
            let result = call.add().result();
            call.status()
                .fails_with(50, "no IP addresses available in range set: 10.1.0.1-10.1.0.2");
            call.del(&result).ok();
            call.status().ok();
        }
    });
}

#[test]
fn status_with_unwritable_directory_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        std::fs::write("/run/file", "").unwrap();
        std::fs::create_dir_all("/run/fixed/net").unwrap();
        run("mount", &["-t", "tmpfs", "-o", "ro", "tmpfs", "/run/fixed/net"]);
        for (dir, words) in [
            ("/run/file", "write to directory /run/file/net"),
            ("/run/fixed", "write to directory /run/fixed/net"),
            ("/run/fixed/net/a/b", "write to directory /run/fixed/net"),
        ] {
            let call = world.call(&host_local(&json!({"dataDir": dir})), 1);
            call.status().fails_with(50, words);
            call.add().fails_with(5, "/run/");
        }
    });
}

#[test]
fn status_with_invalid_network_reports_cause() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add br0 type veth peer name br0p");
        world.call(&bridge(&json!({})), 1).status().fails_with(50, "\"br0\"");
        let fixed = json!({"type": "static", "addresses": [{"address": "10.3.0.5"}]});
        let fixed = bridge(&json!({"bridge": "br1", "ipam": fixed}));
        world.call(&fixed, 1).status().fails_with(7, "in CIDR notation, got: '10.3.0.5'");
        let elsewhere = bridge(&json!({"bridge": "br1"}));
        world.call(&elsewhere, 1).status().ok();
        let nowhere = with(elsewhere.clone(), &json!({"ipam": {"type": "nowhere"}}));
        world.call(&nowhere, 1).status().fails_with(7, "nowhere");
        let unread = host_local(&json!({"resolvConf": "/run/nowhere"}));
        world.call(&unread, 1).status().fails_with(50, "\"ipam.resolvConf\": read /run/nowhere");
        let loopback = host_device(&json!({"device": "lo"}));
        world.call(&loopback, 1).status().fails_with(7, "lo is the host's loopback");
        let old = with(elsewhere, &json!({"cniVersion": "1.0.0"}));
        world.call(&old, 1).status().fails_with(1, "does not allow STATUS");
        world.call(&old, 1).gc(&[]).fails_with(1, "does not allow GC");
    });
}

/// Creates a table owned by another program: the kernel rejects every change to the table.
fn own_table(world: &World, family: &str) -> Daemon {
    let line = format!("add table {family} podwire {{ flags owner; }}");
    let hold = format!(
        "mkfifo /run/{family}; nft -i </run/{family} >/dev/null & exec 3>/run/{family}; echo '{line}' >&3; wait"
    );
    let held = world.host.start("sh", &["-c", &hold]);
    wait_for("the owned table to exist", Duration::from_secs(30), || {
        world.host.exec("nft", &["list", "tables"]).contains(&format!("table {family} podwire"))
    });
    held
}

/// STATUS detects that the rules of a later ADD would be rejected.
#[test]
fn status_with_unwritable_table_fails() {
    in_netns(|| {
        require!(Program("nft"));
        let masq = json!({"ipMasq": true});
        let spoof = json!({"macspoofchk": true});
        let firewall = network("firewall", &json!({}));
        for (family, configs) in
            [("inet", vec![bridge(&masq), ptp(&masq), firewall]), ("bridge", vec![bridge(&spoof)])]
        {
            let world = World::new(&Plugins::ours(), 1);
            for config in &configs {
                world.call(config, 1).status().ok();
            }
            assert_eq!(crate::rules::ruleset(&world.host), "", "STATUS changed the ruleset");
            let _held = own_table(&world, family);
            for config in &configs {
                world.call(config, 1).status().fails_with(50, "nf_tables cannot");
            }
            world.call(&ptp(&json!({})), 1).status().ok();
        }
    });
}

#[test]
fn status_without_iptables_fails() {
    in_netns(|| {
        require!(Program("iptables"));
        let world = World::new(&Plugins::ours(), 1);
        let masq = json!({"ipMasq": true, "ipMasqBackend": "iptables"});
        let firewall = network("firewall", &json!({"backend": "iptables"}));
        let configs = [bridge(&masq), ptp(&masq), firewall];
        for config in &configs {
            world.call(config, 1).status().ok();
        }
        run("mount", &["-t", "tmpfs", "none", "/usr/sbin"]);
        for config in &configs {
            world
                .call(config, 1)
                .status()
                .fails_with(50, "program iptables-restore is not installed");
        }
    });
}
