// SPDX-License-Identifier: Apache-2.0
//! What an agent's process tells: systemd of its start and end, and the log of what it does, a line each.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use testkit::{Wire, in_netns, run, wait_for, wait_some};

use super::program::PODWIRE;

const PATIENCE: Duration = Duration::from_secs(30);
const START: &str =
    "echo $$ >/run/lab/pid; NOTIFY_SOCKET=/run/lab/notify exec \"$@\" 2>/run/lab/log";
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// Messages until one has these words.
#[track_caller]
fn wait_message(manager: &UnixDatagram, words: &str) {
    let heard = wait_some(PATIENCE, || {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..length]).contains(words).then_some(())
    });
    assert!(heard.is_some(), "no message says {words}");
}

#[test]
fn an_agent_tells_what_it_does() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let node = wire.node(1, true, false);
        let manager = UnixDatagram::bind("/run/lab/notify").unwrap();
        manager.set_nonblocking(true).unwrap();
        let flags = node.flags();
        let told = ["--store-file", "/run/lab/store.db", "--cni-conf-dir", "/run/lab/net.d"];
        let words = ["-c", START, "sh", PODWIRE, "agent"].into_iter().chain(told);
        let words: Vec<&str> = words.chain(flags.iter().map(String::as_str)).collect();
        let _agent = node.ns.start("sh", &words);
        wait_message(&manager, "STATUS=waiting for the network: config: the network has no conf");
        run(
            PODWIRE,
            &["agent", "--store-file", told[1], "--net-config", CONF, "--replace-net-config"],
        );
        wait_message(&manager, "READY=1");
        let log = || std::fs::read_to_string("/run/lab/log").unwrap();
        let lines = [
            "the agent starts version=",
            "this node is not ready: this node is not part of the network yet; config: ",
            "the way to other nodes interface=eth0 ",
            "lease taken lease=10.5.",
            "this node is ready",
            "CNI configuration written file=/run/lab/net.d/",
        ];
        for line in lines {
            wait_for(line, PATIENCE, || log().contains(line));
            assert_eq!(log().matches(line).count(), 1, "{line}: {}", log());
        }
        run("kill", &[std::fs::read_to_string("/run/lab/pid").unwrap().trim()]);
        wait_message(&manager, "STOPPING=1");
    });
}
