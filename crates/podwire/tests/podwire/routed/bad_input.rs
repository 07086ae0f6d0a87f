// SPDX-License-Identifier: Apache-2.0
//! Objects in etcd that no node can use: each is named with the reason, and the rest keeps working.

use std::fs;
use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::{EtcdServer, Wire, in_netns, run, wait_some};

use super::{
    BLOCKS, HANDLES, Host, NODES, POOLS, RoutedPod, TIMEOUT, all_reach_all, calico, etcd,
    pod_allocations, put_pool, wait_until, with,
};

/// Puts a value that is too long for a command line.
fn put_large(server: &EtcdServer, key: &str, length: usize) {
    fs::write("/run/lab/large", format!("{{\"x\": \"{}\"}}", "x".repeat(length))).unwrap();
    let script = "exec etcdctl --endpoints \"$0\" put \"$1\" </run/lab/large";
    run("sh", &["-c", script, &server.endpoint(), key]);
}

/// The objects that a node does not use, with the reasons. The status has them too, but shortened.
fn problems(host: &Host) -> String {
    host.page("/pools")["rejected"].to_string()
}

#[test]
fn unusable_objects_are_named_and_others_work() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        let plain = |cidr: &str, more: &Value| {
            with(json!({"cidr": cidr, "ipipMode": "Never", "vxlanMode": "Never"}), more)
        };
        put_pool(&server, "good", &plain("10.6.0.0/24", &json!({})));
        put_pool(&server, "overlap", &plain("10.6.0.128/25", &json!({})));
        put_pool(&server, "size", &plain("10.8.0.0/16", &json!({"blockSize": 33})));
        put_pool(&server, "own", &plain("192.168.90.0/24", &json!({})));
        put_pool(
            &server,
            "two",
            &plain("10.9.0.0/16", &json!({"ipipMode": "Always", "vxlanMode": "Always"})),
        );
        put_pool(&server, "kind", &json!({"cidr": 7}));
        server.ctl(&["put", &format!("{POOLS}text"), "no JSON"]);
        let large = format!("{POOLS}large");
        let endpoint = server.endpoint();
        // Blocks, affinities, handles and nodes of a writer that went wrong.
        for (key, value) in [
            (format!("{BLOCKS}ipv4/block/10.6.0.64-26"), "{"),
            (format!("{BLOCKS}ipv4/block/nonsense"), "{}"),
            ("/calico/ipam/v2/host/node-1/ipv4/block/10.6.0.64-26".to_owned(), "[]"),
            (format!("{HANDLES}net.c-one"), "[]"),
            (format!("{NODES}node-8"), "[]"),
            ("/calico/ipam/v2/config".to_owned(), "7"),
        ] {
            server.ctl(&["put", &key, value]);
        }
        put_large(&server, &large, 1_000_000);
        // A block of the node whose object cannot be read.
        let attribute = json!({"handle_id": "net.other", "secondary": {"node": "node-8"}});
        let mut allocations = vec![json!(0)];
        allocations.resize(64, Value::Null);
        let block = json!({"cidr": "10.6.0.128/26", "affinity": "host:node-8",
            "allocations": allocations,
            "unallocated": (1..64).collect::<Vec<u8>>(), "attributes": [attribute],
            "sequenceNumber": 1, "sequenceNumberForAllocation": {"0": 1}, "deleted": false});
        let kept = format!("{BLOCKS}ipv4/block/10.6.0.128-26");
        server.ctl(&["put", &kept, &block.to_string()]);

        let flags = ["--etcd-endpoints", &endpoint];
        let hosts = [1, 2].map(|number| Host::start(wire.node(number, true, false), &flags));
        let expected = [
            ("overlap", "overlaps 10.6.0.0/24 of IPPool good"),
            ("size", "blockSize 33 is out of range"),
            ("own", "contains 192.168.90.1, which is an address of this node"),
            ("two", "ipipMode and vxlanMode are both enabled"),
            ("IPPool kind", "is ignored"),
            ("IPPool text", "is ignored"),
            ("IPPool large", "is ignored"),
            ("10.6.0.64/26", "is ignored"),
            ("node-8", "is ignored"),
        ];
        let missing = |problems: &str| {
            let is_missing =
                |one: &&(&str, &str)| !problems.contains(one.0) || !problems.contains(one.1);
            expected.iter().find(is_missing).copied()
        };
        let found = wait_some(TIMEOUT, || missing(&problems(&hosts[0])).is_none().then_some(()));
        if found.is_none() {
            let problems = problems(&hosts[0]);
            panic!("{:?} is not in {problems}", missing(&problems));
        }
        assert!(hosts[0].status()["problems"]["pools"]["text"].is_string());
        let conf = calico(true, false);
        let (one, two) = (hosts[0].pod("one", &conf), hosts[1].pod("two", &conf));
        all_reach_all(&[&one, &two]);

        // Requests for unusable pools fail, and name them.
        for pool in ["overlap", "size", "own", "missing"] {
            let ipam = json!({"type": "calico-ipam", "ipv4_pools": [pool]});
            let pod = RoutedPod::new(&hosts[0], pool, &with(conf.clone(), &json!({"ipam": ipam})));
            let why = pod.call("ADD").unwrap_err();
            assert!(why.contains(pool), "{why}");
        }

        // A container ends without DEL. When its address is collected, nothing else is.
        let leaked = hosts[0].pod("leaked", &conf);
        let address: IpAddr = leaked.addresses()[0];
        let end = hosts[0].host_ends().into_iter().find(|end| {
            hosts[0].node.sh(&format!("ip route show dev {end}")).contains(&address.to_string())
        });
        hosts[0].node.ns.ip(&["link", "del", &end.unwrap()]);
        drop(leaked);
        wait_until("the collection", || {
            !pod_allocations(&server).iter().any(|(other, ..)| *other == address)
                && hosts[0].journal() == ["net.c-one:eth0"]
        });
        assert_eq!(server.ctl(&["get", &kept, "--print-value-only"]).trim(), block.to_string());

        // A corrected pool works at once.
        put_pool(&server, "size", &plain("10.8.0.0/16", &json!({"blockSize": 28})));
        let ipam = json!({"type": "calico-ipam", "ipv4_pools": ["size"]});
        let pod = RoutedPod::new(&hosts[0], "now", &with(conf, &json!({"ipam": ipam})));
        wait_until("an address of the corrected pool", || pod.call("ADD").is_ok());
        let found =
            pod_allocations(&server).into_iter().find(|(_, handle, _)| handle == "net.c-now");
        assert!(found.is_none_or(|(address, ..)| address.to_string().starts_with("10.8.")));
    });
}
