// SPDX-License-Identifier: Apache-2.0
//! Invalid input is rejected with its key and the reason. Everything else keeps working.

use agent::status::{ConditionKind, RouteMode, Status};
use testkit::{EtcdServer, Wire, in_netns};

use super::{Agent, Store, TIMEOUT, all_reach_all, etcd, network};

const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const GOOD: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// Invalid configurations, and the expected reason for each.
const WRONG: [(&str, &[&str]); 7] = [
    ("{", &["is not JSON"]),
    (r#"{"Network": "10.5.0.0/16", "SubnetLen": 17}"#, &["SubnetLen", "17"]),
    (r#"{"Network": "10.5.0.0/16", "SubnetMin": "10.6.0.0"}"#, &["SubnetMin", "10.6.0.0"]),
    (
        r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "gre"}}"#,
        &["Backend", "Type", "gre", "vxlan"],
    ),
    (
        r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan", "VNI": 16777216}}"#,
        &["VNI", "16777216"],
    ),
    (
        r#"{"Network": "192.168.0.0/16", "Backend": {"Type": "vxlan"}}"#,
        &["192.168.0.0/16", "192.168.90.1", "own"],
    ),
    (
        r#"{"EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "10.6.0.0/16"}"#,
        &["IPv6Network", "10.6.0.0/16"],
    ),
];

fn says(status: &Status, words: &[&str]) -> bool {
    let problem = status.problems.get(&ConditionKind::Config);
    problem.is_some_and(|problem| words.iter().all(|word| problem.text.contains(word)))
}

#[test]
fn invalid_configuration_is_rejected_until_corrected() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = etcd();
        server.ctl(&["put", CONFIG, WRONG[0].0]);
        let node = wire.node(1, true, false);
        let agent = Agent::start(&node, &Store::etcd(&server, GOOD));
        for (conf, words) in WRONG {
            server.ctl(&["put", CONFIG, conf]);
            agent.wait(conf, |status| says(status, words));
            assert!(!agent.hub.readiness().is_ready);
        }
        server.ctl(&["put", CONFIG, GOOD]);
        agent.wait("status.ready without problems", |status| {
            status.ready && status.problems.is_empty()
        });
        assert_eq!(server.entries(SUBNETS).len(), 1, "no lease of an invalid network");

        let (before, leases) = (node.kernel(), server.entries(SUBNETS));
        let is_as_before = || node.kernel() == before && server.entries(SUBNETS) == leases;
        assert!(!before.is_empty());
        for (conf, words) in WRONG {
            server.ctl(&["put", CONFIG, conf]);
            agent.wait(conf, |status| says(status, words));
            assert!(agent.hub.readiness().is_ready, "running pods are not affected");
            assert!(is_as_before(), "{conf}");
        }
        server.ctl(&["put", CONFIG, GOOD]);
        agent.wait("status.ready without problems", |status| status.problems.is_empty());
        assert!(is_as_before());
    });
}

/// Invalid leases, and the expected reason for each.
fn claims(own: &str) -> Vec<(String, String, &'static str)> {
    let vxlan = |public: u8, vni: u32| {
        format!(
            r#"{{"PublicIP":"192.168.90.{public}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":{vni},"VtepMAC":"02:00:00:00:00:{public:02}"}}}}"#
        )
    };
    let part = own.replace("-24", "-25");
    vec![
        ("10.5.250.0-24".into(), "{nonsense".into(), "is not JSON"),
        ("10.5.251.0-24".into(), r#"{"PublicIP":"x"}"#.into(), "PublicIP"),
        ("nonsense".into(), vxlan(50, 1), "nonsense"),
        (part, vxlan(51, 1), "overlaps this node's own subnet"),
        ("10.9.0.0-24".into(), vxlan(52, 1), "not inside the network 10.5.0.0/16"),
        ("10.5.252.0-24".into(), vxlan(53, 2), "VNI 2"),
        (
            "10.5.253.0-24".into(),
            r#"{"PublicIP":"192.168.90.54","PublicIPv6":null,"BackendType":"host-gw"}"#.into(),
            "host-gw",
        ),
    ]
}

fn put(server: &EtcdServer, name: &str, value: &str) {
    server.ctl(&["put", &format!("{SUBNETS}{name}"), value]);
}

#[test]
fn invalid_peers_are_rejected_one_by_one() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = etcd();
        let store = Store::etcd(&server, GOOD);
        let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
        let mut members = network(nodes, &store);
        // The kernel state is complete by then.
        all_reach_all(&members, TIMEOUT);
        let own = members[0].agent().hub.network().unwrap().lease.subnets[0];
        let claims = claims(&own.to_string().replace('/', "-"));
        let before = members[0].node.kernel();
        for (name, value, why) in &claims {
            put(&server, name, value);
            members[0].agent().wait(&format!("{name} to be refused"), |status| {
                let of_it = |peer: &str, reason: &str| peer == name && reason.contains(why);
                status.peers.rejected.iter().any(|refused| of_it(&refused.peer, &refused.reason))
            });
        }
        assert_eq!(members[0].node.kernel(), before, "no kernel state of rejected peers");
        members[0].agent().wait("the rejected peers", |status| {
            let counts = &status.peers.counts;
            (counts.rejected, counts.tunnel, counts.with_problem) == (claims.len(), 1, 0)
        });
        let status = members[0].agent().hub.status();
        for (name, _, why) in &claims {
            let peer = status.peers.list.iter().find(|peer| peer.name == *name).unwrap();
            let problem = peer.path.problem.as_deref().unwrap_or_default();
            assert_eq!(
                (peer.route, problem.contains(why)),
                (RouteMode::Rejected, true),
                "{peer:?}"
            );
        }
        let node = wire.node(3, true, false);
        let agent = Agent::start(&node, &store);
        agent.wait("status.ready of the new node", |status| status.ready);
        members.push(super::Member { agent: Some(agent), pod: node.pod(), node });
        all_reach_all(&members, TIMEOUT);
        assert!(members[0].agent().hub.readiness().is_ready);
        for (name, ..) in &claims {
            server.ctl(&["del", &format!("{SUBNETS}{name}")]);
        }
        for member in &members {
            member.agent().wait("status.ready without problems", |status| {
                status.peers.rejected.is_empty() && status.peers.counts.total == 2
            });
        }
    });
}

/// Keys that every node rejects do not block a new node. Keys that occupy subnets are named.
#[test]
fn rejected_keys_do_not_block_a_new_node() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = etcd();
        let value = &claims("").remove(3).1;
        let refused = ["0.0.0.0-0", "10.5.0.0-16"];
        refused.iter().for_each(|name| put(&server, name, value));
        let store = Store::etcd(&server, GOOD);
        let first = wire.node(1, true, false);
        let agent = Agent::start(&first, &store);
        agent.wait("status.ready with the rejected keys", |status| {
            let is_named = |name: &str| status.peers.rejected.iter().any(|one| one.peer == name);
            status.ready && refused.into_iter().all(is_named)
        });
        let halves = ["10.5.0.0-17", "10.5.128.0-17"];
        halves.iter().for_each(|name| put(&server, name, value));
        let second = wire.node(2, true, false);
        let late = Agent::start(&second, &store);
        late.wait("the keys that occupy all subnets", |status| {
            let problem = status.problems.get(&ConditionKind::Lease);
            problem.is_some_and(|one| halves.iter().all(|name| one.text.contains(name)))
        });
        server.ctl(&["del", &format!("{SUBNETS}{}", halves[1])]);
        late.wait("status.ready without problems", |status| status.ready);
    });
}
