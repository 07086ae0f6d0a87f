// SPDX-License-Identifier: Apache-2.0
//! A configuration that is deleted, invalid, or different from the agent's option: a running network keeps working.

use std::error::Error;

use agent::run;
use agent::settings::{self, Invocation};
use agent::status::{ConditionKind, RepairKind};
use kernel::Netns;
use testkit::{EtcdServer, Node, Wire, in_netns, wait_for};

use super::{Agent, Store, TIMEOUT, etcd};

const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const GOOD: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan", "VNI": 7}}"#;

/// Above 100, as an agent takes one of the first hundred subnets.
fn put_peer(server: &EtcdServer, number: u8) {
    let value = format!(
        r#"{{"PublicIP":"192.168.90.{number}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":7,"VtepMAC":"02:00:00:00:01:{number:02x}"}}}}"#
    );
    server.ctl(&["put", &format!("{SUBNETS}10.5.{number}.0-24"), &value]);
}

#[track_caller]
pub fn wait_problem(agent: &Agent, words: &[&str]) {
    agent.wait(&format!("{words:?}"), |status| {
        let problem = status.problems.get(&ConditionKind::Config);
        let is_it = problem.map(|problem| words.iter().all(|word| problem.text.contains(word)));
        status.ready && is_it == Some(true)
    });
}

#[test]
fn deleted_configuration_stays_in_effect() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = etcd();
        server.ctl(&["put", CONFIG, GOOD]);
        let node = wire.node(1, true, false);
        let stale = GOOD.replace("\"VNI\": 7", "\"VNI\": 1");
        let agent =
            Agent::start(&node, &Store::etcd(&server, &stale).and(&["--compare-every", "3600"]));
        agent.wait("status.ready", |status| status.ready);
        let own = server.entries(SUBNETS);
        let route =
            |subnet: &str| node.sh(&format!("ip route show {subnet}")).contains("flannel.7");
        let wrong = GOOD.replace("\"VNI\": 7", "\"VNI\": -1");
        for (round, words) in [
            (150, &["VNI", "-1", "stays in force"]),
            (200, &["nothing is stored", CONFIG, "stays"]),
        ] {
            match round {
                150 => server.ctl(&["put", CONFIG, &wrong]),
                _ => server.ctl(&["del", CONFIG]),
            };
            wait_problem(&agent, words);
            put_peer(&server, round);
            let subnet = format!("10.5.{round}.0/24");
            wait_for("the route to a new peer", TIMEOUT, || route(&subnet));
            node.sh(&format!("ip route del {subnet}"));
            wait_for("the restored route", TIMEOUT, || route(&subnet));
            let (key, value) = &own[0];
            server.ctl(&[
                "put",
                key,
                &value.replace("02:", "06:").replace("\"VNI\":7", "\"VNI\":8"),
            ]);
            wait_for("the renewed lease", TIMEOUT, || {
                server.entries(SUBNETS).iter().any(|entry| *entry == own[0])
            });
            // A new session with the same configuration.
            node.sh(&format!("ip link set eth0 mtu {}", 1300 + u32::from(round)));
            agent.wait("network.pod_mtu", |status| {
                status
                    .membership
                    .network
                    .as_ref()
                    .is_some_and(|network| network.pod_mtu == 1250 + u32::from(round))
            });
            wait_problem(&agent, words);
        }
        assert!(agent.repairs(RepairKind::Route) >= 2);
        assert!(server.entries(CONFIG).is_empty(), "no new configuration");
        server.ctl(&["put", CONFIG, &GOOD.replace("7", "9, \"MTU\": 9000, \"Prot\": 1")]);
        wait_for("the new configuration", TIMEOUT, || node.sh("ip -br link").contains("flannel.9"));
        wait_problem(&agent, &["Backend.Prot", "Port", "Backend.MTU", "9000: eth0 has 1500"]);
    });
}

