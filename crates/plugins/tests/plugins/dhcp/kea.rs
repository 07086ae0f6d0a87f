// SPDX-License-Identifier: Apache-2.0
//! Leases that live for seconds, with Kea: renewing, another server, no server, expiry.

use serde_json::{Value, json};
use testkit::{in_netns, wait_for};

use super::lab::{Lab, PATIENCE, kea_journal};

const POOL: &str = "10.5.0.100-10.5.0.120";
const POOL6: &str = "fd05::100-fd05::1ff";

fn times(renew: u32, rebind: u32, valid: u32) -> Value {
    json!({"renew-timer": renew, "rebind-timer": rebind, "valid-lifetime": valid})
}

/// Whether the last word on a lease is a lifetime, in this column, of no seconds.
fn has_ended(family: &str, column: usize) -> bool {
    let last = kea_journal(family).pop().unwrap_or_default();
    last.split(',').nth(column) == Some("0")
}

#[test]
fn a_lease_is_renewed_and_ends_without_a_server() {
    in_netns(|| {
        let lab = Lab::new(1);
        let server = lab.kea("4", POOL, &times(1, 6, 8));
        let _daemon = lab.daemon(&[]);
        let call = lab.call(&json!({}), 1);
        let result = call.add().result();
        let address = result["ips"][0]["address"].as_str().expect("an address").to_owned();
        wait_for("two renewals", PATIENCE, || kea_journal("4").len() >= 3);
        assert_eq!(lab.addresses(1), [address.as_str()]);
        drop(server);
        wait_for("the lease to end", PATIENCE, || lab.addresses(1).is_empty());
        call.check(&result).fails_with(999, "no DHCP server gave \"eth0\" an address");
        let _server = lab.kea("4", POOL, &times(1000, 2000, 4000));
        wait_for("the address to return", PATIENCE, || lab.addresses(1) == [address.as_str()]);
        call.check(&result).ok();
        call.del(&result).ok();
        wait_for("it to be given back", PATIENCE, || has_ended("4", 3));
    });
}

/// The server that gave the lease has moved, so that it cannot be asked directly; any may renew it.
#[test]
fn another_server_takes_over() {
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
        wait_for("the other server's word", PATIENCE, || kea_journal("4").len() > before);
        assert_eq!(lab.addresses(1), [result["ips"][0]["address"].as_str().expect("text")]);
        let (renewed, more) = (kea_journal("4").len(), 2);
        wait_for("it to be renewed there", PATIENCE, || kea_journal("4").len() >= renewed + more);
    });
}

#[test]
fn an_ipv6_lease_is_renewed_and_given_back() {
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
        wait_for("two renewals", PATIENCE, || kea_journal("6").len() >= 3);
        drop(daemon);
        let before = kea_journal("6").len();
        let _daemon = lab.daemon(&[]);
        wait_for("renewals by the next daemon", PATIENCE, || kea_journal("6").len() > before);
        call.check(&result).ok();
        call.del(&result).ok();
        wait_for("it to be given back", PATIENCE, || has_ended("6", 2));
    });
}

#[test]
fn an_ipv6_lease_ends_without_a_server() {
    in_netns(|| {
        let lab = Lab::new(1);
        let more = json!({"preferred-lifetime": 8});
        let server = lab.kea("6", POOL6, &crate::conf::with(times(1, 6, 8), &more));
        let _daemon = lab.daemon(&[]);
        lab.call(&json!({"families": ["ipv6"]}), 1).add().ok();
        drop(server);
        wait_for("the lease to end", PATIENCE, || lab.addresses(1).is_empty());
        let _server = lab.kea("6", POOL6, &times(1000, 2000, 4000));
        wait_for("an address again", PATIENCE, || lab.addresses(1).len() == 1);
    });
}
