// SPDX-License-Identifier: Apache-2.0
//! The daemon's socket, shutdown and restart, and switching from the Go daemon.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::json;
use testkit::{Daemon, in_netns, wait_for};

use super::lab::{
    LEASES, Lab, SOCKET, TIMEOUT, config, lease_files, stop, wait_for_daemon,
    wait_for_dnsmasq_leases,
};
use crate::call::command;
use crate::world::Plugins;

const RANGE: &str = "--dhcp-range=10.5.0.100,10.5.0.120,255.255.255.0,1h";

#[test]
fn daemon_after_restart_keeps_leases() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE, "--dhcp-range=fd05::100,fd05::1ff,64,1h"]);
        let daemon = lab.daemon(&["-pidfile", "/run/dhcp.pid"]);
        // The daemon writes the pidfile after it listens: a second daemon must not overwrite the
        // file of the first.
        let is_written =
            || fs::read_to_string("/run/dhcp.pid").is_ok_and(|id| id == daemon.id().to_string());
        wait_for("the daemon to write its pidfile", TIMEOUT, is_written);
        let call = lab.call(&json!({"families": ["ipv4", "ipv6"]}), 1);
        let result = call.add().result();
        let before = lab.addresses(1);
        stop(&daemon);
        assert!(!Path::new(SOCKET).exists() && !Path::new("/run/dhcp.pid").exists());
        call.check(&result).fails_with(11, "the dhcp daemon does not answer at /run/cni/dhcp.sock");
        let log = || fs::read_to_string("/run/dnsmasq.log").unwrap_or_default();
        let earlier = log().len();
        let _daemon = lab.daemon(&[]);
        call.check(&result).ok();
        let since = || log()[earlier..].to_owned();
        wait_for("the server to confirm both leases", TIMEOUT, || {
            since().contains("DHCPACK(eth0)") && since().contains("DHCPCONFIRM(eth0)")
        });
        assert!(!since().contains("DHCPDISCOVER"), "{}", since());
        assert_eq!(lab.addresses(1), before);
        wait_for_dnsmasq_leases(2);
        call.del(&result).ok();
        wait_for_dnsmasq_leases(0);
    });
}

#[test]
fn calls_after_daemon_kill_do_not_hang() {
    in_netns(|| {
        let lab = Lab::new(2);
        let _server = lab.dnsmasq(&[RANGE]);
        let daemon = lab.daemon(&[]);
        let call = |pod| lab.call(&json!({}), pod);
        let result = call(1).add().result();
        call(2).add().ok();
        drop(daemon);
        assert!(Path::new(SOCKET).exists(), "the killed daemon's socket is gone");
        call(1).status().fails_with(50, "the dhcp daemon does not answer");
        let before = lab.world.snapshot();
        call(1).ifname("eth1").add().fails_with(11, "the dhcp daemon does not answer");
        assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new());
        call(1).del(&result).ok();
        assert!(lab.addresses(1).is_empty());
        lab.world.on_host("netns del pod2");
        let _daemon = lab.daemon(&[]);
        wait_for("the daemon to drop leases of deleted pods", TIMEOUT, || lease_files().is_empty());
    });
}

/// The lease files in the default directory are enough to release a lease without the daemon.
#[test]
fn del_without_daemon_releases_lease() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE, "--dhcp-range=fd05::100,fd05::1ff,64,1h"]);
        let daemon = lab.daemon(&["-leasedir", "/var/lib/cni/dhcp"]);
        let call = lab.call(&json!({"families": ["ipv4", "ipv6"]}), 1);
        let result = call.add().result();
        wait_for_dnsmasq_leases(2);
        drop(daemon);
        call.del(&result).ok();
        wait_for_dnsmasq_leases(0);
        assert!(!Path::new("/var/lib/cni/dhcp/net/c1:eth0.json").exists());
        call.del(&result).ok();
    });
}

#[test]
fn daemon_with_inherited_socket_answers() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE]);
        let listener = UnixListener::bind(SOCKET).expect("bind a socket in /run");
        let program = lab.plugins.directory().join("dhcp");
        let start = format!(
            "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec {} daemon -leasedir {LEASES}",
            program.display()
        );
        let mut shell = command("sh");
        shell.args(["-c", &start]).stdin(OwnedFd::from(listener));
        let mut daemon = shell.spawn().expect("start sh");
        let result = lab.call(&json!({}), 1).add().result();
        lab.call(&json!({}), 1).del(&result).ok();
        testkit::run("kill", &["-TERM", &daemon.id().to_string()]);
        assert!(daemon.wait().expect("wait for the daemon").success());
        assert!(Path::new(SOCKET).exists(), "the daemon removed an inherited socket");
    });
}

