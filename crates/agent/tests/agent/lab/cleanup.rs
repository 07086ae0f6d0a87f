// SPDX-License-Identifier: Apache-2.0
//! Cleanup removes everything of one agent and nothing of another. With `--dry-run` it only prints the changes.

use agent::cleanup::{self, Cleaned};
use agent::settings::Command;
use kernel::Netns;
use testkit::{Node, Pinging, Wire, in_netns};

use super::{Agent, Store, TIMEOUT, all_reach_all, network, settings, words};

/// All kernel state of agents on a node, as external tools print it.
fn shown(node: &Node) -> Vec<String> {
    let text = node.sh("ip -d -o link show; ip -o address show; ip route show table all; ip -6 route show table all
        ip nexthop show; ip neigh show nud permanent; bridge fdb show; nft list ruleset
        find /run/lab -type f -not -name 'store.db*' | sort");
    text.lines().map(str::to_owned).collect()
}

/// The flags of an agent for a network of its own, all of whose files are in a directory of its own.
fn flags(mark: &str, net_config: &str) -> Vec<String> {
    let below = |name: &str| format!("/run/lab/{mark}/{name}");
    [
        words(&["--mark", mark, "--iface", "eth0", "--ip-masq", "--ip-blackhole-route"]),
        words(&["--store-file", &below("store.db"), "--net-config", net_config]),
        words(&["--subnet-file", &below("subnet.env"), "--cni-conf-dir", &below("net.d")]),
        words(&["--state-dir", "/run/lab/state", "--run-dir", &below("run")]),
    ]
    .concat()
}

fn clean(node: &Node, flags: &[String], more: &[&str]) -> Cleaned {
    let flags = [flags.to_vec(), words(more)].concat();
    let settings = settings(Command::Cleanup, &flags, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cleaned = Netns::open(node.ns.path())
        .unwrap()
        .enter(|| runtime.block_on(cleanup::cleanup(&settings)))
        .unwrap()
        .unwrap();
    assert_eq!(cleaned.failed, [""; 0]);
    cleaned
}

/// Starts an agent, waits until it has told plugins, and ends it: what it has made stays.
fn leave_traces(node: &Node, flags: &[String]) {
    let agent = Agent::start_with(flags, node, &[]);
    agent.wait("status.ready", |status| status.ready);
    let conf = flags.iter().find(|flag| flag.ends_with("/net.d")).unwrap();
    testkit::wait_for("the CNI configuration file", TIMEOUT, || {
        std::path::Path::new(conf).join("10-podwire.conflist").exists()
    });
}

fn cleanup_of_one_network_leaves_the_other(backend: &str, other: &str) {
    let wire = Wire::new();
    let node = wire.node(1, true, false);
    let conf = |network: &str, backend: &str| {
        format!(r#"{{"Network": "{network}", "Backend": {backend}}}"#)
    };
    let blue = flags("blue", &conf("10.50.0.0/16", backend));
    leave_traces(&node, &flags("podwire", &conf("10.244.0.0/16", other)));
    // A peer, so that there are routes.
    let peer = wire.node(2, true, false);
    let neighbour = |mark: &str, store: &str| {
        let mut flags = flags(mark, "");
        let at = flags.iter().position(|flag| flag == "/run/lab/state").unwrap();
        flags[at] = format!("/run/lab/{mark}/state");
        let agent =
            Agent::start_with(&[flags, words(&["--store-file", store])].concat(), &peer, &[]);
        agent.wait("status.ready of the peer", |status| status.ready);
    };
    neighbour("peer", "/run/lab/podwire/store.db");
    leave_traces(&node, &flags("podwire", ""));
    let before = shown(&node);
    leave_traces(&node, &blue);
    let both = shown(&node);
    assert_ne!(both, before);
    // The rest it has written down itself.
    let mark = |mark| words(&["--mark", mark, "--state-dir", "/run/lab/state"]);
    let told = clean(&node, &mark("blue"), &["--dry-run"]);
    assert_eq!(shown(&node), both, "dry run");
    let done = clean(&node, &mark("blue"), &[]);
    assert_eq!(told.done, done.done);
    assert_eq!(shown(&node), before, "{:#?}", done.done);
    // An agent that never ran, with the file of a different agent.
    let green = ["--run-dir=/run/lab/green", "--subnet-file=/run/lab/podwire/subnet.env"];
    let nothing =
        clean(&node, &mark("green"), &[&green[..], &["--store-file=/run/lab/no"]].concat());
    assert_eq!((nothing.done, shown(&node)), (vec![], before));
    let left = nothing.left.join("; ");
    assert!(left.contains("subnet.env") && left.contains("cleanup --owner podwire"), "{left}");
    assert!(!std::path::Path::new("/run/lab/no").exists(), "no store is created");
    clean(&node, &mark("podwire"), &[]);
    let rest = shown(&node).join("\n");
    assert!(!rest.contains("proto 112") && !rest.contains("podwire-agent"), "{rest}");
    assert!(!rest.contains("flannel"), "{rest}");
}

#[test]
fn cleanup_of_vxlan_leaves_another_vxlan() {
    in_netns(|| {
        testkit::require!(Link("vxlan"), Program("nft"));
        cleanup_of_one_network_leaves_the_other(
            r#"{"Type": "vxlan", "VNI": 2}"#,
            r#"{"Type": "vxlan"}"#,
        );
    });
}

#[test]
fn cleanup_of_host_gw_leaves_another_host_gw() {
    in_netns(|| {
        testkit::require!(Program("nft"));
        cleanup_of_one_network_leaves_the_other(r#"{"Type": "host-gw"}"#, r#"{"Type": "host-gw"}"#);
    });
}

/// Next-hop IDs are derived from the owner tag. Of 257 tags two have the same range.
#[test]
fn owner_tags_with_the_same_next_hops_are_rejected() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let node = Wire::new().node(1, true, false);
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}"#;
        leave_traces(&node, &flags("podwire", conf));
        let before = shown(&node);
        let refused = |flags: &[String]| {
            let settings = settings(Command::Agent, flags, &[]);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let run = || {
                let hub = agent::status::StatusHub::new("node-1", "embedded");
                runtime.unwrap().block_on(agent::run::run(settings, hub))
            };
            let Err(error) = Netns::open(node.ns.path()).unwrap().enter(run).unwrap();
            error.to_string()
        };
        let other = flags("net-30", conf);
        let why = refused(&other);
        assert!(why.contains("\"net-30\"") && why.contains("\"podwire\""), "{why}");
        assert!(why.contains("--owner"), "{why}");
        let elsewhere = other.iter().map(|word| word.replace("/run/lab/state", "/run/lab/other"));
        assert_eq!(refused(&elsewhere.collect::<Vec<_>>()), why, "known by its device");
        assert_eq!(shown(&node), before);
    });
}

