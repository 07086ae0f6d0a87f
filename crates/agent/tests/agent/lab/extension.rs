// SPDX-License-Identifier: Apache-2.0
//! Backends without a data path of their own: `extension` with real commands, and `alloc`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::time::Duration;

use agent::status::{ConditionKind, RejectedPeerStatus, Status};
use agent::supervisor::Fault;
use serde_json::json;
use testkit::{Node, Wire, in_netns, wait_for, wait_some, write_program};

use super::faults::TIMING;
use super::{Agent, Member, Store, TIMEOUT, all_reach_all, etcd, network};

const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const ALLOW: &str = "--allow-extension-commands";

/// The tunnel of flannel's documentation of extensions. Each command logs its input.
const SCRIPTS: [(&str, &str); 4] = [
    (
        "before",
        "ip link add tunnel type vxlan id 7 dstport 8472 >&2
        ip -o link show tunnel | grep -o 'ether [^ ]*' | cut -d' ' -f2",
    ),
    (
        "after",
        "note after $NETWORK $SUBNET $PUBLIC_IP $1
        ip address add ${SUBNET%/*}/32 dev tunnel
        ip link set tunnel up",
    ),
    (
        "add",
        "read mac; note add $SUBNET $PUBLIC_IP $mac
        ip neigh add ${SUBNET%/*} lladdr $mac dev tunnel
        bridge fdb add $mac dev tunnel self dst $PUBLIC_IP
        ip route add $SUBNET via ${SUBNET%/*} dev tunnel onlink",
    ),
    (
        "remove",
        "read mac; note remove $SUBNET $PUBLIC_IP $mac
        ip route del $SUBNET
        bridge fdb del $mac dev tunnel self dst $PUBLIC_IP
        ip neigh del ${SUBNET%/*} dev tunnel",
    ),
];

fn write_scripts() -> String {
    for (name, body) in SCRIPTS {
        let note = "note() { echo $* >> /run/lab/$(ip netns identify)/calls; }";
        let path = format!("/run/lab/{name}");
        write_program(&path, &format!("#!/bin/sh -e\n{note}\n{body}\n"));
    }
    let backend = json!({
        "Type": "extension",
        "PreStartupCommand": "/run/lab/before",
        "PostStartupCommand": "/run/lab/after $SUBNET",
        "SubnetAddCommand": "/run/lab/add",
        "SubnetRemoveCommand": "/run/lab/remove",
    });
    json!({"Network": "10.5.0.0/16", "Backend": backend}).to_string()
}

/// Returns the logged input of a node's commands.
fn calls(node: &Node) -> Vec<String> {
    let text = fs::read_to_string(node.dir().join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The input that commands on the other nodes get for a node.
fn told(member: &Member) -> String {
    let subnet = member.agent().hub.network().unwrap().lease.subnets[0];
    let shown = member.node.ns.ip_json(&["link", "show", "tunnel"]);
    format!(
        "{subnet} 192.168.90.{} {}",
        member.node.number(),
        shown[0]["address"].as_str().unwrap()
    )
}

#[test]
fn extension_commands_create_a_tunnel() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = etcd();
        let store = Store::etcd(&server, &write_scripts()).and(&[ALLOW]);
        let nodes = [1, 2, 3].map(|number| wire.node(number, true, false)).into();
        let mut members = network(nodes, &store);
        all_reach_all(&members, TIMEOUT);
        let all: Vec<String> = members.iter().map(told).collect();
        for (member, own) in members.iter().zip(&all) {
            let [subnet, public, mac] = own.split(' ').collect::<Vec<_>>()[..] else { panic!() };
            let key = format!("{SUBNETS}{}", subnet.replace('/', "-"));
            let value = format!(
                r#"{{"PublicIP":"{public}","PublicIPv6":null,"BackendType":"extension","BackendData":"{mac}"}}"#
            );
            assert!(server.entries(SUBNETS).contains(&(key, value)));
            let others = all.iter().filter(|one| *one != own).map(|one| format!("add {one}"));
            let after = format!("after 10.5.0.0/16 {subnet} {public} {subnet}");
            let mut called = calls(&member.node);
            assert_eq!(called.remove(0), after, "before the commands for peers");
            assert_eq!(called.len(), 2, "each once: {called:?}");
            assert_eq!(BTreeSet::from_iter(called), others.collect());
            assert_eq!(member.node.subnet_env()["FLANNEL_MTU"], "1500");
        }

        let gone = members.pop().unwrap();
        let subnet = told(&gone).split(' ').next().unwrap().replace('/', "-");
        drop(gone);
        server.ctl(&["del", &format!("{SUBNETS}{subnet}")]);
        let removed = format!("remove {}", all[2]);
        for member in &members {
            wait_for(&removed, TIMEOUT, || calls(&member.node).last() == Some(&removed));
        }
        all_reach_all(&members, TIMEOUT);
    });
}

/// The command after the start may create what pods need. While it hangs, the agent goes on.
#[test]
fn node_is_ready_after_the_start_command_has_ended() {
    in_netns(|| {
        let wire = Wire::new();
        let fifo = "/run/lab/fifo";
        let wait = "[ $(ip netns identify) != node-1 ] || read line";
        write_program("/run/lab/after", &format!("#!/bin/sh -e\n{wait} < {fifo}\n"));
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "extension",
            "PostStartupCommand": "/run/lab/after"}}"#;
        let store = Store::embedded(conf).and(&[ALLOW]);
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        testkit::run("mkfifo", &[fifo]);
        let agent = Agent::start(&nodes[0], &store);
        // Opens once the command reads.
        let mut writer = fs::OpenOptions::new().write(true).open(fifo).unwrap();
        agent.wait("the programmed kernel", |status| status.kernel.comparison.is_some());
        let is_ready = || agent.hub.readiness().is_ready.then_some(());
        assert_eq!(wait_some(Duration::from_secs(1), is_ready), None);
        let peer = Agent::start(&nodes[1], &store);
        peer.wait("status.ready of the peer", |status| status.ready);
        agent.wait("the peer", |status| status.healthy && status.peers.counts.total == 1);
        assert!(is_ready().is_none() && nodes[0].subnet_env().is_empty());
        writer.write_all(b"go on\n").unwrap();
        agent.wait("status.ready", |status| status.ready);
        assert!(!nodes[0].subnet_env().is_empty());
    });
}

/// The overlay controller is restarted while it waits for the dataplane, which then no longer reports the new peer.
#[test]
fn command_for_a_peer_runs_despite_a_restart() {
    in_netns(|| {
        let wire = Wire::new();
        let note = "#!/bin/sh -e\necho add $SUBNET >> /run/lab/$(ip netns identify)/calls\n";
        write_program("/run/lab/add", note);
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "extension",
            "SubnetAddCommand": "/run/lab/add"}}"#;
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let store = Store::embedded(conf).and(&[ALLOW]);
        let (agent, injector) = Agent::start_faulty(&nodes[0], &store, TIMING);
        agent.wait("status.ready", |status| status.ready);
        injector.inject("routes", Fault::Hang);
        let peer = Agent::start(&nodes[1], &store);
        agent.wait("the overlay controller to hang", |status| {
            status.controllers["overlay"].failure.is_some()
        });
        peer.wait("status.ready of the peer", |status| status.ready);
        let subnet = peer.hub.network().unwrap().lease.subnets[0];
        let expected = [format!("add {subnet}")];
        wait_for("the command for the peer", TIMEOUT, || calls(&nodes[0]) == expected);
    });
}

/// Flannel's first example. The output of a failed command is reported, and the other commands run.
#[test]
fn failed_extension_commands_are_reported() {
    in_netns(|| {
        let wire = Wire::new();
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "extension",
            "SubnetAddCommand": "ip route add $SUBNET via $PUBLIC_IP",
            "SubnetRemoveCommand": "ip route del $SUBNET via $PUBLIC_IP"}}"#;
        let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
        let store = Store::embedded(conf).and(&[ALLOW]);
        let mut members = network(nodes, &store);
        all_reach_all(&members, TIMEOUT);
        let peer = members[1].agent().hub.network().unwrap().lease.subnets[0];
        drop(members[0].agent.take());
        members[0].agent = Some(Agent::start(&members[0].node, &store));
        members[0].agent().wait("the failed command in the status", |status| {
            let is_it = |one: &RejectedPeerStatus| {
                one.subnet.as_ref() == Some(&peer) && one.reason.contains("File exists")
            };
            status.ready && status.peers.rejected.iter().any(is_it)
        });
        all_reach_all(&members, TIMEOUT);
    });
}

#[test]
fn extension_commands_run_only_if_allowed() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        write_program("/run/lab/run", "#!/bin/sh -e\n>/run/lab/$(ip netns identify)/ran\n");
        let before = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "alloc"}}"#;
        let after = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "extension",
            "PreStartupCommand": "/run/lab/run"}}"#;
        let nodes = [1, 2].map(|number| wire.node(number, true, false));
        let has_run = |node: &Node| node.dir().join("ran").exists();
        let store = Store::etcd(&server, before);
        let refusing = Agent::start(&nodes[0], &store);
        let allowing = Agent::start(&nodes[1], &store.and(&[ALLOW]));
        for agent in [&refusing, &allowing] {
            agent.wait("status.ready", |status| status.ready);
        }
        server.ctl(&["put", CONFIG, after]);
        wait_for("the command to run", TIMEOUT, || has_run(&nodes[1]));
        let is_refused = |status: &Status| {
            let problem = status.problems.get(&ConditionKind::Config);
            problem.is_some_and(|problem| problem.text.contains(ALLOW))
        };
        refusing.wait("the rejected configuration", is_refused);
        assert!(refusing.hub.readiness().is_ready, "the previous configuration stays");
        drop(refusing);
        let refusing = Agent::start(&nodes[0], &store);
        refusing.wait("the rejected configuration after a restart", is_refused);
        assert!(!refusing.hub.readiness().is_ready && !has_run(&nodes[0]));
    });
}

#[test]
fn alloc_assigns_subnets_only() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "alloc"}}"#;
        let nodes = [1, 2].map(|number| wire.node(number, true, false)).into();
        let members = network(nodes, &Store::etcd(&server, conf));
        for Member { node, .. } in &members {
            let env = node.subnet_env();
            let subnet = env["FLANNEL_SUBNET"].replace(".1/24", ".0-24");
            let value =
                format!(r#"{{"PublicIP":"192.168.90.{}","PublicIPv6":null}}"#, node.number());
            let entry = (format!("{SUBNETS}{subnet}"), value);
            assert!(server.entries(SUBNETS).contains(&entry), "{entry:?}");
            assert_eq!(env["FLANNEL_MTU"], "1500");
            assert_eq!(node.kernel(), BTreeSet::new());
        }
        assert_eq!(server.entries(SUBNETS).len(), 2);
        assert!(!members[0].pod.reaches(&members[1].pod), "alloc creates no routes");
        let via = "ip route add SUBNET via 192.168.90.";
        for (here, there) in [(0, 1), (1, 0)] {
            let subnet = members[there].node.subnet_env()["FLANNEL_SUBNET"].replace(".1/", ".0/");
            let number = members[there].node.number();
            members[here].node.sh(&format!("{}{number}", via.replace("SUBNET", &subnet)));
        }
        all_reach_all(&members, TIMEOUT);
    });
}
