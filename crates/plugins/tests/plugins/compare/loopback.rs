// SPDX-License-Identifier: Apache-2.0
//! Configurations of loopback.

use serde_json::json;

use super::case::Case;
use super::case::Step::{Add, Check, Del, File, Pod};
use crate::conf::network;

pub fn cases() -> Vec<Case> {
    let lo = || network("loopback", &json!({}));
    let before = json!({"cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01"}],
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.0.0.1"]}});
    let chained = network("loopback", &json!({"cniVersion": "1.0.0", "prevResult": before}));
    let mut cases: Vec<Case> = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
        .iter()
        .map(|version| Case::new(format!("up in {version}"), lo()).version(version).ifname("lo"))
        .collect();
    cases.extend([
        Case::new("another interface name", lo()).ifname("eth0"),
        Case::new("chained", chained).ifname("lo").steps(&[Add(1), Del(1), Del(1)]),
        Case::new("address that is not a loopback address", lo())
            .before(&[Pod("addr add 10.1.0.1/8 dev lo")])
            .steps(&[Add(1)])
            .fails(999, "10.1.0.1"),
        Case::new("CHECK of an interface that is down", lo())
            .steps(&[Add(1), Pod("link set lo down"), Check(1), Del(1)])
            .failing(&[(2, 999)]),
        Case::new("namespace is missing", lo()).netns("/run/netns/nowhere").fails(3, "nowhere"),
        Case::new("namespace is a file", lo())
            .before(&[File("/run/plain", "")])
            .netns("/run/plain")
            .steps(&[Add(1)])
            .fails(999, "/run/plain"),
    ]);
    cases
}
