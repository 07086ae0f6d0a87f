// SPDX-License-Identifier: Apache-2.0
//! The agent as a process: its messages to systemd and its log.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use testkit::{Daemon, Node, Wire, in_netns, run, wait_for, wait_some};

use super::program::PODWIRE;

const TIMEOUT: Duration = Duration::from_secs(60);
const START: &str =
    "echo $$ >/run/lab/pid; NOTIFY_SOCKET=/run/lab/notify exec \"$@\" 2>/run/lab/log";
const STORE: &str = "/run/lab/store.db";
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// Waits for a message to systemd that contains this text.
#[track_caller]
fn wait_message(manager: &UnixDatagram, text: &str) {
    let received = wait_some(TIMEOUT, || {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..length]).contains(text).then_some(())
    });
    assert!(received.is_some(), "no message contains {text}");
}

/// Starts an agent as a process that logs to a file.
fn start(node: &Node, more: &[&str]) -> Daemon {
    let flags = node.flags();
    let words = ["-c", START, "sh", PODWIRE, "agent", "--store-file", STORE].iter().chain(more);
    let words: Vec<&str> = words.copied().chain(flags.iter().map(String::as_str)).collect();
    node.ns.start("sh", &words)
}

#[track_caller]
fn wait_logged_once(line: &str) {
    let log = || std::fs::read_to_string("/run/lab/log").unwrap_or_default();
    wait_for(line, TIMEOUT, || log().contains(line));
    assert_eq!(log().matches(line).count(), 1, "{line}: {}", log());
}

#[test]
fn stored_configuration_is_logged() {
    in_netns(|| {
        let node = Wire::new().node(1, true, false);
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;
        let _agent = start(&node, &["--net-config", conf]);
        wait_logged_once("node ready");
        wait_logged_once(
            "network configuration stored location=the key /coreos.com/network/config networks=10.5.0.0/16 backend=",
        );
    });
}

#[test]
fn extension_command_is_logged_without_expansion() {
    in_netns(|| {
        let node = Wire::new().node(1, true, false);
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "extension",
            "PreStartupCommand": "true before", "PostStartupCommand": "true $PATH"}}"#;
        let _agent = start(&node, &["--net-config", conf, "--allow-extension-commands"]);
        wait_logged_once("node ready");
        wait_logged_once("running extension command command=true before env=");
        // A variable of the agent's environment may contain a secret.
        wait_logged_once("command=true $PATH env=NETWORK=10.5.0.0/16 SUBNET=10.5.");
    });
}

/// Otherwise any client of the store could fill the log.
#[test]
fn many_rejected_leases_are_summarized_in_the_log() {
    in_netns(|| {
        testkit::require!(Program("sqlite3"));
        let node = Wire::new().node(1, true, false);
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;
        let agent = start(&node, &["--net-config", conf]);
        wait_logged_once("node ready");
        drop(agent);
        let keys = "BEGIN; UPDATE head SET revision = revision + 1;
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
            INSERT INTO entry SELECT '/coreos.com/network/subnets/invalid-' || i, 'x', revision, revision, NULL, NULL
            FROM n, head; COMMIT";
        run("sqlite3", &["-cmd", ".timeout 20000", STORE, keys]);
        let _agent = start(&node, &[]);
        wait_logged_once("peers rejected, not logged one by one more=80");
        let log = std::fs::read_to_string("/run/lab/log").unwrap();
        assert_eq!(log.matches("peer rejected peer=\"invalid-").count(), 20, "{log}");
    });
}

#[test]
fn agent_reports_its_state_to_systemd_and_log() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let manager = UnixDatagram::bind("/run/lab/notify").unwrap();
        manager.set_nonblocking(true).unwrap();
        let _agent = start(&node, &["--cni-conf-dir", "/run/lab/net.d"]);
        wait_message(&manager, "STATUS=waiting for the network: config: the network has no conf");
        run(
            PODWIRE,
            &["agent", "--store-file", STORE, "--net-config", CONF, "--replace-net-config"],
        );
        wait_message(&manager, "READY=1");
        let lines = [
            "agent starting version=",
            "node not ready reasons=this node is not part of the network yet; config: ",
            "underlay selected interface=eth0 ",
            "lease acquired lease=10.5.",
            "node ready",
            "CNI configuration written file=/run/lab/net.d/",
        ];
        lines.into_iter().for_each(wait_logged_once);
        run("kill", &[std::fs::read_to_string("/run/lab/pid").unwrap().trim()]);
        wait_message(&manager, "STOPPING=1");
    });
}
