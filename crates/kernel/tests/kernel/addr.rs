// SPDX-License-Identifier: Apache-2.0
//! Addresses of links.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::addr::{self, AddrOptions, DadResult};
use kernel::{IfIndex, Netlink};
use serde_json::{Value, json};
use testkit::{Ns, in_netns};

use crate::{index_of, ip, ip_json};

fn shown(link: &str) -> Vec<Value> {
    let link = ip_json(&Ns::here(), &format!("addr show {link}"));
    let infos = link["addr_info"].as_array().unwrap().iter();
    infos.filter(|info| info["scope"] != "link").cloned().collect()
}

#[test]
fn addresses_are_added_and_removed() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("link set a1 up");
        ip("link set a0 up");
        let nl = Netlink::open().unwrap();
        let a0 = index_of(&nl, "a0");
        let v4 = "10.1.2.3/24".parse().unwrap();
        let v6 = "fd00::3/64".parse().unwrap();
        let nodad = AddrOptions { nodad: true, ..AddrOptions::default() };
        nl.apply([addr::add(a0, v4, nodad), addr::add(a0, v6, nodad)]).unwrap();
        let observed = shown("a0");
        assert_eq!(observed[0]["local"], "10.1.2.3");
        assert_eq!(
            (&observed[0]["prefixlen"], &observed[0]["broadcast"]),
            (&json!(24), &json!("10.1.2.255"))
        );
        assert_eq!(
            (&observed[1]["local"], &observed[1]["nodad"]),
            (&json!("fd00::3"), &json!(true))
        );
        assert_eq!(observed[1]["tentative"], Value::Null);

        assert!(nl.apply([addr::add(a0, v4, nodad)]).unwrap_err().already_exists());
        nl.apply([addr::replace(a0, v4, nodad)]).unwrap();
        nl.apply([addr::remove(a0, v4), addr::remove(a0, v6)]).unwrap();
        assert!(shown("a0").is_empty());
        assert!(nl.apply([addr::remove(a0, v4)]).unwrap_err().is_not_found());
    });
}

#[test]
fn wait_for_dad_returns_each_result() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("link set a1 up");
        let nl = Netlink::open().unwrap();
        let (a0, a1) = (index_of(&nl, "a0"), index_of(&nl, "a1"));
        let mut monitor = addr::monitor().unwrap();
        let address: IpNet = "fd00::7/64".parse().unwrap();
        let nodad = AddrOptions { nodad: true, ..AddrOptions::default() };
        nl.apply([addr::add(a0, address, nodad), addr::add(a1, address, AddrOptions::default())])
            .unwrap();
        let mut wait =
            |index, deadline| addr::wait_for_dad(&nl, &mut monitor, index, deadline).unwrap();
        // Without a carrier the kernel sends no probe; with one it does so after a random delay.
        assert_eq!(wait(a1, Instant::now()), DadResult::Timeout);
        ip("link set a0 up");
        let deadline = Instant::now() + Duration::from_secs(30);
        assert_eq!(wait(a1, deadline), DadResult::Duplicate(address.addr()));
        assert_eq!(wait(a0, deadline), DadResult::Done);
    });
}

#[test]
fn address_options_take_effect() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("link set a0 up");
        let nl = Netlink::open().unwrap();
        let options = AddrOptions { no_prefix_route: true, scope: 253, nodad: false };
        let a0 = index_of(&nl, "a0");
        nl.apply([addr::add(a0, "169.254.1.1/32".parse().unwrap(), options)]).unwrap();
        let observed = &ip_json(&Ns::here(), "addr show a0")["addr_info"][0];
        assert_eq!(
            (&observed["scope"], &observed["noprefixroute"]),
            (&json!("link"), &json!(true))
        );
        assert_eq!(observed["broadcast"], Value::Null);
    });
}

#[test]
fn list_returns_addresses_of_one_or_all_links() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("addr add 10.1.2.3/24 broadcast + dev a0 label a0:1");
        ip("addr add fd00::3/64 dev a0 nodad noprefixroute");
        ip("addr add 10.9.9.1 peer 10.9.9.2 dev a1");
        let nl = Netlink::open().unwrap();
        let (a0, a1) = (index_of(&nl, "a0"), index_of(&nl, "a1"));
        let observed = addr::list(&nl, Some(a0)).unwrap();
        assert_eq!(observed.len(), 2);
        assert_eq!(observed[0].prefix, "10.1.2.3/24".parse().unwrap());
        assert_eq!(observed[0].broadcast, Some("10.1.2.255".parse().unwrap()));
        assert_eq!((observed[0].label.as_deref(), observed[0].peer), (Some("a0:1"), None));
        assert_eq!(observed[1].prefix, "fd00::3/64".parse().unwrap());
        let flags = addr::IFA_F_NODAD | addr::IFA_F_NOPREFIXROUTE;
        assert_eq!(observed[1].flags & flags, flags);
        let observed = addr::list(&nl, Some(a1)).unwrap();
        assert_eq!(observed[0].prefix, "10.9.9.1/32".parse().unwrap());
        assert_eq!(observed[0].peer, Some("10.9.9.2".parse().unwrap()));
        // Three addresses of the links, 127.0.0.1 and ::1.
        assert_eq!(addr::list(&nl, None).unwrap().len(), 5);
        assert!(addr::list(&nl, Some(IfIndex(9999))).unwrap().is_empty());
    });
}
