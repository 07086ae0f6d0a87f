// SPDX-License-Identifier: Apache-2.0
//! Configurations of host-device. One end of a veth pair stands for the device, and a tmpfs on
//! `/sys` directories describes it to both sets of plugins.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use testkit::run;

use super::case::Case;
use super::case::Step::{Add, Check, Del, Host, Pod};
use crate::conf::{ENS1, dual, host_device, v4, v6, with, without};

const BUS: &str = "/sys/bus";
const PCI: &str = "/sys/bus/pci";
const DEVICES: &str = "/sys/devices/virtual";
const UP: &str = "link set ens1 up";

/// Creates PCI devices with an interface, with an interface below virtio, without an interface and
/// with a userspace driver; a path in the device tree; and an auxiliary device.
pub fn make_bus() {
    for place in [BUS, DEVICES] {
        run("mount", &["-t", "tmpfs", "none", place]);
    }
    let directory = |path: &str| fs::create_dir_all(path).expect("create a directory on the tmpfs");
    for driver in ["mlx5_core", "vfio-pci"] {
        directory(&format!("{PCI}/drivers/{driver}"));
    }
    for (device, below, driver) in [
        ("0000:aa:00.0", "net/ens1", "mlx5_core"),
        ("0000:aa:00.1", "virtio7/net/ens1", "mlx5_core"),
        ("0000:aa:00.2", "net", "mlx5_core"),
        ("0000:aa:00.3", "iommu", "vfio-pci"),
    ] {
        directory(&format!("{PCI}/devices/{device}/{below}"));
        let link = format!("{PCI}/devices/{device}/driver");
        symlink(format!("../../drivers/{driver}"), link).expect("create a symlink on the tmpfs");
    }
    directory(&format!("{BUS}/auxiliary/devices/mlx5_core.sf.2/net/ens1"));
    directory(&format!("{DEVICES}/nic/net/ens1"));
    directory(&format!("{DEVICES}/empty/net"));
}

pub fn cases() -> Vec<Case> {
    [plain(), found_by(), addresses(), refused(), later()].concat()
}

fn case(name: &str, more: &Value) -> Case {
    Case::new(name, host_device(more)).before(&[Host(ENS1)])
}

/// Identifies the device by these keys instead of `device`.
fn by(name: &str, more: &Value) -> Case {
    let config = with(without(host_device(&json!({})), &["device"]), more);
    Case::new(name, config).before(&[Host(ENS1), Host("link set far1 up")])
}

fn plain() -> Vec<Case> {
    let versions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let before = [Host(ENS1), Host("link set far1 up")];
    let versioned = |version: &&str| {
        let case = case(&format!("IPv4 in {version}"), &json!({"ipam": v4()}));
        case.version(version).before(&before)
    };
    let mut cases: Vec<Case> = versions.iter().map(versioned).collect();
    cases.extend([
        case("plain", &json!({})),
        case("plain in 0.3.1", &json!({})).version("0.3.1").before(&[Host(ENS1)]),
        case("device is up before", &json!({})).before(&[Host(ENS1), Host(UP)]),
        case("keeps its name", &json!({})).ifname("ens1"),
        case("other name", &json!({})).ifname("net1"),
        case("pod has an interface with the device's name", &json!({}))
            .before(&[Host(ENS1), Pod("link add ens1 type veth peer name other")]),
        case("arguments are ignored", &json!({})).args("A=b"),
        case("a macvlan", &json!({"device": "mac1"}))
            .before(&[Host(ENS1), Host("link add mac1 link ens1 type macvlan mode bridge")]),
        case("two pods one after the other", &json!({})).steps(&[
            Add(1),
            Del(1),
            Add(2),
            Check(2),
            Del(2),
        ]),
    ]);
    cases
}

fn found_by() -> Vec<Case> {
    let path = format!("{DEVICES}/nic");
    vec![
        by("hwaddr", &json!({"hwaddr": "02:00:00:00:00:11"})),
        by("hwaddr in capitals with dashes", &json!({"hwaddr": "02-00-00-00-00-11"})),
        by("kernelpath", &json!({"kernelpath": path})),
        by("pciBusID", &json!({"pciBusID": "0000:aa:00.0"})),
        by("pciBusID of virtio", &json!({"pciBusID": "0000:aa:00.1"})),
        by("deviceID", &json!({"runtimeConfig": {"deviceID": "0000:aa:00.0"}})),
        by(
            "deviceID on the auxiliary bus",
            &json!({"runtimeConfig": {"deviceID": "mlx5_core.sf.2"}}),
        ),
        by(
            "deviceID overrides pciBusID",
            &json!({"pciBusID": "0000:aa:00.2",
            "runtimeConfig": {"deviceID": "0000:aa:00.0"}}),
        ),
        case(
            "device overrides all other keys",
            &json!({"hwaddr": "02:00:00:00:00:99",
            "kernelpath": "/sys/devices/none", "pciBusID": "0000:aa:00.2"}),
        ),
        by("userspace driver", &json!({"pciBusID": "0000:aa:00.3"})).steps(&[Add(1), Check(1)]),
        by("userspace driver with IPAM", &json!({"pciBusID": "0000:aa:00.3", "ipam": v4()}))
            .steps(&[Add(1), Check(1), Del(1), Del(1)]),
    ]
}

