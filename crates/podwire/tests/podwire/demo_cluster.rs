// SPDX-License-Identifier: Apache-2.0
//! `podwire demo` with several nodes, an agent in each.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use testkit::{in_netns, run};

use super::demo::nothing_is_left;
use super::program::{PODWIRE, fails, links, misused, names, ok, ok_json};

/// Each word of JSON under a key of the elements of a list.
fn words<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap()).collect()
}

/// Runs a command line in a namespace of the first demo.
fn exec(netns: &str, command: &str) -> String {
    let words = command.split(' ');
    let line: Vec<&str> = ["netns", "exec", netns].into_iter().chain(words).collect();
    run("ip", &line)
}

#[test]
fn pods_of_three_nodes_talk_and_nothing_is_left() {
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
            "repair    flannel.1 deleted on node2: its agent put ",
            "loss      node3's agent stopped: its pods go on, all 16 pairs answer\n",
            "loss      node3 cleaned up, ",
            ": no node has a route there after ",
            "join      node4 leased 10.244.",
            " after its agent's start, all 16 pairs answer\n",
            "detached  6 pods, median ",
            "removed   everything, in ",
        ] {
            assert!(printed.contains(part), "{part}:\n{printed}");
        }
        assert!(!printed.contains('█'), "a bar is for terminals:\n{printed}");
        nothing_is_left();
    });
}

#[test]
fn terminal_has_a_bar_while_it_builds() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let line = format!("{PODWIRE} demo --nodes 2 --pods 1");
        let printed = run("script", &["-qec", &line, "/dev/null"]);
        assert!(printed.contains("building  ░░░"), "{printed}");
        assert!(printed.contains("███ 5/5 pod"), "{printed}");
        assert!(printed.contains("\x1b[Kfirst     pod"), "it goes away: {printed}");
        assert!(!printed.contains("attached in"), "{printed}");
        nothing_is_left();
    });
}

fn check_backend(backend: &str, broken: &str) {
    let told = ok_json(&["demo", "--nodes", "2", "--pods", "1", "--backend", backend]);
    assert_eq!(told["backend"], backend);
    let subnets: BTreeSet<&str> = words(&told["nodes"], "subnet").into_iter().collect();
    assert_eq!(subnets.len(), 2);
    assert_eq!(words(&told["pods"], "node"), ["node1", "node2"]);
    let pings = told["pings"].as_array().unwrap();
    assert_eq!(pings.len(), 2);
    assert!(pings.iter().all(|ping| ping["isAcrossNodes"] == true));
    assert_eq!(told["pages"][0]["page"], "hello from pod2");
    assert!(told["firstPing"]["micros"].as_u64().unwrap() > 0);
    let [repair, loss, join] = &told["events"].as_array().unwrap()[..] else { panic!("{told}") };
    assert!(repair["deleted"].as_str().unwrap().starts_with(broken), "{repair}");
    assert!(repair["repairs"].as_u64().unwrap() > 0, "{repair}");
    assert_eq!(loss["subnet"], told["nodes"][1]["subnet"]);
    assert_eq!((&join["node"], &join["pings"]), (&"node3".into(), &2.into()));
    nothing_is_left();
}

#[test]
fn vxlan() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        check_backend("vxlan", "flannel.1");
    });
}

#[test]
fn host_gw() {
    in_netns(|| check_backend("host-gw", "the route to 10.244."));
}

#[test]
fn udp() {
    in_netns(|| check_backend("udp", "flannel0"));
}

#[test]
fn vm_ipip() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipip"));
        check_backend("ipip", "flannel.ipip");
    });
}

#[test]
fn vm_wireguard() {
    in_netns(|| {
        testkit::not_run_unless!(Link("wireguard"));
        check_backend("wireguard", "flannel-wg");
    });
}

/// Whichever of the two this kernel has.
#[test]
fn what_the_kernel_lacks_is_said_at_once() {
    in_netns(|| {
        for kind in ["ipip", "wireguard"] {
            if testkit::missing(testkit::Need::Link(kind)).is_none() {
                continue;
            }
            let why = fails(&["demo", "--backend", kind]);
            let expected = format!(
                "error: this kernel has no interfaces of kind {kind}, which backend {kind} needs\n\
                 hint: host-gw needs nothing of the kind; try: podwire demo --backend host-gw\n"
            );
            assert!(why.contains(&expected), "{why}");
            nothing_is_left();
        }
    });
}

/// The tunnels are the kernel's, and need no agent to go on.
#[test]
fn kept_nodes_go_on() {
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
        assert_eq!(words(&ports, "ifname"), ["node1", "node2", "node3"]);
        assert_eq!(links(), [""; 0]);
        assert_eq!(names(Path::new("/run/netns")).len(), 10);
        assert_eq!(ok(&["demo", "--clean"]), "demo 1: removed with 10 namespaces\n");
        nothing_is_left();
    });
}

#[test]
fn what_does_not_go_together_is_refused() {
    in_netns(|| {
        let check = |args: &str, why: &str| {
            let args: Vec<&str> = ["demo"].into_iter().chain(args.split(' ')).collect();
            let said = misused(&args);
            assert!(said.contains(why), "{said}");
            nothing_is_left();
        };
        check("--pods 16", "--pods is 16; with 3 nodes allowed are 1 to 15");
        check("--nodes 8 --pods 30", "--pods is 30; with 8 nodes allowed are 1 to 10");
        check("--nodes 1 --pods 1", "--pods is 1; with 1 node allowed are 2 to 30");
        check("--keep --backend udp", "--keep does not go with backend udp: ");
    });
}

#[test]
fn many_pods_on_many_nodes() {
    in_netns(|| {
        let told = ok_json(&["demo", "--nodes", "8", "--pods", "3", "--backend", "host-gw"]);
        assert_eq!(told["pings"].as_array().unwrap().len(), 24 * 23);
        nothing_is_left();
    });
}
