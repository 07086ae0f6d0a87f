// SPDX-License-Identifier: Apache-2.0
//! Creation, changes and reads of links.

use std::os::fd::AsFd;
use std::time::Duration;

use kernel::link::{self, Detail, IpvlanMode, Kind, MacvlanMode, NewLink, OperState, Peer};
use kernel::{Errno, IfIndex, MacAddr, Netlink};
use serde_json::json;
use testkit::{Ns, in_netns};

use crate::{has_flag, host_and_pod, index_of, ip, ip_json, name};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const POD_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

#[test]
fn veth_is_created_with_all_attributes() {
    in_netns(|| {
        let (host, pod_ns, pod) = host_and_pod();
        let peer = Peer {
            name: name("eth0"),
            mac: Some(POD_MAC),
            mtu: Some(1400),
            netns: Some(pod_ns.as_fd()),
        };
        let veth = NewLink {
            mac: Some(MAC),
            mtu: Some(1400),
            up: true,
            master: Some(index_of(&host, "br0")),
            ..NewLink::new(name("veth0"), Kind::Veth(peer))
        };
        host.apply([link::create(&veth)]).unwrap();

        let here = ip_json(&Ns::here(), "link show veth0");
        assert_eq!(here["linkinfo"]["info_kind"], "veth");
        assert_eq!(here["master"], "br0");
        assert_eq!(here["address"], "02:00:00:00:00:01");
        assert_eq!((&here["mtu"], &here["num_tx_queues"]), (&json!(1400), &json!(1)));
        assert_eq!(here["num_rx_queues"], 1);
        assert!(has_flag(&here, "UP"));
        let there = ip_json(&pod, "link show eth0");
        assert_eq!(there["address"], "02:00:00:00:00:02");
        assert_eq!((&there["mtu"], &there["num_tx_queues"]), (&json!(1400), &json!(1)));
        assert_eq!(there["num_rx_queues"], 1);
        assert!(!has_flag(&there, "UP"));

        let error = host.apply([link::create(&veth)]).unwrap_err();
        assert!(error.already_exists());
        assert_eq!(error.to_string(), "create link veth0: File exists");
    });
}

#[test]
fn bridge_and_ifb_are_created() {
    in_netns(|| {
        let nl = Netlink::open().unwrap();
        let bridge = NewLink::new(name("br1"), Kind::Bridge { vlan_filtering: None });
        let ifb = NewLink { txqlen: Some(77), ..NewLink::new(name("ifb1"), Kind::Ifb) };
        nl.apply([link::create(&bridge), link::create(&ifb)]).unwrap();
        assert_eq!(ip_json(&Ns::here(), "link show br1")["linkinfo"]["info_kind"], "bridge");
        let ifb = ip_json(&Ns::here(), "link show ifb1");
        assert_eq!((&ifb["linkinfo"]["info_kind"], &ifb["txqlen"]), (&json!("ifb"), &json!(77)));
        let of_kind = |kind| link::list_of_kind(&nl, kind).unwrap().into_iter().map(|l| l.name);
        assert_eq!(of_kind("ifb").collect::<Vec<_>>(), [name("ifb1")]);
        assert_eq!(of_kind("nonsense").collect::<Vec<_>>(), []);
    });
}

#[test]
fn macvlan_is_created_in_another_namespace() {
    in_netns(|| {
        let (host, pod_ns, pod) = host_and_pod();
        ip("link add parent0 type veth peer name parent1");
        let macvlan_kind = Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: Some(500) };
        let macvlan = NewLink {
            parent: Some(index_of(&host, "parent0")),
            netns: Some(pod_ns.as_fd()),
            ..NewLink::new(name("eth0"), macvlan_kind)
        };
        host.apply([link::create(&macvlan)]).unwrap();
        let shown = ip_json(&pod, "link show eth0")["linkinfo"]["info_data"].clone();
        assert_eq!((&shown["mode"], &shown["bcqueuelen"]), (&json!("bridge"), &json!(500)));
        let observed = link::by_name(&pod_ns.netlink().unwrap(), name("eth0")).unwrap().unwrap();
        assert_eq!(observed.detail, Detail::Macvlan(Some(MacvlanMode::Bridge)));
        assert_eq!(observed.link, Some(index_of(&host, "parent0")));
        assert!(observed.link_netnsid.is_some());
    });
}

