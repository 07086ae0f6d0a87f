// SPDX-License-Identifier: Apache-2.0
//! A host with a management network, a data network and both families.

use super::*;

fn address(text: &str) -> Address {
    Address {
        ip: text.parse().unwrap(),
        prefix_len: 24,
        is_deprecated: false,
        is_temporary: false,
        is_permanent: true,
    }
}

fn interface(index: u32, name: &str, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|text| address(text)).collect();
    let name = name.parse().unwrap();
    Interface { index: IfIndex(index), name, mtu: 1500, is_up: true, addresses }
}

fn facts() -> Facts {
    Facts {
        interfaces: vec![
            interface(1, "lo", &["127.0.0.1", "::1"]),
            interface(2, "eth0", &["fe80::2", "192.0.2.2", "192.0.2.3", "2001:db8::2"]),
            interface(5, "empty0", &[]),
            interface(3, "ens3", &["10.9.0.3", "fe80::3", "fd00:9::3"]),
            interface(4, "empty", &[]),
        ],
        default_v4: Some(IfIndex(2)),
        default_v6: Some(IfIndex(2)),
        reaching: Some((IfIndex(3), Some("10.9.0.3".parse().unwrap()))),
        internal: Vec::new(),
    }
}

fn v4() -> Wish<'static> {
    Wish { ipv4: true, ..Wish::default() }
}

fn name_of(wish: &Wish<'_>, facts: &Facts) -> String {
    choose(wish, facts).unwrap().name.to_string()
}

#[test]
fn default_route_decides_without_settings() {
    let chosen = choose(&Wish { ipv6: true, ..v4() }, &facts()).unwrap();
    assert_eq!(chosen.name.as_str(), "eth0");
    assert_eq!(chosen.local_v4, Some("192.0.2.2".parse().unwrap()));
    assert_eq!(chosen.local_v6, Some("2001:db8::2".parse().unwrap()), "global before link-local");
    assert_eq!((chosen.public_v4, chosen.public_v6), (chosen.local_v4, chosen.local_v6));
}

#[test]
fn kubernetes_address_comes_before_default_route() {
    let facts = Facts { internal: vec!["10.9.0.3".parse().unwrap()], ..facts() };
    assert_eq!(name_of(&v4(), &facts), "ens3");
    let gone = Facts { internal: vec!["10.9.0.9".parse().unwrap()], ..facts };
    assert_eq!(name_of(&v4(), &gone), "eth0");
}

#[test]
fn interfaces_are_tried_in_order() {
    let names = ["nowhere".to_owned(), "192.0.2.3".to_owned(), "ens3".to_owned()];
    let chosen = choose(&Wish { interfaces: &names, ..v4() }, &facts()).unwrap();
    assert_eq!(chosen.name.as_str(), "eth0");
    assert_eq!(chosen.local_v4, Some("192.0.2.3".parse().unwrap()), "the configured address");
}

#[test]
fn pattern_matches_addresses_before_names() {
    let by = |text: &str| {
        let patterns = [Regex::new(text).unwrap()];
        choose(&Wish { patterns: &patterns, ..v4() }, &facts()).map(|one| one.name.to_string())
    };
    assert_eq!(by(r"^10\.9\."), Ok("ens3".to_owned()));
    assert_eq!(by("^ens"), Ok("ens3".to_owned()));
    assert_eq!(by("^e"), Ok("eth0".to_owned()));
    assert_eq!(by("^(empty0|ens3)$"), Ok("ens3".to_owned()), "the first with an address");
    assert_eq!(by("^empty$"), Err("interface empty has no usable IPv4 address".to_owned()));
    assert_eq!(by("^wl"), Err("no interface's address or name matches \"^wl\"".to_owned()));
}

#[test]
fn route_selects_interface_and_address() {
    let wish = Wish { can_reach: Some("198.51.100.1".parse().unwrap()), ..v4() };
    assert_eq!(name_of(&wish, &facts()), "ens3");
    let reason = choose(&wish, &Facts { reaching: None, ..facts() }).unwrap_err();
    assert_eq!(reason, "no route to 198.51.100.1");
}

#[test]
fn public_address_alone_must_be_on_the_host() {
    let wish = Wish { public_v4: Some("10.9.0.3".parse().unwrap()), ..v4() };
    assert_eq!(name_of(&wish, &facts()), "ens3");
    let wish = Wish { public_v4: Some("203.0.113.1".parse().unwrap()), ..v4() };
    assert_eq!(choose(&wish, &facts()).unwrap_err(), "no interface has 203.0.113.1");
    let names = ["ens3".to_owned()];
    let chosen = choose(&Wish { interfaces: &names, ..wish }, &facts()).unwrap();
    assert_eq!(chosen.local_v4, Some("10.9.0.3".parse().unwrap()));
    assert_eq!(chosen.public_v4, Some("203.0.113.1".parse().unwrap()), "behind NAT");
}

