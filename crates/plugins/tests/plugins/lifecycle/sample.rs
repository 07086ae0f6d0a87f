// SPDX-License-Identifier: Apache-2.0
//! `sample`. Debian's Go plugins do not include it, so there is no comparison.

use serde_json::json;
use testkit::in_netns;

use crate::conf::{network, with};
use crate::world::{Plugins, World};

#[test]
fn sample_add_returns_prev_result() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let before = world.snapshot();
        let config = network("sample", &json!({"anotherAwesomeArg": "x"}));
        let call = world.call(&config, 1);
        let result = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/24"}],
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/pod1", "strange": 7}],
            "dns": {"domain": "example.org"}});
        let passed_on = call.with_prev_result(&result).add().result();
        assert_eq!(passed_on["ips"], result["ips"]);
        assert_eq!(passed_on["interfaces"], result["interfaces"], "unknown keys are dropped");
        call.check(&result).ok();
        call.del(&result).ok();
        call.status().ok();
        call.gc(&[]).ok();

        call.add().fails_with(7, "chained");
        let without = call.config(&with(config, &json!({"anotherAwesomeArg": ""})));
        without.add().fails_with(7, "anotherAwesomeArg");
        let empty = call.with_prev_result(&json!({"cniVersion": "1.1.0", "ips": []}));
        empty.add().fails_with(999, "no container IPs");
        assert_eq!(before.changes_to(&world.snapshot()), Vec::<String>::new());
    });
}
