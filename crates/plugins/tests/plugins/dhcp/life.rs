// SPDX-License-Identifier: Apache-2.0
//! The life of a lease with dnsmasq.

use serde_json::json;
use testkit::in_netns;

use super::lab::{Lab, can_reach, dnsmasq_leases, kept};

const RANGE: &str = "--dhcp-range=10.5.0.100,10.5.0.120,255.255.255.0,1h";

#[test]
fn a_lease_is_taken_and_given_back() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[
            RANGE,
            "--dhcp-option=option:router,10.5.0.1",
            "--dhcp-option=option:dns-server,10.5.0.53,10.5.0.54",
            "--dhcp-option=option:domain-name,example.net",
            "--dhcp-option=option:domain-search,a.example.net,b.example.net",
        ]);
        let _daemon = lab.daemon(&[]);
        let call = lab.call(&json!({}), 1);
        call.status().ok();
        let result = call.add().result();
        let address = result["ips"][0]["address"].as_str().expect("an address").to_owned();
        assert!(address.starts_with("10.5.0.1"), "{address}");
        assert_eq!(result["ips"][0]["gateway"], "10.5.0.1");
        assert_eq!(result["routes"], json!([{"dst": "0.0.0.0/0", "gw": "10.5.0.1"}]));
        assert_eq!(
            result["dns"],
            json!({"nameservers": ["10.5.0.53", "10.5.0.54"], "domain": "example.net",
                   "search": ["a.example.net", "b.example.net"]})
        );
        assert_eq!(lab.addresses(1), [address.as_str()]);
        assert!(can_reach(lab.world.pod(1), "10.5.0.1"));
        let lease = dnsmasq_leases().join("\n");
        // The Go plugin's client identifier: 0, then "c1/net/eth0".
        assert!(lease.ends_with("00:63:31:2f:6e:65:74:2f:65:74:68:30"), "{lease}");
        assert_eq!(kept(), ["c1:eth0.json"]);
        call.check(&result).ok();
        call.add().fails_with(999, "already exists");
        assert_eq!(lab.addresses(1), [address.as_str()]);
        call.del(&result).ok();
        assert_eq!(dnsmasq_leases(), Vec::<String>::new());
        assert_eq!(kept(), Vec::<String>::new());
        call.del(&result).ok();
    });
}