/// All subnets are taken: running agents keep the previous configuration until a subnet is free.
#[test]
fn full_network_is_waited_for() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        let wide = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;
        server.ctl(&["put", CONFIG, wide]);
        let node = wire.node(1, true, false);
        let store = Store::etcd(&server, wide);
        let agent = Agent::start(&node, &store);
        agent.wait("status.ready", |status| status.ready);
        let (leases, subnet) = (server.entries(SUBNETS), node.subnet_env());
        let host_gw = |number: u8| {
            format!(
                r#"{{"PublicIP":"192.168.90.{number}","PublicIPv6":null,"BackendType":"host-gw"}}"#
            )
        };
        for number in [1, 2, 3] {
            let key = format!("{SUBNETS}10.6.{number}.0-24");
            server.ctl(&["put", &key, &host_gw(100 + number)]);
        }
        server.ctl(&["put", CONFIG, &wide.replace("10.5.0.0/16", "10.6.0.0/22")]);
        wait_problem(&agent, &["all 3 subnets", "10.6.1.0 to 10.6.3.0", "stays in force"]);
        server.ctl(&["put", &format!("{SUBNETS}10.5.200.0-24"), &host_gw(200)]);
        wait_for("the route to a new peer", TIMEOUT, || {
            node.sh("ip route show 10.5.200.0/24").contains("192.168.90.200")
        });
        assert!(server.entries(SUBNETS).contains(&leases[0]) && node.subnet_env() == subnet);
        let late = wire.node(2, true, false);
        let waiting = Agent::start(&late, &store);
        waiting.wait("the reason why a new node waits", |status| {
            status.reasons.iter().any(|reason| reason.starts_with("lease: all 3 subnets"))
        });
        drop(waiting);

        server.ctl(&["del", &format!("{SUBNETS}10.6.2.0-24")]);
        agent.wait("the lease of the free subnet", |status| {
            let lease = status
                .membership
                .network
                .as_ref()
                .map(|network| network.lease.subnets[0].to_string());
            status.ready && lease.as_deref() == Some("10.6.2.0/24")
        });
    });
}

pub fn replace(node: &Node, store: &Store, flags: &[&str]) -> String {
    try_replace(node, store, flags).unwrap()
}

fn try_replace(node: &Node, store: &Store, flags: &[&str]) -> Result<String, run::Error> {
    let replaced = store.and(&["--replace-net-config"]).and(flags);
    let flags = [node.flags(), replaced.0].concat();
    let Ok(Invocation::Run(settings)) =
        settings::parse(settings::Command::Agent, &flags, |_| None, |_| unreachable!())
    else {
        panic!("{flags:?}");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(agent::net_config::replace(&settings))
}

#[test]
fn configuration_is_replaced_only_on_request() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let spaced = GOOD.replace(' ', "  ");
        let other = Store::embedded(&GOOD.replace("7", "9"));
        let first = Agent::start(&nodes[0], &Store::embedded(GOOD));
        first.wait("status.ready of the first agent", |status| status.ready);
        let again = Agent::start(&nodes[1], &Store::embedded(&spaced));
        again.wait("status.ready without problems", |status| {
            status.ready && status.problems.is_empty()
        });
        drop(again);
        let second = Agent::start(&nodes[1], &other);
        wait_problem(&second, &["--net-config differs", CONFIG, "--replace-net-config"]);

        let netns = Netns::open(nodes[0].ns.path()).unwrap();
        let unfit = Store::embedded(&GOOD.replace("10.5", "192.168"));
        for flags in [&["--dry-run"][..], &[]] {
            let error = netns.enter(|| try_replace(&nodes[0], &unfit, flags)).unwrap().unwrap_err();
            let why = error.source().unwrap().to_string();
            assert!(why.contains("192.168.0.0/16") && why.contains("192.168.90.1"), "{why}");
        }
        let would = replace(&nodes[0], &other, &["--dry-run"]);
        assert_eq!(would, format!("write the network's configuration to the key {CONFIG}"));
        assert!(replace(&nodes[0], &Store::embedded(GOOD), &[]).contains("already"));
        assert_eq!(replace(&nodes[0], &other, &[]), would);
        second.wait("status.ready without problems", |status| {
            status.ready && status.problems.is_empty()
        });
        wait_problem(&first, &["--net-config differs"]);
        for node in &nodes {
            wait_for("the new configuration on all nodes", TIMEOUT, || {
                node.sh("ip -br link").contains("flannel.9")
            });
        }
    });
}
