// SPDX-License-Identifier: Apache-2.0
//! Lease lifecycle with dnsmasq.

use serde_json::json;
use testkit::{Daemon, in_netns, ping, wait_for};

use super::lab::{
    Lab, TIMEOUT, config, dnsmasq_leases, lease_files, stop, wait_for_daemon,
    wait_for_dnsmasq_leases,
};
use crate::call::Answer;
use crate::world::Plugins;

const RANGE: &str = "--dhcp-range=10.5.0.100,10.5.0.120,255.255.255.0,1h";

#[test]
fn add_takes_lease_and_del_releases_it() {
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
        ping(lab.world.pod(1), [10, 5, 0, 1].into());
        let lease = dnsmasq_leases().join("\n");
        // The Go plugin's client identifier: 0, then "c1/net/eth0".
        assert!(lease.ends_with("00:63:31:2f:6e:65:74:2f:65:74:68:30"), "{lease}");
        assert_eq!(lease_files(), ["c1:eth0.json"]);
        call.check(&result).ok();
        call.add().fails_with(999, "already exists");
        assert_eq!(lab.addresses(1), [address.as_str()]);
        call.del(&result).ok();
        wait_for_dnsmasq_leases(0);
        assert_eq!(lease_files(), Vec::<String>::new());
        call.del(&result).ok();
    });
}

/// Keys that only ADD uses may be invalid by the time of DEL or GC.
#[test]
fn del_and_gc_with_invalid_keys_release_lease() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE]);
        let _daemon = lab.daemon(&[]);
        let junk = json!({"priority": "1", "provide": {}, "request": 7, "families": "ipv4"});
        let (call, edited) = (lab.call(&json!({}), 1), lab.call(&junk, 1));
        call.add().ok();
        edited.run("DEL").ok();
        wait_for_dnsmasq_leases(0);
        call.add().ok();
        edited.gc(&[]).ok();
        wait_for_dnsmasq_leases(0);
    });
}

#[test]
fn add_takes_routes_from_server_options() {
    in_netns(|| {
        let lab = Lab::new(2);
        let _daemon = lab.daemon(&[]);
        let server = lab.dnsmasq(&[
            RANGE,
            "--dhcp-option=option:router,10.5.0.1",
            "--dhcp-option=option:classless-static-route,0.0.0.0/0,10.5.0.9,10.77.0.0/16,0.0.0.0",
        ]);
        let call = lab.call(&json!({"priority": 77}), 1);
        let result = call.add().result();
        assert_eq!(result["ips"][0]["gateway"], "10.5.0.1");
        assert_eq!(
            result["routes"],
            json!([{"dst": "0.0.0.0/0", "gw": "10.5.0.9", "priority": 77},
                   {"dst": "10.77.0.0/16", "gw": "0.0.0.0", "priority": 77, "scope": 253}])
        );
        assert_eq!(lab.gateway(1), "10.5.0.9");
        let routes = lab.world.in_pod(1, "route show");
        assert!(routes.contains("10.77.0.0/16 dev eth0 scope link metric 77"), "{routes}");
        call.check(&result).ok();
        drop(server);
        let _server = lab.dnsmasq(&[RANGE, "--dhcp-option=33,172.16.0.0,10.5.0.7"]);
        // With skipDefault, only the listed options are requested.
        let asked = json!({"request": [{"skipDefault": true}, {"option": "33"}]});
        let result = lab.call(&asked, 2).add().result();
        assert_eq!(result["routes"][0], json!({"dst": "172.16.0.0/16", "gw": "10.5.0.7"}));
        assert_eq!(result["dns"], json!(null));
    });
}

#[test]
fn provided_options_are_sent_to_server() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[
            RANGE,
            "--dhcp-vendorclass=set:known,podwire",
            "--dhcp-option=tag:known,option:router,10.5.0.8",
        ]);
        let _daemon = lab.daemon(&["-broadcast"]);
        let provide = json!({"provide": [
            {"option": "host-name", "fromArg": "K8S_POD_NAME"},
            {"option": "60", "value": "podwire"},
        ]});
        let result = lab.call(&provide, 1).args("IgnoreUnknown=1;K8S_POD_NAME=blue").add().result();
        assert_eq!(result["ips"][0]["gateway"], "10.5.0.8", "{result}");
        let lease = dnsmasq_leases().join("\n");
        assert!(lease.contains(" blue "), "{lease}");
    });
}

#[test]
fn add_without_server_fails_and_leaves_nothing() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _daemon = lab.daemon(&["-resendtimeout", "1500ms"]);
        let before = lab.world.snapshot();
        let answer = lab.call(&json!({"families": ["ipv4", "ipv6"]}), 1).add();
        answer.fails_with(11, "no DHCP and no DHCPv6 server gave \"eth0\" an address within 1.5s");
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
        assert_eq!(lease_files(), Vec::<String>::new());
    });
}

