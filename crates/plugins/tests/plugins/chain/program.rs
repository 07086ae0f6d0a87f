// SPDX-License-Identifier: Apache-2.0
//! No program is started by the full chain, whatever the verb.

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::{Chain, full};
use crate::process::started;
use crate::world::{Plugins, World};

#[test]
fn no_plugin_of_the_chain_starts_a_program() {
    in_netns(|| {
        require!(Program("strace"));
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let chain = Chain::new(&world, &ours, full(&json!({})));
        let mut result = Value::Null;
        for call in chain.calls(1) {
            let call = call.with_prev_result(&result);
            assert_eq!(started(&call, "ADD"), 1, "ADD of {}", call.config["type"]);
            call.del(&result).ok();
            result = call.add().result();
        }
        for verb in ["CHECK", "STATUS", "DEL"] {
            for call in chain.calls(1).iter().rev() {
                let call = call.with_prev_result(&result);
                assert_eq!(started(&call, verb), 1, "{verb} of {}", call.config["type"]);
            }
        }
        for mut call in chain.calls(1) {
            call.config["cni.dev/valid-attachments"] = json!([]);
            assert_eq!(started(&call, "GC"), 1, "GC of {}", call.config["type"]);
        }
    });
}