/// A blackhole route has no owner tag. Those outside of saved networks are reported.
#[test]
fn unknown_blackholes_are_reported() {
    in_netns(|| {
        let node = Wire::new().node(1, true, false);
        let conf = |network: &str| {
            format!(r#"{{"Network": "{network}", "Backend": {{"Type": "host-gw"}}}}"#)
        };
        let (flags, blue) =
            (flags("podwire", &conf("10.5.0.0/16")), flags("blue", &conf("10.50.0.0/16")));
        leave_traces(&node, &flags);
        leave_traces(&node, &blue);
        node.sh("rm /run/lab/state/podwire.lease /run/lab/podwire/subnet.env");
        let blackholes = || node.sh("ip route show type blackhole proto 112");
        let before = blackholes();
        let left = clean(&node, &flags, &[]).left;
        assert_eq!(blackholes(), before);
        let told: Vec<&String> = left.iter().filter(|line| line.contains("blackhole")).collect();
        let [told] = told[..] else { panic!("{left:#?}") };
        assert!(told.starts_with("blackhole 10.5."), "the other agent's is known: {told}");
        node.sh(told.split_once(": ").unwrap().1);
        assert_eq!(blackholes().lines().count(), 1, "{}", blackholes());
        clean(&node, &blue, &[]);
        assert_eq!(blackholes(), "");
    });
}

/// The bridge has no owner tag.
#[test]
fn pod_bridge_is_left_and_reported() {
    in_netns(|| {
        let node = Wire::new().node(1, true, false);
        let flags =
            flags("podwire", r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#);
        leave_traces(&node, &flags);
        let gateway = node.sh("grep ^FLANNEL_SUBNET= /run/lab/podwire/subnet.env | cut -d= -f2");
        let gateway = gateway.trim();
        node.sh("ip link add cni0 type bridge; ip address add 10.77.1.1/24 dev cni0");
        assert_eq!(clean(&node, &flags, &["--dry-run"]).left.len(), 1, "foreign bridge");
        node.sh(&format!("ip address flush dev cni0; ip address add {gateway} dev cni0"));
        let left = clean(&node, &flags, &[]).left.join("; ");
        assert!(left.contains(&format!("cni0 with {gateway}")), "{left}");
        assert!(left.contains(&overlay::stale_bridge::hint("cni0")), "{left}");
    });
}

/// flanneld removes a route by its gateway, and counts on device, lease and subnet.env.
fn network_is_left_to_flanneld(backend: &str) {
    let wire = Wire::new();
    let conf = format!(r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "{backend}"}}}}"#);
    let store = Store::embedded(&conf).and(&["--ip-masq"]);
    let mut members = network([1, 2].map(|number| wire.node(number, true, false)).into(), &store);
    all_reach_all(&members, TIMEOUT);
    drop(members[0].agent.take());
    let [first, second] = &members[..] else { panic!("two") };
    let (env, lease) = (first.node.subnet_env(), second.agent().hub.peers());
    let pinging = Pinging::start(&first.pod.ns, second.pod.addresses[0]);

    let flags = [first.node.flags(), store.0.clone()].concat();
    let told = clean(&first.node, &flags, &["--keep-network", "--dry-run"]);
    let done = clean(&first.node, &flags, &["--keep-network"]);
    assert_eq!(told.done, done.done);
    let rest = shown(&first.node).join("\n");
    for ours in ["proto 112", "nhid", "podwire-agent", "alias"] {
        assert!(!rest.contains(ours), "{ours} in {rest}");
    }
    assert_eq!(first.node.subnet_env(), env);
    assert_eq!(second.agent().hub.peers()[0].name, lease[0].name);
    let (sent, answered) = pinging.end();
    assert!(sent - answered <= 1, "{answered} of {sent} came back");
    let route = first.node.sh("ip route show root 10.5.0.0/16 | grep via");
    first.node.sh(&format!("ip route delete {route}"));
    assert!(!first.pod.reaches(&second.pod));
}

#[test]
fn vxlan_is_left_to_flanneld() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        network_is_left_to_flanneld("vxlan");
    });
}

#[test]
fn host_gw_is_left_to_flanneld() {
    in_netns(|| network_is_left_to_flanneld("host-gw"));
}
