// SPDX-License-Identifier: Apache-2.0
//! `podwire demo` with several nodes.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use testkit::{in_netns, run};

use super::demo::assert_nothing_left;
use super::program::{PODWIRE, fails, links, names, ok, ok_json, usage_error};

/// The strings under a key in each element of a JSON list.
fn strings<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap()).collect()
}

/// Runs a command in a namespace of the first demo.
fn exec(netns: &str, command: &str) -> String {
    let words = command.split(' ');
    let line: Vec<&str> = ["netns", "exec", netns].into_iter().chain(words).collect();
    run("ip", &line)
}

#[test]
fn three_nodes_are_connected_and_removed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let printed = ok(&["demo"]);
        for part in [
            "underlay  bridge underlay0 in namespace /run/netns/podwire-demo-1-underlay\n",
            " on another node ",
            "ping      on one node: all 6 pairs answer, median ",
            "ping      across nodes: all 24 pairs answer, median ",
            "page      pod1 fetched http://10.244.",
            "\"hello from pod6\"\n",
            "│ flannel.1  vxlan ",
            "│ eth0 192.0.2.3\n",
            "└ pod6  10.244.",
            "192.0.2.2  vxlan ",
            "repair    flannel.1 deleted on node2: its agent repaired ",
            "loss      agent of node3 stopped: its pods stay connected, all 16 pairs answer\n",
            "loss      node3 cleaned up, ",
            ": no node has a route to it after ",
            "join      node4 leased 10.244.",
            " after the start of its agent, all 16 pairs answer\n",
            "detached  6 pods, median ",
            "removed   everything, in ",
        ] {
            assert!(printed.contains(part), "{part}:\n{printed}");
        }
        assert!(!printed.contains('█'), "bar without a terminal:\n{printed}");
        assert_nothing_left();
    });
}

#[test]
fn terminal_shows_a_progress_bar() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let line = format!("{PODWIRE} demo --nodes 2 --pods 1");
        let printed = run("script", &["-qec", &line, "/dev/null"]);
        assert!(printed.contains("building  ░░░"), "{printed}");
        assert!(printed.contains("███ 5/5 pod"), "{printed}");
        assert!(printed.contains("\x1b[Kfirst     pod"), "the bar stays: {printed}");
        assert!(!printed.contains("attached in"), "{printed}");
        assert_nothing_left();
    });
}

fn check_backend(backend: &str, deleted: &str) {
    let printed = ok_json(&["demo", "--nodes", "2", "--pods", "1", "--backend", backend]);
    assert_eq!(printed["backend"], backend);
    let subnets: BTreeSet<&str> = strings(&printed["nodes"], "subnet").into_iter().collect();
    assert_eq!(subnets.len(), 2);
    assert_eq!(strings(&printed["pods"], "node"), ["node1", "node2"]);
    let pings = printed["pings"].as_array().unwrap();
    assert_eq!(pings.len(), 2);
    assert!(pings.iter().all(|ping| ping["isAcrossNodes"] == true));
    assert_eq!(printed["pages"][0]["page"], "hello from pod2");
    assert!(printed["firstPing"]["micros"].as_u64().unwrap() > 0);
    let [repair, loss, join] = &printed["events"].as_array().unwrap()[..] else {
        panic!("{printed}")
    };
    assert!(repair["deleted"].as_str().unwrap().starts_with(deleted), "{repair}");
    assert!(repair["repairs"].as_u64().unwrap() > 0, "{repair}");
    assert_eq!(loss["subnet"], printed["nodes"][1]["subnet"]);
    assert_eq!((&join["node"], &join["pings"]), (&"node3".into(), &2.into()));
    assert_nothing_left();
}

#[test]
fn vxlan_demo_succeeds() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_backend("vxlan", "flannel.1");
    });
}

#[test]
fn host_gw_demo_succeeds() {
    in_netns(|| check_backend("host-gw", "the route to 10.244."));
}

#[test]
fn udp_demo_succeeds() {
    in_netns(|| check_backend("udp", "flannel0"));
}

#[test]
fn vm_ipip_demo_succeeds() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        check_backend("ipip", "flannel.ipip");
    });
}

#[test]
fn vm_wireguard_demo_succeeds() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        check_backend("wireguard", "flannel-wg");
    });
}

#[test]
fn routed_pods_are_connected_and_removed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let printed = ok(&["demo", "--mode", "routed"]);
        for part in [
            "ping      across nodes: all 24 pairs answer, median ",
            "page      pod1 fetched http://10.244.",
            "│ vxlan.calico  vxlan",
            "│ block  10.244.",
            "default-ipv4-ippool  10.244.0.0/16  /26    vxlan          yes  3 ",
            "repair    vxlan.calico deleted on node2: its agent repaired ",
            "loss      node3 cleaned up, ",
            "; the block is free again after ",
            "join      node4 took block 10.244.",
            "removed   everything, in ",
        ] {
            assert!(printed.contains(part), "{part}:\n{printed}");
        }
        assert_nothing_left();
    });
}

