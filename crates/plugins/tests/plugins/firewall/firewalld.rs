// SPDX-License-Identifier: Apache-2.0
//! A real firewalld on a private bus.

use std::time::Duration;

use serde_json::json;
use testkit::{Daemon, in_netns, not_run_unless, wait_for};

use super::{Chain, OUTSIDE, address, assert_reaches, ours, outside};
use crate::world::{Plugins, World};

const BUS: &str = r#"<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <listen>unix:abstract=podwire%2dtest</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>"#;

fn start(world: &World) -> [Daemon; 2] {
    std::fs::create_dir_all("/run/dbus").expect("create a directory in /run");
    std::fs::write("/run/bus.conf", BUS).expect("write a file in /run");
    let bus = world.host.start("dbus-daemon", &["--nofork", "--config-file=/run/bus.conf"]);
    wait_for("dbus-daemon to create its socket", Duration::from_secs(60), || {
        std::path::Path::new("/run/dbus/system_bus_socket").exists()
    });
    let firewalld = world.host.start("firewalld", &["--nofork", "--nopid"]);
    wait_for("firewalld to run", Duration::from_secs(60), || {
        world.host.try_exec("firewall-cmd", &["--state"]).is_ok()
    });
    [bus, firewalld]
}

fn sources(world: &World, zone: &str) -> String {
    let zone = format!("--zone={zone}");
    world.host.exec("firewall-cmd", &[&zone, "--list-sources"]).trim().to_owned()
}

#[test]
fn firewalld_zone_sources_follow_containers() {
    in_netns(|| {
        not_run_unless!(Program("firewalld"), Program("dbus-daemon"));
        let world = ours(2);
        let _outside = outside(&world);
        let [bus, firewalld] = start(&world);
        for keys in [json!({}), json!({"backend": "firewalld", "firewalldZone": "internal"})] {
            let zone = keys["firewalldZone"].as_str().unwrap_or("trusted").to_owned();
            let chain = Chain::new(&world, 1, &keys);
            let (first, second) = (chain.add(1), chain.add(2));
            let shown = sources(&world, &zone);
            for at in [0, 1] {
                assert!(shown.contains(&address(&first, at)), "{shown}");
            }
            chain.call(1).with_prev_result(&first).add().ok();
            chain.call(1).check(&first).ok();
            chain.call(1).status().ok();
            if zone == "trusted" {
                assert_reaches(&world, 1, &OUTSIDE, &[true, true]);
            }
            let removed = format!("--remove-source={}", address(&first, 0) + "/32");
            world.host.exec("firewall-cmd", &[&format!("--zone={zone}"), &removed]);
            chain.call(1).check(&first).fails_with(999, "is not a source");
            // DEL without the result: podwire has recorded the addresses.
            chain.call(1).run("DEL").ok();
            assert!(!sources(&world, &zone).contains(&address(&first, 1)));
            chain.call(2).check(&second).ok();
            chain.call(2).gc(&[]).ok();
            assert_eq!(sources(&world, &zone), "");
            chain.del(1, &first);
            chain.del(2, &second);
        }
        check_switch_from_and_to_go(&world);
        check_bus_address(&world);
        check_ingress_policy(&world);
        drop((firewalld, bus));
        let chain = Chain::new(&world, 1, &json!({"backend": "firewalld"}));
        chain.call(1).run("DEL").ok();
        chain.call(1).status().fails_with(50, "firewalld");
    });
}

/// Each set of plugins removes the firewalld sources added by the other.
fn check_switch_from_and_to_go(world: &World) {
    let (go, ours) = (Plugins::go(), Plugins::ours());
    let chain = Chain::new(world, 1, &json!({}));
    let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.9/24"}]});
    for (first, second) in [(&go, &ours), (&ours, &go)] {
        let call = |plugins| world.call_of(plugins, &chain.firewall, 1).with_prev_result(&result);
        call(first).add().ok();
        assert_eq!(sources(world, "trusted"), "10.1.0.9/32");
        call(second).run("CHECK").ok();
        call(second).run("DEL").ok();
        assert_eq!(sources(world, "trusted"), "");
    }
}

/// Plugins use the bus address in DBUS_SYSTEM_BUS_ADDRESS, like the Go plugin.
fn check_bus_address(world: &World) {
    const VARIABLE: &str = "DBUS_SYSTEM_BUS_ADDRESS";
    let (usual, moved) = ("/run/dbus/system_bus_socket", "/run/dbus/the bus");
    let chain = Chain::new(world, 1, &json!({"backend": "firewalld"}));
    let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.9/24"}]});
    std::fs::rename(usual, moved).expect("rename the socket");
    let path = "unix:path=/run/dbus/the%20bus";
    let setting = format!("{VARIABLE}={path}");
    let list = [setting.as_str(), "firewall-cmd", "--zone=trusted", "--list-sources"];
    let sources = || world.host.exec("env", &list).trim().to_owned();
    for address in [path, "unix:path=/run/nowhere;unix:abstract=podwire-test"] {
        for plugins in [Plugins::ours(), Plugins::go()] {
            let call = world.call_of(&plugins, &chain.firewall, 1).with_prev_result(&result);
            let call = call.env(VARIABLE, address);
            call.add().ok();
            assert_eq!(sources(), "10.1.0.9/32");
            call.run("CHECK").ok();
            call.run("DEL").ok();
            assert_eq!(sources(), "");
        }
    }
    let call = chain.call(1);
    call.status().fails_with(50, "No such file or directory");
    call.env(VARIABLE, path).status().ok();
    call.env(VARIABLE, "tcp:host=localhost").status().fails_with(50, "tcp:host=localhost");
    std::fs::rename(moved, usual).expect("rename the socket");
    call.env(VARIABLE, "").status().ok();
}

/// podwire implements ingress policies itself, also with firewalld.
fn check_ingress_policy(world: &World) {
    let go = Plugins::go();
    let chain = Chain::new(world, 2, &json!({"ingressPolicy": "isolated"}));
    let result = chain.add(1);
    let check = || chain.call(1).check(&result);
    check().ok();
    let port = result["interfaces"][1]["name"].as_str().expect("a name");
    let isolate =
        |word| world.on_host(&format!("link set {port} type bridge_slave isolated {word}"));
    isolate("off");
    check().fails_with(999, "is not isolated");
    isolate("on");
    check().ok();
    world.host.exec("nft", &["flush set inet podwire firewall_ingress4"]);
    check().fails_with(999, "firewall_ingress4");
    chain.del(1, &result);
    let by_go = world.call_of(&go, &chain.firewall, 2);
    let result = world.call(&chain.bridge, 2).add().result();
    by_go.with_prev_result(&result).add().ok();
    chain.call(2).check(&result).ok();
    world.host.exec("iptables", &["-F", "CNI-ISOLATION-STAGE-1"]);
    chain.call(2).check(&result).fails_with(999, "firewall");
    chain.del(2, &result);
}
