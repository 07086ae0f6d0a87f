// SPDX-License-Identifier: Apache-2.0
//! Leases of a few seconds, with Kea: renewal, change of server, loss of the server, expiry.

use serde_json::{Value, json};
use testkit::{in_netns, wait_for};

use super::lab::{Lab, TIMEOUT, kea_journal};

const POOL: &str = "10.5.0.100-10.5.0.120";
const POOL6: &str = "fd05::100-fd05::1ff";

fn times(renew: u32, rebind: u32, valid: u32) -> Value {
    json!({"renew-timer": renew, "rebind-timer": rebind, "valid-lifetime": valid})
}

/// Returns true if the newest journal entry has a lifetime of 0 in this column, which means that
/// the lease was released.
fn is_released(family: &str, column: usize) -> bool {
    let last = kea_journal(family).pop().unwrap_or_default();
    last.split(',').nth(column) == Some("0")
}

#[test]
fn lease_is_renewed_and_expires_without_server() {
    in_netns(|| {
        let lab = Lab::new(1);
        let server = lab.kea("4", POOL, &times(1, 6, 8));
        let _daemon = lab.daemon(&[]);
        let call = lab.call(&json!({}), 1);
        let result = call.add().result();
        let address = result["ips"][0]["address"].as_str().expect("an address").to_owned();
        wait_for("two renewals", TIMEOUT, || kea_journal("4").len() >= 3);
        assert_eq!(lab.addresses(1), [address.as_str()]);
        drop(server);
        wait_for("the lease to expire", TIMEOUT, || lab.addresses(1).is_empty());
        call.check(&result).fails_with(999, "no DHCP server gave \"eth0\" an address");
        let _server = lab.kea("4", POOL, &times(1000, 2000, 4000));
        wait_for("the address to be assigned again", TIMEOUT, || {
            lab.addresses(1) == [address.as_str()]
        });
        call.check(&result).ok();
        call.del(&result).ok();
        wait_for("the lease to be released", TIMEOUT, || is_released("4", 3));
    });
}

/// The server that granted the lease is gone; after the rebind time any server may renew the lease.
#[test]
fn lease_is_rebound_to_another_server() {
    in_netns(|| {
        let lab = Lab::new(1);
        let server = lab.kea("4", POOL, &times(1, 2, 30));
        let _daemon = lab.daemon(&[]);
        let result = lab.call(&json!({}), 1).add().result();
        drop(server);
        lab.lan.ip(&["addr", "del", "10.5.0.1/24", "dev", "eth0"]);
        lab.lan.ip(&["addr", "add", "10.5.0.2/24", "dev", "eth0"]);
        let before = kea_journal("4").len();
        let _server = lab.kea("4", POOL, &times(1, 2, 30));
        wait_for("the new server to extend the lease", TIMEOUT, || kea_journal("4").len() > before);
        assert_eq!(lab.addresses(1), [result["ips"][0]["address"].as_str().expect("an address")]);
        let (renewed, more) = (kea_journal("4").len(), 2);
        wait_for("two renewals by the new server", TIMEOUT, || {
            kea_journal("4").len() >= renewed + more
        });
    });
}

#[test]
fn ipv6_lease_is_renewed_and_del_releases_it() {
    in_netns(|| {
        let lab = Lab::new(1);
        let dns = json!({"option-data": [{"name": "dns-servers", "data": "fd05::53"}]});
        let _server = lab.kea("6", POOL6, &crate::conf::with(times(1, 3, 30), &dns));
        let daemon = lab.daemon(&[]);
        let call = lab.call(&json!({"families": ["ipv6"]}), 1);
        let result = call.add().result();
        let address = result["ips"][0]["address"].as_str().expect("an address").to_owned();
        assert!(address.starts_with("fd05::1") && address.ends_with("/128"), "{address}");
        assert_eq!(result["dns"]["nameservers"], json!(["fd05::53"]));
        assert_eq!(lab.addresses(1), [address.as_str()]);
        wait_for("two renewals", TIMEOUT, || kea_journal("6").len() >= 3);
        drop(daemon);
        let before = kea_journal("6").len();
        let _daemon = lab.daemon(&[]);
        wait_for("renewals by the next daemon", TIMEOUT, || kea_journal("6").len() > before);
        call.check(&result).ok();
        call.del(&result).ok();
        wait_for("the lease to be released", TIMEOUT, || is_released("6", 2));
    });
}

#[test]
fn ipv6_lease_without_server_expires() {
    in_netns(|| {
        let lab = Lab::new(1);
        let more = json!({"preferred-lifetime": 8});
        let server = lab.kea("6", POOL6, &crate::conf::with(times(1, 6, 8), &more));
        let _daemon = lab.daemon(&[]);
        lab.call(&json!({"families": ["ipv6"]}), 1).add().ok();
        drop(server);
        wait_for("the lease to expire", TIMEOUT, || lab.addresses(1).is_empty());
        let _server = lab.kea("6", POOL6, &times(1000, 2000, 4000));
        wait_for("a new address on eth0", TIMEOUT, || lab.addresses(1).len() == 1);
    });
}
