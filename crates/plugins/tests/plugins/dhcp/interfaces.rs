// SPDX-License-Identifier: Apache-2.0
//! dhcp below interface plugins other than bridge.

use serde_json::{Value, json};
use testkit::{in_netns, ping};

use super::lab::{Lab, lease_files, wait_for_dnsmasq_leases};
use crate::call::Call;
use crate::conf::{host_device, macvlan, ptp, tap};

const RANGE: &str = "--dhcp-range=10.5.0.100,10.5.0.120,255.255.255.0,1h";
const ROUTER: &str = "--dhcp-option=option:router,10.5.0.1";

fn dhcp() -> Value {
    json!({"type": "dhcp"})
}

/// Runs all verbs, from STATUS to the second DEL, for a pod with a connection to the LAN.
fn run_all_verbs(lab: &Lab, call: &Call) {
    let _server = lab.dnsmasq(&[RANGE, ROUTER]);
    let before = lab.world.snapshot();
    call.add().fails_with(11, "dhcp daemon does not answer");
    assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new(), "without a daemon");
    let _daemon = lab.daemon(&[]);
    call.status().ok();
    let result = call.add().result();
    let address = result["ips"][0]["address"].as_str().expect("an address").to_owned();
    assert!(address.starts_with("10.5.0.1"), "{address}");
    assert_eq!(result["ips"][0]["interface"], 0, "{result}");
    assert_eq!(lab.addresses(1), [address.as_str()]);
    assert_eq!(lab.gateway(1), "10.5.0.1");
    ping(lab.world.pod(1), [10, 5, 0, 1].into());
    wait_for_dnsmasq_leases(1);
    call.check(&result).ok();
    call.add().fails_with(999, "already exists");
    assert_eq!(lab.addresses(1), [address.as_str()], "the second ADD changed the address");
    call.del(&result).ok();
    wait_for_dnsmasq_leases(0);
    assert_eq!(lease_files(), Vec::<String>::new());
    call.del(&result).ok();
    call.add().ok();
    wait_for_dnsmasq_leases(1);
    call.gc(&[]).ok();
    wait_for_dnsmasq_leases(0);
    call.run("DEL").ok();
}

#[test]
fn macvlan_with_dhcp_gets_lease() {
    in_netns(|| {
        let lab = Lab::new(1);
        let call = lab.world.call(&macvlan(&json!({"master": "br0", "ipam": dhcp()})), 1);
        run_all_verbs(&lab, &call);
    });
}

/// Creates the host device `dev0` with a connection to the LAN.
fn create_device(lab: &Lab) {
    lab.world.on_host("link add dev0 type veth peer name port0");
    lab.world.on_host("link set port0 master br0 up");
}

#[test]
fn host_device_with_dhcp_gets_lease() {
    in_netns(|| {
        let lab = Lab::new(1);
        create_device(&lab);
        let call = lab.world.call(&host_device(&json!({"device": "dev0", "ipam": dhcp()})), 1);
        run_all_verbs(&lab, &call);
        assert!(
            lab.world.on_host("link show").contains("dev0@"),
            "the device is not back on the host"
        );
    });
}

#[test]
fn host_device_without_server_returns_to_host() {
    in_netns(|| {
        let lab = Lab::new(1);
        create_device(&lab);
        let _daemon = lab.daemon(&["-resendtimeout", "1500ms"]);
        let before = lab.world.snapshot();
        let config = host_device(&json!({"device": "dev0", "ipam": dhcp()}));
        lab.world
            .call(&config, 1)
            .add()
            .fails_with(11, "error calling DHCP.Allocate: no more tries");
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
    });
}

/// A tap has no peer: the request times out, and the failed ADD leaves nothing.
#[test]
fn tap_with_dhcp_times_out_and_leaves_nothing() {
    in_netns(|| {
        let lab = Lab::new(1);
        let call = lab.world.call(&tap(&json!({"ipam": dhcp()})), 1);
        call.add().fails_with(11, "dhcp daemon does not answer");
        let _daemon = lab.daemon(&["-resendtimeout", "1500ms"]);
        let before = lab.world.snapshot();
        call.add().fails_with(11, "error calling DHCP.Allocate: no more tries");
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn ptp_with_dhcp_is_rejected() {
    in_netns(|| {
        let lab = Lab::new(1);
        let before = lab.world.snapshot();
        let call = lab.world.call(&ptp(&json!({"ipam": dhcp()})), 1);
        call.add().fails_with(7, "key \"ipam.type\" is \"dhcp\", which needs the interface");
        call.status().fails_with(7, "the interface of ptp leads to this host only");
        call.run("DEL").ok();
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
    });
}
