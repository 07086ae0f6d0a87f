// SPDX-License-Identifier: Apache-2.0
//! VLANs of bridge ports.

use kernel::bridge_vlan::{self, Vlans};
use kernel::link::{self, Detail, Kind, NewLink};
use kernel::{IfIndex, Netlink};
use serde_json::{Value, json};
use testkit::{in_netns, run};

use crate::{index_of, ip, name};

/// Only kernels that filter VLANs have it, and only for a bridge.
const SWITCH: &str = "/sys/class/net/br0/bridge/vlan_filtering";

/// What `bridge` shows of a link's VLANs.
fn shown(link: &str) -> Value {
    let text = run("bridge", &["-j", "-compressvlans", "vlan", "show", "dev", link]);
    let found: Value = serde_json::from_str(&text).unwrap();
    found[0]["vlans"].clone()
}

#[test]
fn vm_vlans_of_ports_come_and_go() {
    in_netns(|| {
        ip("link add br0 type bridge");
        testkit::not_run_unless!(File(SWITCH));
        ip("link add a0 master br0 type veth peer name a1");
        ip("link add b0 master br0 type veth peer name b1");
        let nl = Netlink::open().unwrap();
        let (br0, a0, b0) = (index_of(&nl, "br0"), index_of(&nl, "a0"), index_of(&nl, "b0"));
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), [Vlans::native(1)], "as it is born");

        let wanted = [Vlans::native(100), Vlans::tagged(200, 300)];
        nl.apply([bridge_vlan::remove_all(a0), bridge_vlan::add(a0, &wanted)]).unwrap();
        let native = json!({"vlan": 100, "flags": ["PVID", "Egress Untagged"]});
        let trunk = json!({"vlan": 200, "vlanEnd": 300, "flags": []});
        assert_eq!(shown("a0"), json!([native, trunk]));
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), wanted);
        assert_eq!(bridge_vlan::list(&nl, b0).unwrap(), [Vlans::native(1)]);
        assert_eq!(bridge_vlan::list(&nl, br0).unwrap(), [Vlans::native(1)]);

        assert_eq!(bridge_vlan::ports(&nl, br0, 1).unwrap(), [b0]);
        assert_eq!(bridge_vlan::ports(&nl, br0, 100).unwrap(), [a0]);
        assert_eq!(bridge_vlan::ports(&nl, br0, 250).unwrap(), [a0]);
        assert_eq!(bridge_vlan::ports(&nl, br0, 301).unwrap(), []);
        assert_eq!(bridge_vlan::ports(&nl, IfIndex(9999), 1).unwrap(), []);

        nl.apply([bridge_vlan::add(a0, &[Vlans::native(200)])]).unwrap();
        let vlans = bridge_vlan::list(&nl, a0).unwrap();
        assert!(vlans.contains(&Vlans::native(200)), "it is changed: {vlans:?}");
        let untagged = Vlans { pvid: false, ..Vlans::native(100) };
        assert!(vlans.contains(&untagged), "there is one native VLAN: {vlans:?}");
        nl.apply([bridge_vlan::remove(a0, &[Vlans::tagged(100, 250)])]).unwrap();
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), [Vlans::tagged(251, 300)]);
        nl.apply([bridge_vlan::remove_all(a0), bridge_vlan::remove_all(a0)]).unwrap();
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), []);
        assert!(bridge_vlan::list(&nl, IfIndex(9999)).unwrap_err().is_not_found());
    });
}

#[test]
fn vm_bridges_are_made_filtering_or_come_to_it() {
    in_netns(|| {
        ip("link add br0 type bridge");
        testkit::not_run_unless!(File(SWITCH));
        let nl = Netlink::open().unwrap();
        let filtering = |bridge: &str| match link::by_name(&nl, name(bridge)).unwrap() {
            Some(link) => link.detail,
            None => panic!("{bridge} is there"),
        };
        assert_eq!(filtering("br0"), Detail::Bridge { vlan_filtering: false });
        nl.apply([link::set_vlan_filtering(name("br0"), true)]).unwrap();
        assert_eq!(std::fs::read_to_string(SWITCH).unwrap().trim(), "1");
        assert_eq!(filtering("br0"), Detail::Bridge { vlan_filtering: true });
        let new = NewLink::new(name("br1"), Kind::Bridge { vlan_filtering: Some(true) });
        nl.apply([link::create(&new)]).unwrap();
        assert_eq!(filtering("br1"), Detail::Bridge { vlan_filtering: true });
    });
}

/// Whatever this kernel can: what we are told agrees with what it shows.
#[test]
fn kernel_says_whether_it_filters_vlans() {
    in_netns(|| {
        ip("link add br0 type bridge");
        let nl = Netlink::open().unwrap();
        let has_switch = std::path::Path::new(SWITCH).exists();
        assert_eq!(bridge_vlan::is_supported(&nl).unwrap(), has_switch);
        let set = nl.apply([link::set_vlan_filtering(name("br0"), true)]);
        let new = NewLink::new(name("br1"), Kind::Bridge { vlan_filtering: Some(true) });
        for refused in [set, nl.apply([link::create(&new)])] {
            assert_eq!(refused.is_err_and(|error| error.is_unsupported()), !has_switch);
        }
    });
}

#[test]
fn vm_kernel_says_that_it_filters_vlans() {
    in_netns(|| {
        ip("link add br0 type bridge");
        testkit::not_run_unless!(File(SWITCH));
        ip("link del br0");
        assert!(bridge_vlan::is_supported(&Netlink::open().unwrap()).unwrap());
    });
}
