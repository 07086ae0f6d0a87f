// SPDX-License-Identifier: Apache-2.0
//! Neighbours and forwarding entries.

use kernel::fdb::{self, Fdb};
use kernel::neigh::{self, Neigh};
use kernel::{Family, IfIndex, MacAddr, Netlink};
use serde_json::json;
use testkit::{Ns, in_netns};

use crate::{addr, index_of, ip, ip_json};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const NUD_NOARP: u16 = 0x40; // linux/neighbour.h

#[test]
fn neighbours_are_added_listed_and_removed() {
    in_netns(|| {
        ip("link add a0 type veth peer name a1");
        ip("link set a0 up");
        ip("link set a1 up");
        let nl = Netlink::open().unwrap();
        let a0 = index_of(&nl, "a0");
        let four = Neigh::permanent(a0, addr("10.1.2.3"), MAC);
        let six = Neigh::permanent(a0, addr("fd00::3"), MAC);
        let proxy = Neigh::proxy(a0, addr("10.1.2.9"));
        nl.apply([&four, &six, &proxy].map(neigh::add)).unwrap();
        let observed = ip_json(&Ns::here(), "neigh show 10.1.2.3");
        assert_eq!(
            (&observed["dev"], &observed["lladdr"]),
            (&json!("a0"), &json!("02:00:00:00:00:09"))
        );
        assert_eq!(observed["state"], json!(["PERMANENT"]));
        assert_eq!(ip_json(&Ns::here(), "neigh show fd00::3")["state"], json!(["PERMANENT"]));
        assert_eq!(ip_json(&Ns::here(), "neigh show proxy")["dst"], "10.1.2.9");

        assert!(nl.apply([neigh::add(&four)]).unwrap_err().already_exists());
        let moved = Neigh { mac: Some(MacAddr([2, 0, 0, 0, 0, 8])), ..four };
        nl.apply([neigh::replace(&moved)]).unwrap();
        assert_eq!(ip_json(&Ns::here(), "neigh show 10.1.2.3")["lladdr"], "02:00:00:00:00:08");

        assert_eq!(neigh::list(&nl, Family::V4, Some(a0)).unwrap(), [moved]);
        assert_eq!(neigh::list(&nl, Family::V4, Some(index_of(&nl, "a1"))).unwrap(), []);
        assert_eq!(neigh::list(&nl, Family::V4, Some(IfIndex(9999))).unwrap(), []);
        assert!(neigh::list(&nl, Family::V6, None).unwrap().contains(&six));
        let proxies = neigh::list_proxies(&nl, Family::V4, Some(a0)).unwrap();
        assert_eq!(proxies.len(), 1);
        assert_eq!((proxies[0].ip, proxies[0].mac), (addr("10.1.2.9"), None));

        nl.apply([&four, &six, &proxy].map(neigh::remove)).unwrap();
        assert_eq!(ip("neigh show 10.1.2.3"), "");
        assert_eq!(ip("neigh show proxy"), "");
        assert!(nl.apply([neigh::remove(&four)]).unwrap_err().is_not_found());
    });
}

#[test]
fn vxlan_entries_are_added_listed_and_removed() {
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        ip("link add vx0 type vxlan id 7 local 192.0.2.1 dstport 4789");
        let nl = Netlink::open().unwrap();
        let vx0 = index_of(&nl, "vx0");
        let one = Fdb::vxlan(vx0, MAC, addr("192.0.2.7"));
        let zero = MacAddr([0; 6]);
        let floods = [addr("192.0.2.7"), addr("192.0.2.8")].map(|dst| Fdb::vxlan(vx0, zero, dst));
        nl.apply([fdb::add(&one), fdb::append(&floods[0]), fdb::append(&floods[1])]).unwrap();
        let shown = || testkit::run("bridge", &["fdb", "show", "dev", "vx0"]);
        let text = shown();
        assert!(text.contains("02:00:00:00:00:09 dst 192.0.2.7 self permanent"), "{text}");
        assert!(text.contains("00:00:00:00:00:00 dst 192.0.2.8 self permanent"), "{text}");
        assert_eq!(text.lines().count(), 3);

        nl.apply([fdb::replace(&Fdb { dst: Some(addr("192.0.2.9")), ..one })]).unwrap();
        assert!(shown().contains("02:00:00:00:00:09 dst 192.0.2.9"));
        let entries = fdb::list(&nl, vx0).unwrap();
        assert_eq!(entries.len(), 3);
        assert!(entries.contains(&floods[1]), "{entries:?}");

        let all = [Fdb { dst: Some(addr("192.0.2.9")), ..one }, floods[0], floods[1]];
        nl.apply(all.each_ref().map(fdb::remove)).unwrap();
        assert_eq!(shown(), "");
        assert!(nl.apply([fdb::remove(&one)]).unwrap_err().is_not_found());
    });
}

#[test]
fn bridge_entries_are_added_listed_and_removed() {
    in_netns(|| {
        ip("link add br0 type bridge");
        ip("link add a0 type veth peer name a1");
        ip("link set a0 master br0");
        let nl = Netlink::open().unwrap();
        let (a0, br0) = (index_of(&nl, "a0"), index_of(&nl, "br0"));
        let entry = Fdb { state: NUD_NOARP, ..Fdb::port(a0, MAC) };
        nl.apply([fdb::add(&entry)]).unwrap();
        let text = testkit::run("bridge", &["fdb", "show", "br", "br0"]);
        assert!(text.contains("02:00:00:00:00:09 dev a0 master br0 static"), "{text}");
        let entries = fdb::list(&nl, a0).unwrap();
        let observed = entries.iter().find(|entry| entry.mac == MAC).unwrap();
        assert_eq!((observed.master, observed.state), (Some(br0), NUD_NOARP));
        nl.apply([fdb::remove(&entry)]).unwrap();
        let text = testkit::run("bridge", &["fdb", "show", "br", "br0"]);
        assert!(!text.contains("02:00:00:00:00:09"), "{text}");
    });
}
