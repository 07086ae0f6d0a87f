// SPDX-License-Identifier: Apache-2.0
//! VLANs of bridge ports.

use kernel::bridge_vlan::{self, Vlans};
use kernel::link::{self, Detail, Kind, NewLink};
use kernel::{IfIndex, Netlink};
use serde_json::{Value, json};
use testkit::{in_netns, run};

use crate::{index_of, ip, name};

/// Exists only for bridges of a kernel that filters VLANs.
const FILTERING_FILE: &str = "/sys/class/net/br0/bridge/vlan_filtering";

/// Returns the VLANs of a link as `bridge` shows them.
fn shown(link: &str) -> Value {
    let text = run("bridge", &["-j", "-compressvlans", "vlan", "show", "dev", link]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    shown[0]["vlans"].clone()
}

#[test]
fn vm_vlans_of_ports_are_added_and_removed() {
    in_netns(|| {
        ip("link add br0 type bridge");
        testkit::not_run_unless!(File(FILTERING_FILE));
        ip("link add a0 master br0 type veth peer name a1");
        ip("link add b0 master br0 type veth peer name b1");
        let nl = Netlink::open().unwrap();
        let (br0, a0, b0) = (index_of(&nl, "br0"), index_of(&nl, "a0"), index_of(&nl, "b0"));
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), [Vlans::native(1)], "VLANs of a new port");

        let vlans = [Vlans::native(100), Vlans::tagged(200, 300)];
        nl.apply([bridge_vlan::remove_all(a0), bridge_vlan::add(a0, &vlans)]).unwrap();
        let native = json!({"vlan": 100, "flags": ["PVID", "Egress Untagged"]});
        let trunk = json!({"vlan": 200, "vlanEnd": 300, "flags": []});
        assert_eq!(shown("a0"), json!([native, trunk]));
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), vlans);
        assert_eq!(bridge_vlan::list(&nl, b0).unwrap(), [Vlans::native(1)]);
        assert_eq!(bridge_vlan::list(&nl, br0).unwrap(), [Vlans::native(1)]);

        assert_eq!(bridge_vlan::ports(&nl, br0, 1).unwrap(), [b0]);
        assert_eq!(bridge_vlan::ports(&nl, br0, 100).unwrap(), [a0]);
        assert_eq!(bridge_vlan::ports(&nl, br0, 250).unwrap(), [a0]);
        assert_eq!(bridge_vlan::ports(&nl, br0, 301).unwrap(), []);
        assert_eq!(bridge_vlan::ports(&nl, IfIndex(9999), 1).unwrap(), []);

        nl.apply([bridge_vlan::add(a0, &[Vlans::native(200)])]).unwrap();
        let vlans = bridge_vlan::list(&nl, a0).unwrap();
        assert!(vlans.contains(&Vlans::native(200)), "options of VLAN 200 are changed: {vlans:?}");
        let untagged = Vlans { pvid: false, ..Vlans::native(100) };
        assert!(vlans.contains(&untagged), "a port has one PVID: {vlans:?}");
        nl.apply([bridge_vlan::remove(a0, &[Vlans::tagged(100, 250)])]).unwrap();
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), [Vlans::tagged(251, 300)]);
        nl.apply([bridge_vlan::remove_all(a0), bridge_vlan::remove_all(a0)]).unwrap();
        assert_eq!(bridge_vlan::list(&nl, a0).unwrap(), []);
        assert!(bridge_vlan::list(&nl, IfIndex(9999)).unwrap_err().is_not_found());
    });
}

#[test]
fn vm_vlan_filtering_is_set_at_creation_or_later() {
    in_netns(|| {
        ip("link add br0 type bridge");
        testkit::not_run_unless!(File(FILTERING_FILE));
        let nl = Netlink::open().unwrap();
        let filtering = |bridge: &str| match link::by_name(&nl, name(bridge)).unwrap() {
            Some(link) => link.detail,
            None => panic!("{bridge} does not exist"),
        };
        assert_eq!(filtering("br0"), Detail::Bridge { vlan_filtering: false });
        nl.apply([link::set_vlan_filtering(name("br0"), true)]).unwrap();
        assert_eq!(std::fs::read_to_string(FILTERING_FILE).unwrap().trim(), "1");
        assert_eq!(filtering("br0"), Detail::Bridge { vlan_filtering: true });
        let new = NewLink::new(name("br1"), Kind::Bridge { vlan_filtering: Some(true) });
        nl.apply([link::create(&new)]).unwrap();
        assert_eq!(filtering("br1"), Detail::Bridge { vlan_filtering: true });
    });
}

/// The result must agree with sysfs, whatever the kernel supports.
#[test]
fn vlan_filtering_support_is_detected() {
    in_netns(|| {
        ip("link add br0 type bridge");
        let nl = Netlink::open().unwrap();
        let is_supported = std::path::Path::new(FILTERING_FILE).exists();
        assert_eq!(bridge_vlan::is_supported(&nl).unwrap(), is_supported);
        let set = nl.apply([link::set_vlan_filtering(name("br0"), true)]);
        let new = NewLink::new(name("br1"), Kind::Bridge { vlan_filtering: Some(true) });
        for result in [set, nl.apply([link::create(&new)])] {
            assert_eq!(result.is_err_and(|error| error.is_unsupported()), !is_supported);
        }
    });
}

#[test]
fn vm_vlan_filtering_is_supported() {
    in_netns(|| {
        ip("link add br0 type bridge");
        testkit::not_run_unless!(File(FILTERING_FILE));
        ip("link del br0");
        assert!(bridge_vlan::is_supported(&Netlink::open().unwrap()).unwrap());
    });
}
