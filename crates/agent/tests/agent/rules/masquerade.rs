// SPDX-License-Identifier: Apache-2.0
//! Which source address the destination of a packet sees.

use agent::dataplane::nft::RulesConf;
use agent::settings::Masquerade;
use testkit::{Ns, in_netns, require, run, run as program};

use super::lab::{
    self, Lab, NODE, NODE6, OTHER, OTHER6, POD, POD6, REMOTE, REMOTE6, TUNNEL, TUNNEL6, WORLD,
    WORLD6, check,
};
use super::{changes, conf, nets, nft, open};

const LISTED: &str = r#"table inet podwire-agent-test {
	comment "pod network: maintained by podwire agent"
	set network4 {
		type ipv4_addr
		flags interval
		comment "pods of all nodes"
		elements = { 10.5.0.0/16 }
	}

	set node4 {
		type ipv4_addr
		flags interval
		comment "pods of this node"
		elements = { 10.5.1.0/24 }
	}

	set direct4 {
		type ipv4_addr
		flags interval
		comment "destinations that are not masqueraded"
		elements = { 192.168.0.0/16, 224.0.0.0/4,
			     255.255.255.255 }
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x00004000 == 0x00004000 return comment "masqueraded by kube-proxy"
		ip daddr @node4 return comment "to pods of this node: they see the client's address"
		ip saddr @node4 ip daddr @network4 return comment "between pods: they see each other's addresses"
		ip saddr @network4 ip daddr != @direct4 masquerade fully-random comment "from pods to outside the network"
		ip saddr != @network4 ip daddr @network4 masquerade fully-random comment "from outside to pods of other nodes: answers return here"
	}
}
"#;

const DOCS: &str = include_str!("../../../../../docs/agent-rules.md");

#[test]
fn ruleset_is_listed_and_read_back_by_nft() {
    in_netns(|| {
        let masquerade =
            Masquerade { fully_random: true, except: nets(&["192.168.0.0/16", "192.168.7.0/24"]) };
        let conf = RulesConf {
            networks: nets(&["10.5.0.0/16"]),
            subnets: nets(&["10.5.1.0/24"]),
            sources: None,
            masquerade: Some(masquerade),
            forwards: false,
        };
        let mut rules = open();
        assert_eq!(changes(rules.preview(&conf)), ["create table inet podwire-agent-test"]);
        assert_eq!(nft("list ruleset"), "");
        assert_eq!(changes(rules.set(&conf)), ["create table inet podwire-agent-test"]);
        assert_eq!(nft("list ruleset"), LISTED);
        assert!(DOCS.contains(LISTED));
        assert_eq!(changes(rules.compare()), [""; 0]);
        let saved = "/run/saved.nft";
        std::fs::write(saved, LISTED).unwrap();
        nft("flush ruleset");
        program("nft", &["-f", saved]);
        assert_eq!(changes(rules.compare()), [""; 0], "restored ruleset is equal");
        assert_eq!(changes(rules.remove()), ["remove table inet podwire-agent-test"]);
        assert_eq!(nft("list ruleset"), "");
    });
}

#[test]
fn only_traffic_leaving_the_network_is_masqueraded() {
    in_netns(|| {
        require!(Program("socat"));
        let lab = Lab::new();
        changes(open().set(&conf()));
        for (world, node, pod, other, remote, tunnel) in [
            (WORLD, NODE, POD, OTHER, REMOTE, TUNNEL),
            (WORLD6, NODE6, POD6, OTHER6, REMOTE6, TUNNEL6),
        ] {
            check(&lab.pod, world, node);
            check(&lab.pod, other, pod);
            check(&lab.pod, remote, pod);
            check(&lab.remote, pod, remote);
            // A pod of this node sees the client. Answers of a pod of another node return through
            // this node.
            check(&lab.world, pod, world);
            check(&lab.world, remote, tunnel);
            check(&lab.node, remote, tunnel);
        }
    });
}

#[test]
fn exceptions_and_kube_proxy_mark_are_respected() {
    in_netns(|| {
        require!(Program("socat"));
        let lab = Lab::new();
        let mut rules = open();
        let except = nets(&["192.0.2.0/24", "2001:db8::/32"]);
        let masquerade = Some(Masquerade { fully_random: false, except });
        changes(rules.set(&RulesConf { masquerade, ..conf() }));
        check(&lab.pod, WORLD, POD);
        check(&lab.pod, WORLD6, POD6);
        let set = changes(rules.set(&conf()));
        let expected = [
            "set elements of set direct4: 224.0.0.0/4, 255.255.255.255/32",
            "set elements of set direct6: ff00::/8",
            "rewrite chain postrouting",
        ];
        assert_eq!(set, expected);
        check(&lab.pod, WORLD, NODE);
        nft("add table inet kube");
        nft("add chain inet kube marks { type filter hook prerouting priority mangle; }");
        nft("add rule inet kube marks ip saddr 10.5.1.2 meta mark set 0x4001");
        nft("add rule inet kube marks ip6 saddr fd05:0:0:1::2 meta mark set 0x4001");
        check(&lab.pod, WORLD, POD);
        check(&lab.pod, WORLD6, POD6);
        check(&lab.other, WORLD, NODE);
    });
}

#[test]
fn multicast_is_not_masqueraded() {
    in_netns(|| {
        require!(Program("socat"), Program("conntrack"));
        let lab = Lab::new();
        let mut rules = open();
        let to = |address: &str, options: &str| {
            let target = format!("UDP4-DATAGRAM:{address}:9,bind=10.5.1.1,{options}");
            lab.node.exec("sh", &["-c", &format!("echo x | socat -u - {target}")]);
            // Original and reply direction: the second destination is the address that answers go
            // to.
            let flows = run("conntrack", &["-L", "-p", "udp", "-d", address]);
            run("conntrack", &["-F"]);
            flows.split("dst=").nth(2).map(|text| text.split(' ').next().unwrap().to_owned())
        };
        let multicast = "ip-multicast-if=192.0.2.1";
        changes(rules.set(&conf()));
        assert_eq!(to("239.1.1.1", multicast).as_deref(), Some("10.5.1.1"));
        assert_eq!(to("192.0.2.2", multicast).as_deref(), Some(NODE), "the test detects it");
        let broadcast = "broadcast,so-bindtodevice=uplink";
        assert_eq!(to("255.255.255.255", broadcast).as_deref(), Some("10.5.1.1"));
    });
}

#[test]
fn two_agents_keep_separate_rules() {
    in_netns(|| {
        require!(Program("socat"));
        let lab = Lab::new();
        let mut rules = open();
        let mut other = agent::dataplane::nft::Rules::open("second network").unwrap();
        changes(rules.set(&conf()));
        let second = RulesConf {
            networks: nets(&["10.77.0.0/16"]),
            subnets: nets(&["10.77.1.0/24"]),
            ..conf()
        };
        run("iptables", &["-P", "FORWARD", "DROP"]);
        changes(other.set(&second));
        changes(rules.compare());
        assert_eq!(changes(other.compare()), [""; 0]);
        assert_eq!(changes(rules.compare()), [""; 0]);
        nft("list table inet podwire-agent-second_network");
        let saved = run("iptables-save", &["-t", "filter"]);
        assert_eq!(saved.matches("podwire agent").count(), 4, "{saved}");
        lab::check(&lab.pod, WORLD, NODE);
        changes(other.remove());
        assert_eq!(changes(rules.compare()), [""; 0]);
        assert!(
            Ns::here().try_exec("nft", &["list table inet podwire-agent-second_network"]).is_err()
        );
        lab::check(&lab.pod, WORLD, NODE);
    });
}