/// Kernels before 6.15 check the name in the socket's namespace instead of the new link's
/// namespace.
#[test]
fn vm_link_with_index_may_have_a_name_of_the_host() {
    in_netns(|| {
        let (host, pod_ns, pod) = host_and_pod();
        ip("link add eth0 type veth peer name parent1");
        let kind = Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None };
        let macvlan = NewLink {
            parent: Some(index_of(&host, "eth0")),
            netns: Some(pod_ns.as_fd()),
            index: Some(IfIndex(0x4000_0001)),
            ..NewLink::new(name("eth0"), kind)
        };
        host.apply([link::create(&macvlan)]).unwrap();
        assert_eq!(ip_json(&pod, "link show eth0")["ifindex"], 0x4000_0001);
        assert!(host.apply([link::create(&macvlan)]).unwrap_err().already_exists());
    });
}

/// Creates a link of a kind that not every kernel supports, and compares it with the output of
/// `ip`.
fn check_kind(kind: Kind<'_>, detail: Detail, shown: &str, value: &serde_json::Value) {
    let nl = Netlink::open().unwrap();
    ip("link add parent0 type veth peer name parent1");
    let needs_parent = matches!(kind, Kind::Ipvlan(_) | Kind::Vlan(_));
    let parent = needs_parent.then(|| index_of(&nl, "parent0"));
    nl.apply([link::create(&NewLink { parent, ..NewLink::new(name("x0"), kind) })]).unwrap();
    let observed = ip_json(&Ns::here(), "link show x0");
    assert_eq!(observed["linkinfo"]["info_kind"], kind.name());
    assert_eq!(&observed["linkinfo"]["info_data"][shown], value);
    assert_eq!(link::by_name(&nl, name("x0")).unwrap().unwrap().detail, detail);
}

#[test]
fn support_of_a_kind_is_probed_without_a_link() {
    in_netns(|| {
        let nl = Netlink::open().unwrap();
        assert!(link::is_supported(&nl, "veth").unwrap());
        assert!(link::is_supported(&nl, "bridge").unwrap());
        assert!(!link::is_supported(&nl, "no-such-kind").unwrap());
        assert_eq!(ip("-o link show").lines().count(), 1);
    });
}

#[test]
fn vm_dummy_is_created() {
    in_netns(|| {
        testkit::not_run_unless!(Link("dummy"));
        check_kind(Kind::Dummy, Detail::None, "none", &json!(null));
    });
}

#[test]
fn vm_vlan_is_created() {
    in_netns(|| {
        testkit::not_run_unless!(Link("vlan"));
        check_kind(Kind::Vlan(100), Detail::Vlan(100), "id", &json!(100));
    });
}

#[test]
fn vm_ipvlan_is_created() {
    in_netns(|| {
        testkit::not_run_unless!(Link("ipvlan"));
        let detail = Detail::Ipvlan(Some(IpvlanMode::L3s));
        check_kind(Kind::Ipvlan(IpvlanMode::L3s), detail, "mode", &json!("l3s"));
    });
}

#[test]
fn vm_vrf_is_created() {
    in_netns(|| {
        testkit::not_run_unless!(Link("vrf"));
        check_kind(Kind::Vrf(1000), Detail::Vrf(1000), "table", &json!(1000));
    });
}

