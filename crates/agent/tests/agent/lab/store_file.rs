// SPDX-License-Identifier: Apache-2.0
//! The embedded store's file: deleted while agents run, and filled with what is no lease.

use std::fs;
use std::path::Path;

use testkit::{Wire, in_netns, wait_for};

use super::{Agent, Store, TIMEOUT, network};

const HOST_GW: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;

fn sqlite(sql: &str) -> String {
    testkit::run("sqlite3", &["-batch", "-cmd", ".timeout 10000", Store::FILE, sql])
}

/// A node that joins after that is part of the same network.
#[test]
fn deleted_store_file_is_recreated() {
    in_netns(|| {
        let wire = Wire::new();
        let store = Store::embedded(HOST_GW);
        let members = network(vec![wire.node(1, true, false), wire.node(2, true, false)], &store);
        let leases = sqlite("SELECT key FROM entry ORDER BY key");
        fs::remove_file(Store::FILE).unwrap();
        wait_for("the store to be reachable", TIMEOUT, || Path::new(Store::FILE).exists());
        assert_eq!(sqlite("SELECT key FROM entry ORDER BY key"), leases);
        let third = wire.node(3, true, false);
        let agent = Agent::start(&third, &store);
        for agent in members.iter().map(|member| member.agent()).chain([&agent]) {
            agent.wait("status.ready with all peers", |status| {
                status.ready && status.peers.counts.total == 2
            });
        }
        assert_eq!(sqlite("SELECT count(*) FROM entry"), "4\n", "a configuration and three leases");
    });
}

/// Foreign keys must not make the agent's memory or status grow with them.
#[test]
fn foreign_keys_are_rejected_and_summarised() {
    in_netns(|| {
        let wire = Wire::new();
        let store = Store::embedded(HOST_GW);
        let nodes = vec![wire.node(1, true, false), wire.node(2, true, false)];
        let members = network(nodes, &store);
        let add = |from: u32, to: u32, key: &str, length: u32| {
            format!(
                "WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to})
                 INSERT INTO entry SELECT '/coreos.com/network/subnets/' || {key}, zeroblob({length}),
                     revision + i, revision + i, NULL, NULL FROM n, head;"
            )
        };
        sqlite(&format!(
            "BEGIN; {} {}
             INSERT INTO event SELECT entry.revision, key, value, created, 0 FROM entry, head
                 WHERE entry.revision > head.revision;
             UPDATE head SET revision = revision + 3010; COMMIT",
            add(1, 10, "'10.5.' || (200 + i) || '.0-24'", 1_000_000),
            add(11, 3010, "'bad' || i", 100),
        ));
        for member in &members {
            let agent = member.agent();
            agent.wait("the rejected peers", |status| status.peers.rejected_total == 3010);
            let readiness = agent.hub.readiness();
            assert!(readiness.is_ready);
            let [warning] = &readiness.warnings[..] else { panic!("{readiness:?}") };
            assert!(warning.starts_with("3010 keys or subnets refused, the first: "), "{warning}");
            let status = agent.hub.status();
            assert_eq!(status.peers.counts.total, 3011);
            let large = "its value has at least 1000000 bytes; the limit is 16384";
            let is_large = |name: &str, why: &str| name.starts_with("10.5.2") && why == large;
            assert!(status.peers.rejected.iter().any(|one| is_large(&one.peer, &one.reason)));
            let page = serde_json::to_string(&status).unwrap();
            assert!(page.len() < 32_000, "{} bytes", page.len());
        }
        // A new agent lists the same, and does not take a subnet that is refused.
        let third = wire.node(3, true, false);
        let agent = Agent::start(&third, &store);
        agent.wait("status.ready", |status| status.ready && status.peers.rejected_total == 3010);
        sqlite("DELETE FROM entry WHERE key LIKE '%bad%' OR length(value) = 1000000");
    });
}
