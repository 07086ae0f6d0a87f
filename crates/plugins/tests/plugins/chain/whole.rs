// SPDX-License-Identifier: Apache-2.0
//! The plugin `podwire` does what its list does, and either cleans up after the other.

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, full, left, told};
use crate::conf::{network, with, without};
use crate::process::started;
use crate::world::{Plugins, World};

fn whole(plugins: &[Value]) -> Value {
    let inner: Vec<Value> =
        plugins.iter().map(|plugin| without(plugin.clone(), &["name", "cniVersion"])).collect();
    let capabilities = json!({"portMappings": true, "bandwidth": true});
    network("podwire", &json!({"capabilities": capabilities, "plugins": inner}))
}

/// Their names, in the result's order.
fn interfaces(result: &Value) -> Vec<&Value> {
    result["interfaces"].as_array().into_iter().flatten().map(|one| &one["name"]).collect()
}

#[test]
fn it_does_what_the_list_does() {
    in_netns(|| {
        let ours = Plugins::ours();
        let list = full(&json!({}));
        let by_list = World::new(&ours, 1);
        let chain = Chain::new(&by_list, &ours, list.clone());
        let from_list = chain.add(1);
        let (made_by_list, disk) = (left(&by_list), by_list.disk());
        chain.del(1, &from_list);
        drop(by_list);
        let by_one = World::new(&ours, 1);
        let one = Chain::new(&by_one, &ours, vec![whole(&list)]);
        let from_one = one.add(1);
        assert_eq!(left(&by_one), made_by_list);
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
fn either_checks_and_removes_what_the_other_made() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let list = Chain::new(&world, &ours, full(&json!({})));
        let one = Chain::new(&world, &ours, vec![whole(&list.configs)]);
        let results = [list.add(1), one.add(2)];
        one.check(1, &results[0]);
        list.check(2, &results[1]);
        one.del(1, &results[0]);
        list.del(2, &results[1]);
        one.gc(&[]);
        assert_eq!(left(&world), Vec::<String>::new());
    });
}

/// There too the limits are set before the pair is up.
#[test]
fn a_list_without_a_bridge_is_limited_as_well() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let mut list = full(&json!({}));
        list[0] = without(with(list[0].clone(), &json!({"type": "ptp"})), &["bridge"]);
        let one = Chain::new(&world, &ours, vec![whole(&list)]);
        let result = one.add(1);
        assert!(interfaces(&result).iter().any(|name| name.as_str().unwrap().starts_with("bwp")));
        one.check(1, &result);
        one.del(1, &result);
        one.gc(&[]);
        assert_eq!(left(&world), Vec::<String>::new());
    });
}

#[test]
fn what_was_done_before_a_failure_is_taken_back() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 2);
        let one = Chain::new(&world, &ours, vec![whole(&full(&json!({})))]);
        let first = one.add(1);
        let before = left(&world);
        let mut config = with(one.configs[0].clone(), &json!({"runtimeConfig": told(1)}));
        let second = world.call(&config, 2);
        second.add().fails_with(11, "c1/eth0");
        config["runtimeConfig"] = told(2);
        config["plugins"][3]["ingressPolicy"] = "none".into();
        world.call(&config, 2).add().fails_with(7, "ingressPolicy");
        assert_eq!(left(&world), before);
        one.check(1, &first);
    });
}

#[test]
fn one_process_does_it_all() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let one = Chain::new(&world, &ours, vec![whole(&full(&json!({})))]);
        assert_eq!(started(&one.calls(1)[0], "ADD"), 1);
    });
}

#[test]
fn what_it_cannot_do_is_refused() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let refused = |plugins: Value, code: u32, words: &str| {
            let config = network("podwire", &json!({"plugins": plugins}));
            world.call(&config, 1).add().fails_with(code, words);
        };
        refused(json!([]), 7, "\"plugins\"");
        refused(json!([{"type": "calico"}]), 7, "\"calico\"");
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