fn addresses() -> Vec<Case> {
    let routes = json!({"routes": [
        {"dst": "0.0.0.0/0"},
        {"dst": "192.0.2.0/24", "gw": "10.1.0.1", "priority": 7, "table": 100},
        {"dst": "203.0.114.0/24", "mtu": 1280, "advmss": 1200},
    ]});
    let before = [Host(ENS1), Host("link set far1 up")];
    let named = json!({"type": "static", "dns": {"nameservers": ["10.0.0.3"]},
        "addresses": [{"address": "10.1.0.5/24"}]});
    vec![
        case("IPv6", &json!({"ipam": v6()})).before(&before),
        case("dual", &json!({"ipam": dual()})).before(&before),
        case("routes", &json!({"ipam": with(v4(), &routes)})).before(&before),
        case("dns", &json!({"ipam": v4(), "dns": {"nameservers": ["10.0.0.2"]}})).before(&before),
        case("empty dns", &json!({"ipam": named, "dns": {"search": []}})).before(&before),
    ]
}

fn refused() -> Vec<Case> {
    let route = json!({"routes": [{"dst": "192.0.2.0/24", "gw": "10.99.0.1"}]});
    let id = |id: &str| json!({"runtimeConfig": {"deviceID": id}});
    vec![
        case("no address for a version that needs one", &json!({}))
            .version("0.2.0")
            .before(&[Host(ENS1)])
            .fails(999, "no valid IP addresses"),
        case("device is missing", &json!({"device": "none0"})).fails(999, "none0"),
        by("no device key", &json!({})).fails(7, "\\\"device\\\""),
        by("hwaddr of no interface", &json!({"hwaddr": "02:00:00:00:00:99"})).fails(999, "00:99"),
        by("invalid hwaddr", &json!({"hwaddr": "02:00"})).fails(7, "02:00"),
        by("kernelpath elsewhere", &json!({"kernelpath": "/etc"})).fails(7, "/etc"),
        by("kernelpath with ..", &json!({"kernelpath": "/sys/devices/../net"})).fails(7, "../net"),
        by("kernelpath without interface", &json!({"kernelpath": format!("{DEVICES}/empty")}))
            .fails(999, "empty"),
        by("pciBusID without interface", &json!({"pciBusID": "0000:aa:00.2"}))
            .fails(999, "0000:aa:00.2"),
        by("pciBusID is missing", &json!({"pciBusID": "0000:ff:00.0"})).fails(999, "0000:ff:00.0"),
        by("deviceID is missing", &id("0000:ff:00.0")).fails(7, "0000:ff:00.0"),
        by("deviceID with ..", &id("../../class")).fails(7, "../../class"),
        case("device is a number", &json!({"device": 7})).fails(7, "device"),
        case("device is the loopback", &json!({"device": "lo"})).fails(7, "loopback"),
        case("interface exists", &json!({"ipam": v4()}))
            .before(&[Host(ENS1), Host(UP), Pod("link add eth0 type veth peer name other")])
            .fails(999, "already exists"),
        case("gateway of a route cannot be reached", &json!({"ipam": with(v4(), &route)}))
            .before(&[Host(ENS1), Host(UP)])
            .fails(999, "unreachable"),
        case("no addresses from IPAM", &json!({"ipam": {"type": "static"}}))
            .fails(999, "missing IP config"),
        case("namespace is missing", &json!({})).netns("/run/netns/nowhere").fails(3, "nowhere"),
    ]
}

fn later() -> Vec<Case> {
    vec![
        case("second ADD", &json!({})).steps(&[Add(1), Add(1), Del(1)]).failing(&[(2, 999)]),
        case("CHECK without the interface", &json!({}))
            .steps(&[Add(1), Pod("link set eth0 name eth9"), Check(1)])
            .failing(&[(2, 999)]),
        case("DEL without ADD", &json!({})).steps(&[Del(1)]),
    ]
}
