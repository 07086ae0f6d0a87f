// SPDX-License-Identifier: Apache-2.0
//! Plugins other than bridge whose interface a lease is asked for through.

use serde_json::{Value, json};
use testkit::{in_netns, ping};

use super::lab::{Lab, dnsmasq_comes_to, kept};
use crate::call::Call;
use crate::conf::{host_device, macvlan, ptp, tap};

const RANGE: &str = "--dhcp-range=10.5.0.100,10.5.0.120,255.255.255.0,1h";
const ROUTER: &str = "--dhcp-option=option:router,10.5.0.1";

fn dhcp() -> Value {
    json!({"type": "dhcp"})
}

/// From the first STATUS to the second DEL, in a namespace that has a way to the LAN.
fn live(lab: &Lab, call: &Call) {
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
    dnsmasq_comes_to(1);
    call.check(&result).ok();
    call.add().fails_with(999, "already exists");
    assert_eq!(lab.addresses(1), [address.as_str()], "a second ADD changes nothing");
    call.del(&result).ok();
    dnsmasq_comes_to(0);
    assert_eq!(kept(), Vec::<String>::new());
    call.del(&result).ok();
    call.add().ok();
    dnsmasq_comes_to(1);
    call.gc(&[]).ok();
    dnsmasq_comes_to(0);
    call.run("DEL").ok();
}

#[test]
fn macvlan_asks_through_its_interface() {
    in_netns(|| {
        let lab = Lab::new(1);
        let call = lab.world.call(&macvlan(&json!({"master": "br0", "ipam": dhcp()})), 1);
        live(&lab, &call);
    });
}

/// A device of the host that leads to the LAN.
fn with_device(lab: &Lab) {
    lab.world.on_host("link add dev0 type veth peer name port0");
    lab.world.on_host("link set port0 master br0 up");
}

#[test]
fn host_device_asks_through_the_device() {
    in_netns(|| {
        let lab = Lab::new(1);
        with_device(&lab);
        let call = lab.world.call(&host_device(&json!({"device": "dev0", "ipam": dhcp()})), 1);
        live(&lab, &call);
        assert!(lab.world.on_host("link show").contains("dev0@"), "the device is home");
    });
}

#[test]
fn a_device_comes_home_if_no_server_answers() {
    in_netns(|| {
        let lab = Lab::new(1);
        with_device(&lab);
        let _daemon = lab.daemon(&["-resendtimeout", "1500ms"]);
        let before = lab.world.snapshot();
        let config = host_device(&json!({"device": "dev0", "ipam": dhcp()}));
        lab.world.call(&config, 1).add().fails_with(11, "no DHCP server gave");
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
    });
}

/// Nobody is at the other end of a tap, but the question goes out and nothing is left of it.
#[test]
fn tap_asks_through_its_interface() {
    in_netns(|| {
        let lab = Lab::new(1);
        let call = lab.world.call(&tap(&json!({"ipam": dhcp()})), 1);
        call.add().fails_with(11, "dhcp daemon does not answer");
        let _daemon = lab.daemon(&["-resendtimeout", "1500ms"]);
        let before = lab.world.snapshot();
        call.add().fails_with(11, "no DHCP server gave \"eth0\" an address within 1.5s");
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
    });
}

#[test]
fn ptp_has_nobody_to_ask() {
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
