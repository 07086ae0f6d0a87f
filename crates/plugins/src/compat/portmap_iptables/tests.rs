// SPDX-License-Identifier: Apache-2.0
//! The rules as lines of text.

use super::*;
use crate::meta::portmap::conf::Backend;

fn mapping(
    family: Family,
    address: Option<&str>,
    protocol: Protocol,
    ports: (u16, u16),
) -> Mapping {
    let address = address.map(|text| text.parse().expect("an address"));
    Mapping { from: HostPort { family, address, protocol, port: ports.0 }, to: ports.1 }
}

fn verbatim() -> Verbatim {
    Verbatim {
        mark: Mark::Bit(13),
        conditions_v4: ["!", "-s", "192.0.2.0/24"].map(str::to_owned).to_vec(),
        conditions_v6: Vec::new(),
        listed: vec![(Protocol::Udp, 53), (Protocol::Tcp, 8080), (Protocol::Tcp, 9)],
    }
}

fn portmap() -> Portmap {
    Portmap {
        backend: Backend::Nftables,
        snat: true,
        masq_all: false,
        conditions_v4: None,
        conditions_v6: None,
        mappings: vec![
            mapping(Family::V4, Some("192.0.2.1"), Protocol::Udp, (53, 5353)),
            mapping(Family::V4, None, Protocol::Tcp, (8080, 80)),
            mapping(Family::V6, None, Protocol::Tcp, (8080, 80)),
            mapping(Family::V6, Some("fd00:2::1"), Protocol::Tcp, (9, 9)),
        ],
    }
}

fn with<T>(portmap: &Portmap, verbatim: &Verbatim, body: impl FnOnce(&DesiredRules) -> T) -> T {
    body(&DesiredRules { network: "net", container: "cid", portmap, verbatim, own: &[] })
}

fn own4() -> IpNet {
    "10.1.0.2/24".parse().expect("an address")
}

/// The table after these lines were applied.
fn saved(lines: &str) -> Saved {
    Saved::parse(&lines.replace("-N ", ":").replace("-I ", "-A "))
}

const SHARED: &str = "-N CNI-HOSTPORT-SETMARK
-A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark 0x2000/0x2000
-N CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-I POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ
-N CNI-HOSTPORT-DNAT
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
";

const OWN4: &str = "-N CNI-DN-f74d2f3ccf98e525d41d0
-A CNI-DN-f74d2f3ccf98e525d41d0 -s 10.1.0.0/24 -d 192.0.2.1/32 -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-f74d2f3ccf98e525d41d0 -s 127.0.0.1/32 -d 192.0.2.1/32 -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-f74d2f3ccf98e525d41d0 -d 192.0.2.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:5353
-A CNI-DN-f74d2f3ccf98e525d41d0 -s 10.1.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-f74d2f3ccf98e525d41d0 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-f74d2f3ccf98e525d41d0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"net\\\" id: \\\"cid\\\"\" -m multiport --dports 8080,9 ! -s 192.0.2.0/24 -j CNI-DN-f74d2f3ccf98e525d41d0
-A CNI-HOSTPORT-DNAT -p udp -m comment --comment \"dnat name: \\\"net\\\" id: \\\"cid\\\"\" -m multiport --dports 53 ! -s 192.0.2.0/24 -j CNI-DN-f74d2f3ccf98e525d41d0
";

const MAPPED6: &str = "-A CNI-DN-f74d2f3ccf98e525d41d0 -p tcp -m tcp --dport 8080 -j OTHER-MARK
-A CNI-DN-f74d2f3ccf98e525d41d0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination [fd00:1::2]:80
-A CNI-DN-f74d2f3ccf98e525d41d0 -d fd00:2::1/128 -p tcp -m tcp --dport 9 -j OTHER-MARK
-A CNI-DN-f74d2f3ccf98e525d41d0 -d fd00:2::1/128 -p tcp -m tcp --dport 9 -j DNAT --to-destination [fd00:1::2]:9
";

#[test]
fn additions_match_the_go_plugin() {
    let (portmap, verbatim) = (portmap(), verbatim());
    let lines = |saved: &Saved| with(&portmap, &verbatim, |all| additions(saved, all, own4()));
    assert_eq!(lines(&Saved::default()), format!("{SHARED}{OWN4}"));
    assert_eq!(lines(&saved(SHARED)), OWN4);
}