/// Scripts compare the text with which the Go plugin reports this.
#[test]
fn add_without_server_has_error_of_go() {
    const TEXT: &str = "error calling DHCP.Allocate: no more tries";
    in_netns(|| {
        let lab = Lab::new(2);
        let go = Plugins::go();
        let program = go.directory().join("dhcp");
        let flags = ["daemon", "-resendtimeout", "1500ms"];
        let go_daemon = Daemon::start(program.to_str().expect("path is UTF-8"), &flags);
        wait_for_daemon();
        let text = |answer: &Answer| {
            assert!(!answer.success, "{}", answer.stdout);
            let part = |key: &str| answer.values[0][key].as_str().unwrap_or_default().to_owned();
            (part("msg"), part("details"))
        };
        let expected = (TEXT.to_owned(), String::new());
        assert_eq!(text(&lab.world.call_of(&go, &config(&json!({})), 1).add()), expected, "Go");
        drop(go_daemon);
        let _daemon = lab.daemon(&flags[1..]);
        // The Go plugin leaves its interface in the first pod.
        assert_eq!(text(&lab.call(&json!({}), 2).add()), expected, "podwire");
    });
}

/// If only one family gets a lease, ADD fails and releases that lease.
#[test]
fn add_with_one_of_two_families_releases_lease() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE]);
        let _daemon = lab.daemon(&["-resendtimeout", "1500ms"]);
        let answer = lab.call(&json!({"families": ["ipv4", "ipv6"]}), 1).add();
        answer.fails_with(11, "no DHCPv6 server gave \"eth0\" an address");
        wait_for_dnsmasq_leases(0);
    });
}

#[test]
fn add_killed_while_waiting_leaves_no_lease() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _daemon = lab.daemon(&[]);
        let call = lab.call(&json!({}), 1);
        let mut plugin = call.start_under(&[], "ADD", call.config.to_string().as_bytes());
        let has_link = || lab.world.in_pod(1, "link show").contains("eth0");
        wait_for("the plugin to create eth0", TIMEOUT, has_link);
        plugin.kill().expect("kill the plugin");
        plugin.wait().expect("wait for the plugin");
        call.run("DEL").ok();
        let _server = lab.dnsmasq(&[RANGE]);
        let other = call.add().result();
        call.del(&other).ok();
        wait_for_dnsmasq_leases(0);
    });
}

#[test]
fn gc_releases_leases_of_unlisted_attachments() {
    in_netns(|| {
        let lab = Lab::new(3);
        let _server = lab.dnsmasq(&[RANGE]);
        let _daemon = lab.daemon(&[]);
        let call = |pod| lab.call(&json!({}), pod);
        (1..=3).for_each(|pod| call(pod).add().ok());
        wait_for_dnsmasq_leases(3);
        call(1).run("GC").ok();
        wait_for_dnsmasq_leases(3);
        call(1).gc(&[("c2", "eth0"), ("c1", "eth1")]).ok();
        assert_eq!(lease_files(), ["c2:eth0.json"]);
        wait_for_dnsmasq_leases(1);
        assert!(lab.addresses(1).is_empty() && !lab.addresses(2).is_empty());
        let other = crate::conf::with(call(1).config, &json!({"name": "other"}));
        lab.world.call(&other, 1).gc(&[]).ok();
        assert_eq!(lease_files(), ["c2:eth0.json"]);
    });
}

#[test]
fn lease_after_server_change_is_replaced() {
    in_netns(|| {
        let lab = Lab::new(1);
        let daemon = lab.daemon(&[]);
        let server = lab.dnsmasq(&[RANGE, "--dhcp-option=option:router,10.5.0.1"]);
        let result = lab.call(&json!({}), 1).add().result();
        stop(&daemon);
        drop(server);
        let range = "--dhcp-range=10.5.0.200,10.5.0.209,255.255.255.0,1h";
        let _server = lab.dnsmasq(&[range, "--dhcp-option=option:router,10.5.0.2"]);
        let _daemon = lab.daemon(&[]);
        let has_new =
            || matches!(lab.addresses(1).as_slice(), [one] if one.starts_with("10.5.0.20"));
        wait_for("only the new address on eth0", TIMEOUT, has_new);
        wait_for("the default route via the new router", TIMEOUT, || lab.gateway(1) == "10.5.0.2");
        // The result of the ADD is outdated, and CHECK reports that.
        lab.call(&json!({}), 1).check(&result).fails_with(999, "is missing");
        lab.call(&json!({}), 1).del(&result).ok();
        wait_for_dnsmasq_leases(0);
    });
}

#[test]
fn add_with_both_families_gets_two_leases() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[
            RANGE,
            "--dhcp-range=fd05::100,fd05::1ff,64,1h",
            "--enable-ra",
            "--dhcp-option=option6:dns-server,[fd05::53]",
            "--dhcp-option=option6:domain-search,six.example.net",
        ]);
        let _daemon = lab.daemon(&[]);
        lab.world.pod(1).exec("sysctl", &["-q", "-w", "net.ipv6.conf.default.disable_ipv6=1"]);
        let call = lab.call(&json!({"families": ["ipv4", "ipv6"]}), 1);
        let result = call.add().result();
        let address = result["ips"][1]["address"].as_str().expect("an IPv6 address");
        assert!(address.starts_with("fd05::1") && address.ends_with("/128"), "{result}");
        assert_eq!(result["dns"]["nameservers"], json!(["fd05::53"]), "{result}");
        assert_eq!(result["dns"]["search"], json!(["six.example.net"]));
        assert!(lab.addresses(1).contains(&address.to_owned()), "{:?}", lab.addresses(1));
        call.check(&result).ok();
        // Works after the first router advertisement.
        ping(lab.world.pod(1), "fd05::1".parse().expect("an address"));
        wait_for_dnsmasq_leases(2);
        call.del(&result).ok();
        wait_for_dnsmasq_leases(0);
    });
}
