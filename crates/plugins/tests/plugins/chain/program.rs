// SPDX-License-Identifier: Apache-2.0
//! The full chain starts no other program, for any verb.

use serde_json::{Value, json};
use testkit::{in_netns, require};

use super::{Chain, full};
use crate::process::count_programs;
use crate::world::{Plugins, World};

#[test]
fn chain_of_any_verb_starts_no_program() {
    in_netns(|| {
        require!(Program("strace"));
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let chain = Chain::new(&world, &ours, full(&json!({})));
        let mut result = Value::Null;
        for call in chain.calls(1) {
            let call = call.with_prev_result(&result);
            assert_eq!(count_programs(&call, "ADD"), 1, "ADD of {}", call.config["type"]);
            call.del(&result).ok();
            result = call.add().result();
        }
        for verb in ["CHECK", "STATUS", "DEL"] {
            for call in chain.calls(1).iter().rev() {
                let call = call.with_prev_result(&result);
                assert_eq!(count_programs(&call, verb), 1, "{verb} of {}", call.config["type"]);
            }
        }
        for mut call in chain.calls(1) {
            call.config["cni.dev/valid-attachments"] = json!([]);
            assert_eq!(count_programs(&call, "GC"), 1, "GC of {}", call.config["type"]);
        }
    });
}