#[test]
fn external_mark_chain_replaces_own_marks() {
    let own = "fd00:1::2/64".parse().expect("an address");
    let portmap = Portmap { masq_all: true, ..portmap() };
    let verbatim = Verbatim { mark: Mark::By("OTHER-MARK".to_owned()), ..verbatim() };
    let lines = with(&portmap, &verbatim, |all| additions(&Saved::default(), all, own));
    assert!(!lines.contains("CNI-HOSTPORT-MASQ") && lines.contains(MAPPED6), "{lines}");
    let portmap = Portmap { snat: false, ..portmap };
    let lines = with(&portmap, &verbatim, |all| additions(&Saved::default(), all, own));
    assert!(!lines.contains("MARK"), "{lines}");
}

/// Replaced unless the container has two interfaces on the network.
#[test]
fn existing_chain_is_replaced_or_shared() {
    let (portmap, verbatim) = (portmap(), verbatim());
    let existing = saved(&format!("{SHARED}{OWN4}"));
    let add = |own: IpNet| with(&portmap, &verbatim, |all| additions(&existing, all, own));
    let again = add(own4());
    let (before, after) = again.split_once("-F CNI-DN-f74d2f3ccf98e525d41d0\n").expect("flushed");
    assert!(before.lines().all(|line| line.starts_with("-D CNI-HOSTPORT-DNAT -p")), "{before}");
    assert_eq!(OWN4.split_once('\n').map(|(_, rules)| rules), Some(after));
    let second = add("10.1.0.20/24".parse().expect("an address"));
    assert!(second.lines().all(|line| line.starts_with("-A ")), "{second}");
    assert!(second.contains("--to-destination 10.1.0.20:80"), "{second}");
}

/// A failed ADD removes nothing of another interface.
#[test]
fn rollback_keeps_ports_of_another_interface() {
    let (portmap, verbatim) = (portmap(), verbatim());
    let existing = saved(&format!("{SHARED}{OWN4}"));
    let second: IpNet = "10.1.0.20/24".parse().expect("an address");
    let both = with(&portmap, &verbatim, |all| additions(&existing, all, second));
    let both = saved(&format!("{SHARED}{OWN4}{both}"));
    let removed = with(&portmap, &verbatim, |all| own_removals(&both, all, second));
    assert_eq!(removed.matches("--to-destination 10.1.0.20:").count(), 2, "{removed}");
    assert_eq!(removed.lines().count(), 2, "the rest is shared: {removed}");
    // With its own ports.
    let own = Verbatim { listed: vec![(Protocol::Tcp, 8081)], ..verbatim };
    let mapped = vec![mapping(Family::V4, None, Protocol::Tcp, (8081, 80))];
    let portmap = Portmap { mappings: mapped, ..portmap };
    let added = with(&portmap, &own, |all| additions(&existing, all, second));
    let both = saved(&format!("{SHARED}{OWN4}{added}"));
    let removed = with(&portmap, &own, |all| own_removals(&both, all, second));
    assert_eq!(removed.lines().count(), added.lines().count(), "{added}");
    assert!(removed.lines().all(|line| line.contains("8081")), "{removed}");
}

#[test]
fn jumps_list_fifteen_ports_per_rule() {
    let listed = (1..=31).map(|port| (Protocol::Tcp, port)).collect();
    let verbatim = Verbatim { listed, ..verbatim() };
    let rules = with(&portmap(), &verbatim, |all| jumps(all, own4()));
    let lists: Vec<&str> = rules.iter().filter_map(|rule| rule.after("--dports")).collect();
    assert_eq!(lists.len(), 3);
    assert_eq!(lists[0], "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15");
    assert_eq!(lists[2], "31");
}

#[test]
fn stale_chains_are_found_by_network() {
    let existing = saved(&format!("{SHARED}{OWN4}"));
    let chain = chain("net", "cid");
    let stale = |network: &str, valid: &[&String]| {
        stale_chains(&existing, network, &valid.iter().map(|one| (*one).clone()).collect())
    };
    assert_eq!(stale("net", &[]), BTreeSet::from([chain.clone()]));
    assert_eq!(stale("ne", &[]).len(), 0);
    assert_eq!(stale("net", &[&chain]).len(), 0);
    let removal = removals(&existing, &chain);
    assert!(removal.ends_with(&format!("-F {chain}\n-X {chain}\n")), "{removal}");
    assert_eq!(removal.lines().count(), 4);
}

#[test]
fn long_comment_is_truncated() {
    let long = comment("net", &"x".repeat(300));
    assert_eq!(long.len(), 255);
    assert!(long.ends_with("x..."));
    assert_eq!(comment("net", "cid"), "dnat name: \"net\" id: \"cid\"");
}
