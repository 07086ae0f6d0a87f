// SPDX-License-Identifier: Apache-2.0
//! Ownership of ports: a live container keeps its port, a dead container loses it, and a late DEL
//! removes nothing that belongs to another container.

use serde_json::json;
use testkit::in_netns;

use super::lab::{HOST4, Lab, port, portmap};
use crate::conf::with;
use crate::world::Plugins;

fn mapped(lab: &Lab) -> Vec<String> {
    lab.elements("ports4")
}

#[test]
fn port_of_live_container_is_rejected() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let at = |host| with(port(host, 80, "udp"), &json!({"hostIP": HOST4}));
        let config = portmap(&[port(8080, 80, "tcp"), at(53)]);
        lab.call(&config, 1).add().ok();
        let before = lab.ruleset();
        let words = "tcp port 8080 of every IPv4 address is already mapped to c1/eth0 net";
        lab.call(&portmap(&[port(9000, 1, "tcp"), port(8080, 1, "tcp")]), 2)
            .add()
            .fails_with(11, words);
        let words = "udp port 53 of 192.0.2.1 is already mapped to c1/eth0 net";
        lab.call(&portmap(&[at(53)]), 2).add().fails_with(11, words);
        assert_eq!(lab.ruleset(), before, "failed ADD changed the ruleset");
        let others = portmap(&[port(8080, 80, "udp"), port(53, 53, "tcp"), at(54)]);
        lab.call(&others, 2).add().ok();
        lab.call(&config, 1).run("DEL").ok();
        lab.call(&config, 2).container("c5").add().ok();
    });
}

/// A port of one address, or with conditions, overlaps the port of all addresses.
#[test]
fn overlapping_port_of_live_container_is_rejected() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        lab.world.on_host("addr add 192.0.2.2/24 dev eth0");
        let whole = portmap(&[port(8080, 80, "tcp")]);
        let at = |ip: &str| portmap(&[with(port(8080, 80, "tcp"), &json!({"hostIP": ip}))]);
        let (one, two) = (at(HOST4), at("192.0.2.2"));
        let conditions = with(whole.clone(), &json!({"conditionsV4": ["-d", "192.0.2.9"]}));
        lab.call(&whole, 1).add().ok();
        let before = lab.ruleset();
        for part in [&one, &conditions] {
            let words = "tcp port 8080 of every IPv4 address is already mapped to c1/eth0 net";
            lab.call(part, 2).add().fails_with(11, words);
        }
        assert_eq!(lab.ruleset().replace("ports-", ""), before.replace("ports-", ""));
        lab.call(&whole, 1).run("DEL").ok();
        lab.call(&one, 1).add().ok();
        lab.call(&two, 2).add().ok();
        lab.call(&two, 2).run("CHECK").ok();
        let words =
            "tcp port 8080 of one address, or under conditions, is already mapped to c1/eth0 net";
        let third = lab.call(&whole, 2).container("c3").netns("/run/netns/pod3");
        third.add().fails_with(11, words);
        lab.call(&two, 2).run("DEL").ok();
        third.add().fails_with(11, words);
        lab.call(&one, 1).run("DEL").ok();
        third.add().ok();
        lab.call(&one, 1)
            .add()
            .fails_with(11, "every IPv4 address is already mapped to c3/eth0 net");
        // ADD removes all elements of a dead container, including those that do not conflict.
        lab.world.host.exec("ip", &["netns", "del", "pod3"]);
        lab.call(&one, 1).add().ok();
        assert_eq!(mapped(&lab), Vec::<String>::new());
        lab.call(&one, 1).run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
        assert_eq!(lab.elements("owned"), Vec::<String>::new());
        // One container may have both mappings.
        let both =
            portmap(&[port(8080, 80, "tcp"), one["runtimeConfig"]["portMappings"][0].clone()]);
        lab.call(&both, 1).add().ok();
        lab.call(&both, 1).add().ok();
        lab.call(&both, 1).run("CHECK").ok();
    });
}

#[test]
fn port_of_dead_container_is_taken_over() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let config = portmap(&[port(8080, 80, "tcp"), port(5353, 53, "udp")]);
        let dead = lab.world.call(&config, 3).with_prev_result(&lab.results[1]);
        dead.add().ok();
        lab.call(&config, 1).add().fails_with(11, "c3/eth0 net");
        lab.world.host.exec("ip", &["netns", "del", "pod3"]);
        lab.call(&config, 1).add().ok();
        let mine = [
            "tcp . 8080 comment \"c1/eth0 net\" : 10.1.0.2 . 80",
            "udp . 5353 comment \"c1/eth0 net\" : 10.1.0.2 . 53",
        ];
        assert_eq!(mapped(&lab), mine);
        dead.run("DEL").ok();
        dead.run("DEL").ok();
        assert_eq!(mapped(&lab), mine, "late DEL removed ports of the new owner");
        lab.call(&config, 1).run("CHECK").ok();
        lab.call(&config, 1).run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
    });
}