#[test]
fn setters_change_a_link() {
    in_netns(|| {
        ip("link add br0 type bridge");
        ip("link add a0 type veth peer name a1");
        let nl = Netlink::open().unwrap();
        let (a0, br0) = (index_of(&nl, "a0"), index_of(&nl, "br0"));
        nl.apply([
            link::set_mac(a0, MAC),
            link::set_mtu(a0, 1300),
            link::set_master(a0, br0),
            link::set_promisc(name("a0"), true),
            link::set_alias(a0, "podwire: test"),
            link::set_up(name("a0")),
            link::set_name(index_of(&nl, "a1"), name("b1")),
        ])
        .unwrap();
        let observed = ip_json(&Ns::here(), "link show a0");
        assert_eq!(observed["address"], "02:00:00:00:00:01");
        assert_eq!(observed["mtu"], 1300);
        assert_eq!(observed["master"], "br0");
        assert_eq!(observed["ifalias"], "podwire: test");
        assert!(has_flag(&observed, "UP") && has_flag(&observed, "PROMISC"));
        ip_json(&Ns::here(), "link show b1");

        nl.apply([
            link::set_down(a0),
            link::set_no_master(a0),
            link::set_promisc(a0, false),
            link::set_alias(a0, ""),
        ])
        .unwrap();
        let observed = ip_json(&Ns::here(), "link show a0");
        assert_eq!([&observed["master"], &observed["ifalias"]], [&json!(null); 2]);
        assert!(!has_flag(&observed, "UP") && !has_flag(&observed, "PROMISC"));
    });
}

#[test]
fn attributes_are_set_by_one_message() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        let nl = Netlink::open().unwrap();
        let all = link::Attributes {
            mac: Some(MAC),
            mtu: Some(1300),
            promisc: Some(true),
            allmulti: Some(true),
            txqlen: Some(55),
        };
        nl.apply([link::set_attributes(name("a0"), &all)]).unwrap();
        let observed = ip_json(&Ns::here(), "link show a0");
        assert_eq!((&observed["mtu"], &observed["txqlen"]), (&json!(1300), &json!(55)));
        assert_eq!(observed["address"], "02:00:00:00:00:01");
        assert!(has_flag(&observed, "PROMISC") && has_flag(&observed, "ALLMULTI"));
        let link = link::by_name(&nl, name("a0")).unwrap().unwrap();
        assert!(link.is_promisc() && link.is_allmulti());
        let off = link::Attributes {
            promisc: Some(false),
            allmulti: Some(false),
            ..link::Attributes::default()
        };
        nl.apply([link::set_attributes(link.index, &off)]).unwrap();
        let observed = ip_json(&Ns::here(), "link show a0");
        assert!(!has_flag(&observed, "PROMISC") && !has_flag(&observed, "ALLMULTI"));
        assert_eq!(observed["mtu"], 1300, "attributes that are not given stay");
    });
}

#[test]
fn ipv4_conf_is_set_without_procfs() {
    in_netns(|| {
        ip("link add a0 type veth peer name a.1");
        let nl = Netlink::open().unwrap();
        nl.apply([
            link::set_inet_conf(name("a0"), &[(link::ARP_NOTIFY, 1), (link::PROXY_ARP, 1)]),
            link::set_inet_conf(name("a.1"), &[(link::RP_FILTER, 2), (link::ROUTE_LOCALNET, 1)]),
        ])
        .unwrap();
        let read = |path: &str| testkit::run("cat", &[&format!("/proc/sys/net/ipv4/conf/{path}")]);
        assert_eq!(read("a0/arp_notify"), "1\n");
        assert_eq!(read("a0/proxy_arp"), "1\n");
        assert_eq!(read("a.1/rp_filter"), "2\n");
        assert_eq!(read("a.1/route_localnet"), "1\n");
    });
}

