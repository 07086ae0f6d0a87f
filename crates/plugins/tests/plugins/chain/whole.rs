// SPDX-License-Identifier: Apache-2.0
//! The plugin `podwire` has the same effect as the list of plugins in its configuration, and each
//! of the two forms cleans up pods of the other.

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, full, left, runtime_config};
use crate::conf::{network, with, without};
use crate::process::count_programs;
use crate::world::{Plugins, World};

fn podwire_plugin(plugins: &[Value]) -> Value {
    let inner: Vec<Value> =
        plugins.iter().map(|plugin| without(plugin.clone(), &["name", "cniVersion"])).collect();
    let capabilities = json!({"portMappings": true, "bandwidth": true});
    network("podwire", &json!({"capabilities": capabilities, "plugins": inner}))
}

/// Interface names in the order of the result.
fn interfaces(result: &Value) -> Vec<&Value> {
    result["interfaces"].as_array().into_iter().flatten().map(|one| &one["name"]).collect()
}

#[test]
fn podwire_plugin_add_equals_plugin_list() {
    in_netns(|| {
        let ours = Plugins::ours();
        let list = full(&json!({}));
        let by_list = World::new(&ours, 1);
        let chain = Chain::new(&by_list, &ours, list.clone());
        let from_list = chain.add(1);
        let (created_by_list, disk) = (left(&by_list), by_list.disk());
        chain.del(1, &from_list);
        drop(by_list);
        let by_one = World::new(&ours, 1);
        let one = Chain::new(&by_one, &ours, vec![podwire_plugin(&list)]);
        let from_one = one.add(1);
        assert_eq!(left(&by_one), created_by_list);
        assert_eq!(by_one.disk(), disk);
        let shape = |result: &Value| without(result.clone(), &["interfaces"]);
        assert_eq!(shape(&from_one), shape(&from_list));
        assert_eq!(interfaces(&from_one), interfaces(&from_list));
        one.check(1, &from_one);
        one.del(1, &from_one);
        one.gc(&[]);
        assert_eq!(left(&by_one), Vec::<String>::new());
    });
}

#[test]
fn podwire_plugin_and_list_remove_each_others_pods() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let list = Chain::new(&world, &ours, full(&json!({})));
        let one = Chain::new(&world, &ours, vec![podwire_plugin(&list.configs)]);
        let results = [list.add(1), one.add(2)];
        one.check(1, &results[0]);
        list.check(2, &results[1]);
        one.del(1, &results[0]);
        list.del(2, &results[1]);
        one.gc(&[]);
        assert_eq!(left(&world), Vec::<String>::new());
    });
}

/// With ptp too, podwire sets the limits before the veth pair is up.
#[test]
fn podwire_plugin_with_ptp_sets_bandwidth() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let mut list = full(&json!({}));
        list[0] = without(with(list[0].clone(), &json!({"type": "ptp"})), &["bridge"]);
        let one = Chain::new(&world, &ours, vec![podwire_plugin(&list)]);
        let result = one.add(1);
        assert!(interfaces(&result).iter().any(|name| name.as_str().unwrap().starts_with("bwp")));
        one.check(1, &result);
        one.del(1, &result);
        one.gc(&[]);
        assert_eq!(left(&world), Vec::<String>::new());
    });
}

#[test]
fn podwire_plugin_failed_add_is_rolled_back() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let one = Chain::new(&world, &ours, vec![podwire_plugin(&full(&json!({})))]);
        let first = one.add(1);
        let before = left(&world);
        let mut config = with(one.configs[0].clone(), &json!({"runtimeConfig": runtime_config(1)}));
        let second = world.call(&config, 2);
        second.add().fails_with(11, "c1/eth0");
        config["runtimeConfig"] = runtime_config(2);
        config["plugins"][3]["ingressPolicy"] = "none".into();
        world.call(&config, 2).add().fails_with(7, "ingressPolicy");
        assert_eq!(left(&world), before);
        one.check(1, &first);
    });
}

#[test]
fn podwire_plugin_add_runs_one_process() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let one = Chain::new(&world, &ours, vec![podwire_plugin(&full(&json!({})))]);
        assert_eq!(count_programs(&one.calls(1)[0], "ADD"), 1);
    });
}

#[test]
fn podwire_plugin_with_invalid_list_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let refused = |plugins: Value, code: u32, words: &str| {
            let config = network("podwire", &json!({"plugins": plugins}));
            world.call(&config, 1).add().fails_with(code, words);
        };
        refused(json!([]), 7, "\"plugins\"");
        refused(json!([{"type": "cilium-cni"}]), 7, "\"cilium-cni\"");
        refused(json!([{"type": "podwire"}]), 7, "\"podwire\"");
        refused(json!([{"mtu": 3}]), 7, "plugins[0]");
        refused(json!([{"type": "bridge", "mtu": "x"}]), 7, "mtu");
        let config = network("podwire", &json!({"plugins": [{"type": "firewall"}]}));
        world
            .call(&with(config, &json!({"cniVersion": "0.3.0"})), 1)
            .add()
            .fails_with(1, "firewall");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}