fn check_encapsulation(encapsulation: &str, deleted: &str) {
    let mode = ["demo", "--mode", "routed", "--nodes", "2", "--pods", "1"];
    let printed = ok_json(&[&mode[..], &["--encapsulation", encapsulation]].concat());
    assert_eq!(printed["encapsulation"], encapsulation);
    let blocks: BTreeSet<&str> = strings(&printed["nodes"], "block").into_iter().collect();
    assert_eq!(blocks.len(), 2);
    assert_eq!(printed["pools"][0]["encapsulation"], encapsulation);
    assert_eq!(printed["pages"][0]["page"], "hello from pod2");
    let events = printed["events"].as_array().unwrap();
    assert!(events[0]["deleted"].as_str().unwrap().starts_with(deleted), "{events:?}");
    assert!(events[1]["givenBackMicros"].as_u64().unwrap() > 0, "{events:?}");
    assert_nothing_left();
}

#[test]
fn routed_pods_need_no_encapsulation_on_one_link() {
    in_netns(|| check_encapsulation("none", "the route to 10.244."));
}

#[test]
fn vm_routed_ipip_demo_succeeds() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        check_encapsulation("ipip", "ipip.podwire");
    });
}

/// Uses the kinds that this kernel lacks.
#[test]
fn unsupported_backend_is_refused() {
    in_netns(|| {
        for kind in ["ipip", "wireguard"] {
            if testkit::missing(testkit::Need::Link(kind)).is_none() {
                continue;
            }
            let why = fails(&["demo", "--backend", kind]);
            let expected = format!(
                "error: this kernel has no {kind} interfaces: backend {kind} is not available\n\
                 hint: host-gw needs no kernel support; try: podwire demo --backend host-gw\n"
            );
            assert!(why.contains(&expected), "{why}");
            assert_nothing_left();
        }
    });
}

/// The kernel's tunnels do not need the agents.
#[test]
fn kept_nodes_stay_connected() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let printed = ok(&["demo", "--keep"]);
        let command = printed.lines().find(|line| line.contains(" ping -c 3 ")).unwrap().trim();
        run("sh", &["-c", command]);
        let shown = exec("podwire-demo-1-node1", "ip -j -d link show flannel.1");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown[0]["linkinfo"]["info_data"]["id"], 1);
        let routes = exec("podwire-demo-1-node1", "ip route show proto 112");
        assert_eq!(routes.lines().count(), 2, "{routes}");
        let ports = exec("podwire-demo-1-underlay", "bridge -j link");
        let ports: Value = serde_json::from_str(&ports).unwrap();
        assert_eq!(strings(&ports, "ifname"), ["node1", "node2", "node3"]);
        assert_eq!(links(), [""; 0]);
        assert_eq!(names(Path::new("/run/netns")).len(), 10);
        assert_eq!(ok(&["demo", "--clean"]), "demo 1: 10 namespaces removed\n");
        assert_nothing_left();
    });
}

#[test]
fn conflicting_options_are_refused() {
    in_netns(|| {
        let check = |args: &str, error: &str| {
            let args: Vec<&str> = ["demo"].into_iter().chain(args.split(' ')).collect();
            let printed = usage_error(&args);
            assert!(printed.contains(error), "{printed}");
            assert_nothing_left();
        };
        check("--pods 16", "--pods is 16: with 3 nodes, 1 to 15 are allowed");
        check("--nodes 8 --pods 30", "--pods is 30: with 8 nodes, 1 to 10 are allowed");
        check("--nodes 1 --pods 1", "--pods is 1: with 1 node, 2 to 30 are allowed");
        check("--keep --backend udp", "--keep is not possible with backend udp: ");
        check("--mode routed --backend udp", "routed pods have no backend, pass --encapsulation");
        check("--mode routed --nodes 1", "a single node needs no pool, pass --nodes 2 to 8");
        check("--encapsulation none", "--encapsulation is for routed pods: pass --mode routed");
    });
}

#[test]
fn many_pods_on_many_nodes_are_connected() {
    in_netns(|| {
        let printed = ok_json(&["demo", "--nodes", "8", "--pods", "3", "--backend", "host-gw"]);
        assert_eq!(printed["pings"].as_array().unwrap().len(), 24 * 23);
        assert_nothing_left();
    });
}
