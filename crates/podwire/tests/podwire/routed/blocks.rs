// SPDX-License-Identifier: Apache-2.0
//! Blocks between nodes: borrowed addresses, the loss of a node, stale releases.

use std::net::IpAddr;

use serde_json::json;
use testkit::{EtcdServer, Wire, in_netns};

use super::{
    BLOCKS, HANDLES, Host, NODES, all_reach_all, calico, etcd, pod_allocations, put_pool,
    wait_until,
};

/// Two nodes and a pool with a single block.
fn one_block(wire: &Wire, server: &EtcdServer) -> [Host; 2] {
    let spec = json!({"cidr": "10.6.0.0/27", "blockSize": 27, "ipipMode": "Never",
        "vxlanMode": "Never", "natOutgoing": false});
    put_pool(server, "small", &spec);
    let endpoint = server.endpoint();
    let flags = ["--etcd-endpoints", &endpoint];
    [1, 2].map(|number| Host::start(wire.node(number, true, false), &flags))
}

fn node_of(server: &EtcdServer, address: IpAddr) -> Option<String> {
    let found = pod_allocations(server).into_iter().find(|(other, ..)| *other == address);
    found.map(|(_, _, node)| node)
}

#[test]
fn borrowed_address_is_routed_and_outlives_the_owner() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        let hosts = one_block(&wire, &server);
        let conf = calico(true, false);
        let one = hosts[0].pod("one", &conf);
        let two = hosts[1].pod("two", &conf);
        all_reach_all(&[&one, &two]);
        let borrowed = two.addresses()[0];
        assert_eq!(server.entries(BLOCKS).len(), 1);
        assert_eq!(node_of(&server, borrowed).as_deref(), Some("node-2"));
        let routes = hosts[0].routes("-4");
        let single = routes.iter().find(|route| route["dst"] == borrowed.to_string());
        assert_eq!(single.map(|route| &route["gateway"]), Some(&"192.168.90.2".into()));
        // The borrower has no blackhole for the block of the other node.
        assert!(!hosts[1].routes("-4").iter().any(|route| route["type"] == "blackhole"));

        // The first node departs with its pod. Another pod of the second node finds all of its addresses.
        let freed = one.addresses()[0];
        hosts[0].kill();
        drop(one);
        server.ctl(&["del", &format!("{NODES}node-1")]);
        wait_until("the release of the departed node's address", || {
            node_of(&server, freed).is_none() && !server.entries(BLOCKS)[0].1.contains("node-1")
        });
        assert_eq!(node_of(&server, borrowed).as_deref(), Some("node-2"));
        wait_until("the end of the departed node's handle", || {
            !server.ctl(&["get", "--prefix", HANDLES, "--keys-only"]).contains("net.c-one")
        });
        wait_until("the end of the route to the departed node", || {
            !hosts[1].routes("-4").iter().any(|route| route["gateway"] == "192.168.90.1")
        });
        let pods: Vec<_> = (0..4).map(|n| hosts[1].pod(&format!("more{n}"), &conf)).collect();
        let mut all: Vec<IpAddr> = pods.iter().flat_map(|pod| pod.addresses()).collect();
        all.push(borrowed);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 5, "{all:?}");
        two.del();
        assert_eq!(hosts[1].journal().len(), 4);
    });
}

/// The release of an earlier container arrives after its address has a new user.
#[test]
fn late_release_keeps_the_address_of_the_next_pod() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        let hosts = one_block(&wire, &server);
        let conf = calico(true, false);
        let first = hosts[0].pod("first", &conf);
        let address = first.addresses()[0];
        // The runtime believes that DEL failed.
        first.del();
        let ask = super::with(
            conf.clone(),
            &json!({"runtimeConfig": {"ips": [address]},
            "capabilities": {"ips": true}}),
        );
        let second = hosts[0].pod("second", &ask);
        assert_eq!(second.addresses(), [address]);
        first.del();
        assert_eq!(hosts[0].journal(), ["net.c-second:eth0"]);
        second.call("CHECK").unwrap();
        wait_until("the new user in the store", || {
            pod_allocations(&server) == [(address, "net.c-second".to_owned(), "node-1".to_owned())]
        });

        // The same from another node, which borrows the address that the first returned.
        second.del();
        wait_until("the release", || pod_allocations(&server).is_empty());
        let third = hosts[1].pod("third", &ask);
        assert_eq!(third.addresses(), [address]);
        second.del();
        hosts[0].kill();
        second.del();
        hosts[0].run();
        hosts[0].wait_ready();
        second.del();
        let expected = [(address, "net.c-third".to_owned(), "node-2".to_owned())];
        assert_eq!(pod_allocations(&server), expected);
        wait_until("one handle", || {
            let handles = server.entries(HANDLES).into_iter().map(|(key, _)| key);
            handles.collect::<Vec<_>>() == [format!("{HANDLES}net.c-third")]
        });
    });
}
