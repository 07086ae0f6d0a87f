// SPDX-License-Identifier: Apache-2.0
//! Properties of results: printing and parsing in a version keeps everything the version can express, and parsing
//! never panics.

use std::net::IpAddr;

use cni::{CniResult, Dns, Interface, IpConfig, Route, Version};
use ipnet::IpNet;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Mostly keys that the parser reads, so that arbitrary JSON resembles a result.
fn key() -> impl Strategy<Value = String> {
    let known = "cniVersion interfaces ips routes dns ip4 ip6 ip address gateway interface dst gw \
                 name mac table nameservers IPS";
    let known: Vec<String> = known.split(' ').map(str::to_owned).collect();
    prop_oneof![proptest::sample::select(known), "[a-z]{1,3}"]
}

/// Keys that are in no version of the specification.
fn extra() -> impl Strategy<Value = Map<String, Value>> {
    btree_map("x-[a-z]{1,4}", json(), 0..2).prop_map(|map| map.into_iter().collect())
}

fn ip() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_map(|ip| ip.to_canonical())
}

fn net() -> impl Strategy<Value = IpNet> {
    (ip(), 0_u8..=128).prop_map(|(ip, length)| {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, length.min(most)).unwrap()
    })
}

fn interface() -> impl Strategy<Value = Interface> {
    let texts = ("[a-z0-9]{0,5}", "[a-f0-9:]{0,5}", "[a-z/]{0,9}", "[a-z/]{0,5}", "[a-f0-9:]{0,5}");
    (texts, any::<u32>(), extra()).prop_map(|(texts, mtu, extra)| {
        let (name, mac, sandbox, socket_path, pci_id) = texts;
        Interface { name, mac, mtu, sandbox, socket_path, pci_id, extra }
    })
}

fn ip_config() -> impl Strategy<Value = IpConfig> {
    (proptest::option::of(0_usize..9), net(), proptest::option::of(ip()), extra()).prop_map(
        |(interface, address, gateway, extra)| IpConfig { interface, address, gateway, extra },
    )
}

fn route() -> impl Strategy<Value = Route> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>());
    (net(), proptest::option::of(ip()), numbers, any::<(Option<u32>, Option<u8>)>(), extra())
        .prop_map(|(dst, gw, (mtu, advmss, priority), (table, scope), extra)| Route {
            dst,
            gw,
            mtu,
            advmss,
            priority,
            table,
            scope,
            extra,
        })
}

fn dns() -> impl Strategy<Value = Dns> {
    let list = || vec("[a-z.]{1,5}", 0..3);
    (list(), "[a-z.]{0,5}", list(), list(), extra()).prop_map(
        |(nameservers, domain, search, options, extra)| Dns {
            nameservers,
            domain,
            search,
            options,
            extra,
        },
    )
}

fn result() -> impl Strategy<Value = CniResult> {
    (vec(interface(), 0..3), vec(ip_config(), 0..4), vec(route(), 0..4), dns(), extra()).prop_map(
        |(interfaces, ips, routes, dns, extra)| CniResult { interfaces, ips, routes, dns, extra },
    )
}

/// Returns the part of a result that a version can express, or `None` if it can express no part.
fn expressible(result: &CniResult, version: Version) -> Option<CniResult> {
    let mut left = result.clone();
    if version < Version::V1_0_0 {
        for interface in &mut left.interfaces {
            (interface.mtu, interface.socket_path, interface.pci_id) = (0, "".into(), "".into());
        }
    }
    if version < Version::V0_3_0 {
        left.interfaces.clear();
        let first = |is_ipv4| {
            let mut first =
                result.ips.iter().find(|ip| ip.address.addr().is_ipv4() == is_ipv4)?.clone();
            first.interface = None;
            Some(first)
        };
        left.ips = [first(true), first(false)].into_iter().flatten().collect();
        let of_family = |ip: &IpConfig| {
            let is_ipv4 = ip.address.addr().is_ipv4();
            let routes =
                result.routes.iter().filter(move |route| route.dst.addr().is_ipv4() == is_ipv4);
            routes.map(|route| Route {
                extra: route.extra.clone(),
                ..Route::new(route.dst, route.gw)
            })
        };
        left.routes = left.ips.iter().flat_map(of_family).collect();
        if left.ips.is_empty() {
            return None;
        }
    }
    Some(left)
}

proptest! {
    #[test]
    fn printing_and_parsing_keeps_what_a_version_has(result in result()) {
        for version in Version::ALL {
            let printed = result.to_json(*version);
            let Some(expected) = expressible(&result, *version) else {
                prop_assert!(printed.is_err(), "{version}");
                continue;
            };
            let printed = printed.unwrap();
            // The stated version takes precedence over the fallback.
            let parsed = CniResult::parse(printed.clone(), Version::V0_1_0).unwrap();
            prop_assert_eq!(&parsed, &expected, "{}", version);
            prop_assert_eq!(parsed.to_json(*version).unwrap(), printed);
        }
    }

    #[test]
    fn parsing_never_panics(value in json(), version in proptest::sample::select(Version::ALL)) {
        if let Ok(result) = CniResult::parse(value, version) {
            for version in Version::ALL {
                let _ = result.to_json(*version);
            }
        }
    }
}
