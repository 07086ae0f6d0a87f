// SPDX-License-Identifier: Apache-2.0
//! Endless delegation between plugins fails, in one process and across processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use testkit::in_netns;

use crate::conf::{bridge, macvlan, network, ptp, tap, v4};
use crate::world::{Plugins, World};

#[test]
fn ipam_type_of_another_plugin_kind_is_rejected() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        world.on_host("link add m0 type bridge");
        let before = world.snapshot();
        let ipam = |kind: &str| json!({"ipam": {"type": kind}});
        let configs = [
            bridge(&ipam("bridge")),
            bridge(&ipam("tap")),
            ptp(&ipam("ptp")),
            tap(&ipam("flannel")),
            macvlan(&ipam("podwire")),
        ];
        for config in configs {
            let kind = config["ipam"]["type"].as_str().expect("a name");
            let words = format!("\"ipam.type\" is {kind:?}, which is not an IPAM plugin");
            for call in [world.call(&config, 1), world.call(&config, 1).always_exec()] {
                for verb in ["ADD", "CHECK", "STATUS", "DEL"] {
                    let call = call.with_prev_result(&json!({"cniVersion": "1.1.0"}));
                    let answer = call.run(verb);
                    assert!(answer.values.len() <= 1, "{verb}: {}", answer.stdout);
                    if verb == "ADD" {
                        answer.fails_with(7, &words);
                    }
                }
            }
        }
        let changes = before.changes_to(&world.snapshot());
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

#[test]
fn flannel_and_list_containing_themselves_fail() {
    in_netns(|| {
        fs::create_dir_all("/run/flannel").expect("create a directory in /run");
        let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\n";
        fs::write("/run/flannel/subnet.env", env).expect("write a file in /run");
        let world = World::new(&Plugins::ours(), 1);
        let data_dir = json!({"dataDir": "/run/data/flannel", "delegate": {"type": "flannel"}});
        let flannel = world.call(&network("flannel", &data_dir), 1);
        flannel.add().fails_with(7, "\"delegate.type\" is \"flannel\"");
        flannel.del(&Value::Null).ok();
        // A file that an earlier version may have left after a crash.
        fs::create_dir_all("/run/data/flannel").expect("create a directory in /run");
        fs::write("/run/data/flannel/c1", flannel.config.to_string())
            .expect("write a file in /run");
        flannel.del(&Value::Null).ok();
        let list = json!({"plugins": [{"type": "flannel", "dataDir": "/run/data/flannel"}]});
        let through = |kind: &str| {
            let delegate = json!({"dataDir": "/run/data/flannel", "delegate": {"type": kind,
                "plugins": list["plugins"]}});
            world.call(&network("flannel", &delegate), 1)
        };
        let saved_conf = network("podwire", &list);
        fs::write("/run/data/flannel/c1", saved_conf.to_string()).expect("write a file in /run");
        through("podwire").del(&Value::Null).fails_with(7, "more than 8 times");
        let in_list = network("podwire", &json!({"plugins": [{"type": "podwire"}]}));
        world.call(&in_list, 1).add().fails_with(7, "\"plugins[0].type\" is \"podwire\"");
    });
}

/// A third-party IPAM plugin that calls its caller again.
#[test]
fn delegation_loop_across_processes_fails() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let scripts = Path::new("/run/scripts");
        fs::create_dir_all(scripts).expect("create a directory in /run");
        let text = format!("#!/bin/sh\nexec {}/ptp\n", ours.directory().display());
        fs::write(scripts.join("again"), text).expect("write a file in /run");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(scripts.join("again"), mode).expect("make the script executable");
        let before = world.snapshot();
        let config = ptp(&json!({"ipam": {"type": "again"}}));
        let call = world.call(&config, 1).path(&[scripts, ours.directory()]);
        call.add().fails_with(7, "plugins delegate to each other more than 8 times");
        call.del(&Value::Null).fails_with(7, "plugins delegate to each other more than 8 times");
        let changes = before.changes_to(&world.snapshot());
        assert!(changes.is_empty(), "{changes:#?}");
        // Delegation to a real IPAM plugin still works.
        call.config(&ptp(&json!({"ipam": v4()}))).always_exec().add().ok();
    });
}