#[test]
fn second_daemon_fails_to_start() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _daemon = lab.daemon(&[]);
        let program = lab.plugins.directory().join("dhcp");
        let second = command(program).arg("daemon").output().expect("run a second daemon");
        let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(
            !second.status.success() && stderr.contains("another daemon is listening"),
            "{stderr}"
        );
        lab.call(&json!({}), 1).status().ok();
    });
}

/// Attaches a container with the Go plugin and the Go daemon below podwire's bridge, then attaches
/// it with podwire's dhcp.
#[test]
fn container_readded_after_go_daemon_keeps_address() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE]);
        let go = Plugins::go();
        let program = go.directory().join("dhcp");
        let go_daemon = Daemon::start(program.to_str().expect("path is UTF-8"), &["daemon"]);
        wait_for_daemon();
        let ours = lab.call(&json!({}), 1);
        ours.add().fails_with(11, "what answers is not podwire's dhcp daemon");
        let theirs = ours.path(&[go.directory()]);
        let by_go = theirs.add().result();
        theirs.check(&by_go).ok();
        drop(go_daemon);
        fs::remove_file(SOCKET).expect("remove the Go daemon's stale socket");
        let _daemon = lab.daemon(&[]);
        theirs.del(&by_go).fails_with(999, "podwire's dhcp daemon");
        assert!(lab.addresses(1).is_empty(), "DEL left the interface");
        let by_us = ours.add().result();
        assert_eq!(by_us["ips"][0]["address"], by_go["ips"][0]["address"]);
        wait_for_dnsmasq_leases(1);
    });
}

#[test]
fn lease_of_go_daemon_is_taken_over_by_check() {
    in_netns(|| {
        let lab = Lab::new(1);
        let _server = lab.dnsmasq(&[RANGE]);
        let go = Plugins::go();
        let program = go.directory().join("dhcp");
        let go_daemon = Daemon::start(program.to_str().expect("path is UTF-8"), &["daemon"]);
        wait_for_daemon();
        let by_go = lab.world.call_of(&go, &config(&json!({})), 1).add().result();
        drop(go_daemon);
        let _daemon = lab.daemon(&[]);
        let ours = lab.call(&json!({}), 1);
        ours.check(&by_go).ok();
        assert_eq!(lease_files(), ["c1:eth0.json"]);
        ours.check(&by_go).ok();
        ours.del(&by_go).ok();
        wait_for_dnsmasq_leases(0);
    });
}

#[test]
fn add_and_status_with_invalid_keys_name_them() {
    in_netns(|| {
        let lab = Lab::new(1);
        let before = lab.world.snapshot();
        let long = "x".repeat(256);
        for (ipam, words) in [
            (
                json!({"families": ["ipv5"]}),
                "key \"ipam.families[0]\" is \"ipv5\", allowed are ipv4 and ipv6",
            ),
            (json!({"priority": -1}), "key \"ipam.priority\" is -1, allowed are 0 to 4294967295"),
            (
                json!({"request": [{"option": "colour"}]}),
                "key \"ipam.request[0].option\" is \"colour\"",
            ),
            (
                json!({"provide": [{"option": "256", "value": "x"}]}),
                "key \"ipam.provide[0].option\" is \"256\"",
            ),
            (json!({"request": [{"option": "0"}]}), "is \"0\", allowed are 1 to 254 and"),
            (json!({"provide": [{"option": "53", "value": "x"}]}), "which cannot be set"),
            (
                json!({"provide": [{"option": "12", "value": long}]}),
                "gives 256 bytes, allowed are 255",
            ),
            (json!({"provide": 3}), "key \"ipam.provide\" is 3: expected a list"),
        ] {
            for verb in ["ADD", "STATUS"] {
                lab.world.call(&config(&ipam), 1).run(verb).fails_with(7, words);
            }
            assert_eq!(before.changes_to(&lab.world.snapshot()), Vec::<String>::new(), "{ipam}");
        }
    });
}