#[test]
fn group_and_inet_conf_are_set_with_the_link() {
    in_netns(|| {
        let (host, pod_ns, pod) = host_and_pod();
        let mut new = crate::link_lifecycle::veth(&host, "veth0", &pod_ns);
        new.group = Some(0x7abc_def0);
        host.apply([link::create(&new)]).unwrap();
        assert_eq!(ip_json(&Ns::here(), "link show veth0")["group"], "2059198192");
        assert_eq!(link::by_name(&host, name("veth0")).unwrap().unwrap().group, 0x7abc_def0);

        let inside = pod_ns.netlink().unwrap();
        let notify = [(link::ARP_NOTIFY, 1)];
        inside.apply([link::set_up_with_inet_conf(name("eth0"), &notify)]).unwrap();
        assert!(has_flag(&ip_json(&pod, "link show eth0"), "UP"));
        assert_eq!(pod.exec("cat", &["/proc/sys/net/ipv4/conf/eth0/arp_notify"]), "1\n");
    });
}

#[test]
fn accept_ra_is_read() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        let nl = Netlink::open().unwrap();
        for value in ["0", "1", "2"] {
            testkit::run(
                "sh",
                &["-c", &format!("echo {value} > /proc/sys/net/ipv6/conf/a0/accept_ra")],
            );
            let link = link::by_name(&nl, name("a0")).unwrap().unwrap();
            assert_eq!(link.accept_ra, value.parse().ok());
        }
    });
}

#[test]
fn link_attributes_are_read() {
    in_netns(|| {
        ip("link add br0 type bridge");
        ip("link add a0 type veth peer name a1");
        ip("link set a0 mtu 1400 address 02:00:00:00:00:01 txqueuelen 55 master br0 up");
        ip("link set a0 alias hello");
        ip("link set a0 promisc on");
        ip("link set a0 type bridge_slave hairpin on isolated on neigh_suppress on learning off");
        let nl = Netlink::open().unwrap();
        let (a0, a1, br0) = (index_of(&nl, "a0"), index_of(&nl, "a1"), index_of(&nl, "br0"));

        let a0_now = || link::by_name(&nl, name("a0")).unwrap().unwrap();
        // The kernel updates the state asynchronously.
        testkit::wait_for("operstate of a0 is lower layer down", Duration::from_secs(30), || {
            a0_now().operstate == OperState::LowerLayerDown
        });
        let link = a0_now();
        assert_eq!((link.index, link.name), (a0, name("a0")));
        assert!(link.is_kind("veth") && link.is_up() && !link.is_loopback());
        assert_eq!((link.mac, link.mtu, link.txqlen), (Some(MAC), 1400, 55));
        assert_eq!((link.master, link.link, link.link_netnsid), (Some(br0), Some(a1), None));
        assert_eq!(link.alias.as_deref(), Some("hello"));
        // One user is this test; the bridge is another, because flooding and learning are not both
        // on.
        assert!(link.promiscuity >= 1, "{}", link.promiscuity);
        let port = link.port.unwrap();
        assert_eq!((port.hairpin, port.isolated), (Some(true), Some(true)));
        assert_eq!((port.neigh_suppress, port.learning), (Some(true), Some(false)));
        assert_eq!(port.flood, Some(true));

        assert_eq!(link::by_index(&nl, a0).unwrap().as_ref(), Some(&link));
        assert_eq!(link::by_name(&nl, name("none")).unwrap(), None);
        assert_eq!(link::by_index(&nl, IfIndex(9999)).unwrap(), None);
        assert_eq!(link::index_of(&nl, name("none")).unwrap_err().errno, Errno::NODEV);

        let bridge = link::by_index(&nl, br0).unwrap().unwrap();
        assert_eq!(bridge.detail, Detail::Bridge { vlan_filtering: false });
        let names = |links: Vec<link::Link>| {
            let mut names: Vec<_> = links.iter().map(|link| link.name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(link::list(&nl).unwrap()), ["a0", "a1", "br0", "lo"]);
        assert_eq!(names(link::list_of_master(&nl, br0).unwrap()), ["a0"]);
        assert!(link::list_of_master(&nl, IfIndex(9999)).unwrap().is_empty());
    });
}