#[test]
fn error_lists_why_each_candidate_fails() {
    let names = ["empty".to_owned(), "nowhere".to_owned()];
    let reason = choose(&Wish { interfaces: &names, ..v4() }, &facts()).unwrap_err();
    assert_eq!(
        reason,
        "interface empty has no usable IPv4 address; there is no interface \"nowhere\""
    );
    let split = Facts { default_v6: Some(IfIndex(3)), ..facts() };
    let reason = choose(&Wish { ipv6: true, ..v4() }, &split).unwrap_err();
    assert!(reason.starts_with("the default routes of IPv4 and IPv6"), "{reason}");
    let none = Facts { default_v4: None, ..facts() };
    assert_eq!(choose(&v4(), &none).unwrap_err(), "there is no default route");
}

#[test]
fn permanent_address_is_preferred() {
    let mut facts = facts();
    facts.interfaces[1].addresses = vec![
        Address { is_deprecated: true, ..address("192.0.2.9") },
        Address { is_permanent: false, ..address("192.0.2.8") },
        address("192.0.2.7"),
    ];
    let chosen = choose(&v4(), &facts).unwrap();
    assert_eq!(chosen.local_v4, Some("192.0.2.7".parse().unwrap()));
}

const BOTH: [Carrier; 3] = [(true, true), (true, false), (false, true)];
const V4: [Carrier; 3] = [(true, false), (true, false), (false, true)];

fn known(v4: Option<&str>, v6: Option<&str>) -> Addresses {
    Addresses { v4: v4.map(|text| text.parse().unwrap()), v6: v6.map(|text| text.parse().unwrap()) }
}

/// Returns the local addresses that are chosen on `eth0`, which has only these addresses.
fn chosen(
    carriers: &[Carrier],
    addresses: &[&str],
    published: Addresses,
) -> Result<Addresses, String> {
    let interfaces = vec![interface(2, "eth0", addresses)];
    let chosen =
        choose_among(carriers, &Wish::default(), &Facts { interfaces, ..facts() }, published)?;
    Ok(Addresses { v4: chosen.local_v4, v6: chosen.local_v6 })
}

#[test]
fn link_local_address_is_the_last_resort() {
    let unknown = Addresses::default();
    assert_eq!(
        chosen(&BOTH, &["192.0.2.2", "fe80::2"], unknown),
        Ok(known(Some("192.0.2.2"), None))
    );
    assert_eq!(
        chosen(&V4, &["fe80::2", "2001:db8::2"], unknown),
        Ok(known(None, Some("2001:db8::2")))
    );
    let only_link = [(false, true), (true, false), (false, true)];
    assert_eq!(chosen(&only_link, &["fe80::2"], unknown), Ok(known(None, Some("fe80::2"))));
}

#[test]
fn node_waits_for_its_published_family() {
    let published = known(Some("192.0.2.2"), None);
    let error = Err("interface eth0 has no usable IPv4 address".to_owned());
    assert_eq!(chosen(&V4, &["2001:db8::2"], published), error);
    let both = known(Some("192.0.2.2"), Some("2001:db8::2"));
    assert_eq!(chosen(&BOTH, &["2001:db8::2"], both), Ok(known(None, Some("2001:db8::2"))));
}

#[test]
fn previous_interface_stays_while_it_is_up() {
    let wish = Wish { before: Some(IfIndex(3)), ..v4() };
    assert_eq!(name_of(&wish, &facts()), "ens3");
    let none = Facts { default_v4: None, ..facts() };
    assert_eq!(name_of(&wish, &none), "ens3");
    let mut down = facts();
    down.interfaces[3].is_up = false;
    assert_eq!(name_of(&wish, &down), "eth0");
}

#[test]
fn smallest_mtu_ignores_interfaces_that_are_down_or_stay_in_the_host() {
    let with_mtu = |index, name, mtu| Interface { mtu, ..interface(index, name, &[]) };
    let down = Interface { is_up: false, ..with_mtu(9, "eth9", 1200) };
    let inner = [with_mtu(6, "cali1234567890a", 1300), with_mtu(7, "br0", 1300), down];
    let facts = |more: Vec<Interface>| Facts {
        interfaces: [facts().interfaces, inner.to_vec(), more].concat(),
        ..Facts::default()
    };
    let smallest = |more, underlay| facts(more).smallest_mtu(IfIndex(underlay));
    assert_eq!(smallest(vec![], 2), Some(1500));
    assert_eq!(smallest(vec![with_mtu(8, "wlan0", 1450)], 2), Some(1450));
    assert_eq!(smallest(vec![], 7), Some(1300), "the underlay counts under any name");
}
