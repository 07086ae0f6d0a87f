// SPDX-License-Identifier: Apache-2.0
//! VLANs of bridge: reachability, CHECK, and kernels without VLAN filtering.

use std::path::Path;

use serde_json::{Value, json};
use testkit::{answers, can_ping, in_netns, not_run_unless};

use crate::conf::{bridge, ranges, with};
use crate::world::{Plugins, World, vlan_filtering_file};

fn access(vlan: u16) -> Value {
    bridge(&json!({"vlan": vlan}))
}

fn host_veth(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().expect("a host veth").to_owned()
}

/// Runs `bridge` on the host; `line` is split at spaces.
pub fn run_bridge(world: &World, line: &str) -> String {
    world.host.exec("bridge", &line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn vm_containers_reach_only_their_vlan() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 4);
        // A port without VLAN keys is in the default VLAN, like all ports of a bridge without
        // filtering.
        let configs = [access(100), access(100), access(200), bridge(&json!({}))];
        for (at, config) in configs.iter().enumerate() {
            world.call(config, at + 1).add().ok();
        }
        let address = |pod: usize| format!("10.1.0.{}", pod + 1).parse().expect("an address");
        assert!(answers(world.pod(1), address(2)));
        for (from, to) in [(1, 3), (1, 4), (3, 1), (4, 1), (4, 3)] {
            assert!(!can_ping(world.pod(from), address(to)), "from {from} to {to}");
        }
    });
}

#[test]
fn vm_trunk_port_forwards_tagged_frames() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 2);
        let trunk = bridge(&json!({"vlanTrunk": [{"minID": 90, "maxID": 110}], "ipam": {}}));
        world.call(&trunk, 1).add().ok();
        world.call(&access(100), 2).add().ok();
        for line in [
            "link add link eth0 name eth0.100 type vlan id 100",
            "addr add 10.1.0.100/24 dev eth0.100",
            "link set eth0.100 up",
        ] {
            world.in_pod(1, line);
        }
        assert!(answers(world.pod(1), "10.1.0.2".parse().expect("an address")));
    });
}

/// Containers attached before the bridge starts to filter are not affected.
#[test]
fn vm_enabling_vlan_filtering_keeps_old_containers() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 3);
        let plain = bridge(&json!({"isGateway": true}));
        let old = world.call(&plain, 1).add().result();
        world.call(&plain, 2).add().ok();
        world.call(&access(100), 3).add().ok();
        assert_eq!(world.host_link("br0")["linkinfo"]["info_data"]["vlan_filtering"], 1);
        for address in ["10.1.0.3", "10.1.0.1"] {
            assert!(answers(world.pod(1), address.parse().expect("an address")), "{address}");
        }
        assert!(!can_ping(world.pod(1), [10, 1, 0, 4].into()));
        world.call(&plain, 1).check(&old).ok();
    });
}

#[test]
fn vm_check_with_missing_vlans_fails() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let config = bridge(&json!({"vlan": 100, "vlanTrunk": [{"minID": 10, "maxID": 20}]}));
        let damage = [
            ("vlan del dev @ vid 100", "is not in VLAN 100, untagged"),
            ("vlan del dev @ vid 15", "is not in VLAN 10 to 20, tagged"),
            ("vlan add dev @ vid 15 untagged", "is not in VLAN 10 to 20, tagged"),
            ("vlan add dev @ vid 7 pvid untagged", "is not in VLAN 100, untagged"),
        ];
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&config, 1);
        for (line, words) in damage {
            let result = call.add().result();
            call.check(&result).ok();
            run_bridge(
                &world,
                "vlan add dev @ vid 2000".replace('@', &host_veth(&result)).as_str(),
            );
            call.check(&result).ok();
            run_bridge(&world, &line.replace('@', &host_veth(&result)));
            call.check(&result).fails_with(999, words);
            call.del(&result).ok();
        }
        let result = call.add().result();
        world.on_host("link set br0 type bridge vlan_filtering 0");
        call.check(&result).fails_with(999, "br0 does not filter VLANs");
        call.del(&result).ok();
    });
}

#[test]
fn vm_failed_add_with_vlan_leaves_nothing() {
    in_netns(|| {
        not_run_unless!(File(vlan_filtering_file()));
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot().without_bookkeeping();
        let gateway = json!({"vlan": 100, "isGateway": true});
        let two = ranges(&json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]));
        let clash = bridge(&with(gateway.clone(), &json!({"ipam": two})));
        world.call(&clash, 1).add().fails_with(7, "different from 10.2.0.1/24");
        let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
        let lost = with(bridge(&gateway)["ipam"].clone(), &route);
        let lost = bridge(&with(gateway, &json!({"ipam": lost})));
        world.call(&lost, 1).add().fails_with(999, "unreachable");
        let after = world.snapshot().without_bookkeeping();
        assert_eq!(before.changes_to(&after), Vec::<String>::new());
    });
}

/// On any kernel, STATUS agrees with ADD, and a failed ADD changes nothing.
#[test]
fn status_with_vlan_agrees_with_add() {
    in_netns(|| {
        let can_filter = Path::new(vlan_filtering_file()).exists();
        let world = World::new(&Plugins::ours(), 1);
        for bridge_exists in [false, true] {
            if bridge_exists {
                world.on_host("link add br0 type bridge");
            }
            let before = world.snapshot().without_bookkeeping();
            for keys in [json!({"vlan": 100}), json!({"vlanTrunk": [{"id": 7}]})] {
                let call = world.call(&bridge(&keys), 1);
                if can_filter {
                    call.status().ok();
                    continue;
                }
                call.status().fails_with(50, "cannot filter VLANs");
                call.add().fails_with(999, "cannot filter VLANs");
            }
            let after = world.snapshot().without_bookkeeping();
            assert_eq!(before.changes_to(&after), Vec::<String>::new());
        }
    });
}