/// The new container's namespace has the path of the dead container's namespace.
#[test]
fn port_of_dead_container_with_same_path_is_reused() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let config = portmap(&[port(8080, 80, "tcp")]);
        let dead = lab.world.call(&config, 3).with_prev_result(&lab.results[1]);
        dead.add().ok();
        lab.world.host.exec("ip", &["netns", "del", "pod3"]);
        lab.world.host.exec("ip", &["netns", "add", "pod3"]);
        lab.call(&config, 1).add().fails_with(11, "c3/eth0 net");
        let successor = dead.container("c4");
        successor.add().ok();
        dead.run("DEL").ok();
        assert_eq!(mapped(&lab), ["tcp . 8080 comment \"c4/eth0 net\" : 10.1.0.3 . 80"]);
        successor.run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
    });
}

/// Container B got the address of container A, and A's DEL comes last.
#[test]
fn late_del_keeps_elements_of_reassigned_address() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let first = lab.world.call(&portmap(&[port(8080, 80, "tcp")]), 1).container("a");
        let first = first.with_prev_result(&lab.results[0]);
        let second = lab.world.call(&portmap(&[port(8081, 80, "tcp")]), 1).container("b");
        let second = second.with_prev_result(&lab.results[0]);
        first.add().ok();
        second.add().ok();
        first.run("DEL").ok();
        second.run("CHECK").ok();
        assert_eq!(lab.elements("hairpin4"), ["\"br0\" . 10.1.0.2 comment \"b/eth0 net\""]);
        second.run("DEL").ok();
        assert_eq!(lab.all_elements(), Vec::<String>::new());
    });
}

/// The Go plugin identifies rules only by the container's id.
#[test]
fn del_keeps_ports_of_other_networks_and_interfaces() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let one = lab.call(&portmap(&[port(8080, 80, "tcp")]), 1);
        let two = lab.call(&with(portmap(&[port(8081, 80, "tcp")]), &json!({"name": "two"})), 1);
        let third = lab.call(&portmap(&[port(8082, 80, "tcp")]), 2).container("c1").ifname("eth1");
        let third = third.with_prev_result(&json!({"cniVersion": "1.1.0", "ips": [
            {"address": "10.1.0.9/24", "interface": 0}],
            "interfaces": [{"name": "eth1", "sandbox": "/run/netns/pod1"}]}));
        for call in [&one, &two, &third] {
            call.add().ok();
        }
        assert_eq!(mapped(&lab).len(), 3);
        two.run("DEL").ok();
        assert_eq!(mapped(&lab).len(), 2);
        one.run("DEL").ok();
        assert_eq!(mapped(&lab), ["tcp . 8082 comment \"c1/eth1 net\" : 10.1.0.9 . 80"]);
        third.run("CHECK").ok();
    });
}

#[test]
fn gc_removes_ports_of_unlisted_attachments() {
    in_netns(|| {
        let lab = Lab::new(&Plugins::ours());
        let config = |host| portmap(&[port(host, 80, "tcp")]);
        let elsewhere = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.9/24"}]});
        let other = lab.call(&with(config(8083), &json!({"name": "two"})), 1);
        let other = other.with_prev_result(&elsewhere);
        lab.call(&config(8081), 1).add().ok();
        lab.call(&config(8082), 2).add().ok();
        other.add().ok();
        let call = lab.call(&config(8081), 1);
        call.run("GC").ok();
        assert_eq!(mapped(&lab).len(), 3, "GC without a list removed a port");
        call.gc(&[("c1", "eth0"), ("c2", "eth0")]).ok();
        assert_eq!(mapped(&lab).len(), 3, "all are listed");
        call.gc(&[("c1", "eth0"), ("c2", "eth1")]).ok();
        assert_eq!(mapped(&lab).len(), 2, "one is listed");
        call.run("CHECK").ok();
        call.gc(&[]).ok();
        assert_eq!(mapped(&lab), ["tcp . 8083 comment \"c1/eth0 two\" : 10.1.0.9 . 80"]);
    });
}
