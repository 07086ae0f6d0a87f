// SPDX-License-Identifier: Apache-2.0
//! The selection of a device: by name, MAC address, or path in `/sys`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use cni::{Code, Error, Request};
use kernel::link::{self, Link};
use kernel::{IfName, MacAddr, Netlink};
use serde::Deserialize;

use crate::attach::names;
use crate::error::Context;

const PCI: &str = "/sys/bus/pci/devices";
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
const DEVICES: &str = "/sys/devices/";

/// Drivers that give a device to a user-space program: such a device has no interface.
const USERSPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
pub(super) struct SelectorConf {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConf,
    capabilities: CapabilitiesConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct RuntimeConf {
    #[serde(rename = "deviceID")]
    device_id: String,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct CapabilitiesConf {
    #[serde(rename = "deviceID")]
    device_id: bool,
}

/// The device that a configuration selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    Interface(Selector),
    /// A device with a user-space driver.
    Userspace,
    /// The runtime names the device in each ADD.
    ByRuntime,
}

/// Identifies the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Selector {
    Name(IfName),
    Mac(MacAddr),
    /// The device in `/sys` that the interface belongs to.
    Device(PathBuf),
}

/// STATUS and GC do not require a device if the runtime names it.
pub(super) fn parse(request: &Request) -> Result<Choice, Error> {
    let conf: SelectorConf = request.conf()?;
    let pci = pci_device(&conf)?;
    if pci.as_deref().is_some_and(is_driven_from_userspace) {
        return Ok(Choice::Userspace);
    }
    let is_set = |text: &str| !text.is_empty();
    let invalid = |key: &str, cause: &dyn std::error::Error| {
        Error::because(Code::INVALID_CONFIG, format!("key {key:?}"), cause)
    };
    if is_set(&conf.device) {
        let name =
            conf.device.parse().map_err(|cause: kernel::IfNameError| invalid("device", &cause))?;
        return Ok(Choice::Interface(Selector::Name(name)));
    }
    if is_set(&conf.hwaddr) {
        let mac = conf.hwaddr.parse().map_err(|cause: kernel::MacAddrError| {
            let doing = format!("failed to parse MAC address {:?}", conf.hwaddr);
            Error::because(Code::INVALID_CONFIG, doing, &cause).with_details("key \"hwaddr\"")
        })?;
        return Ok(Choice::Interface(Selector::Mac(mac)));
    }
    if is_set(&conf.kernelpath) {
        return Ok(Choice::Interface(Selector::Device(kernel_path(&conf.kernelpath)?)));
    }
    match pci {
        Some(path) => Ok(Choice::Interface(Selector::Device(path))),
        None if conf.capabilities.device_id && !request.command.is_about_container() => {
            Ok(Choice::ByRuntime)
        }
        None => Err(no_device(&conf)),
    }
}

fn no_device(conf: &SelectorConf) -> Error {
    let msg = "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"";
    let error = Error::invalid_config(msg);
    match conf.capabilities.device_id {
        true => error.with_details("the runtime did not pass \"deviceID\""),
        false => error,
    }
}

/// The device on the PCI or auxiliary bus. The runtime's value overrides the configuration's.
fn pci_device(conf: &SelectorConf) -> Result<Option<PathBuf>, Error> {
    let id = conf.runtime_config.device_id.as_str();
    if id.is_empty() {
        let id = Some(conf.pci_bus_id.as_str()).filter(|id| !id.is_empty());
        return id.map(|id| on_bus("pciBusID", PCI, id)).transpose();
    }
    for bus in [PCI, AUXILIARY] {
        let path = on_bus("runtimeConfig.deviceID", bus, id)?;
        if path.exists() {
            return Ok(Some(path));
        }
    }
    let msg = format!("runtime config DeviceID {id} not found or unsupported");
    let details = format!("key \"runtimeConfig.deviceID\" is {id:?}; looked in {PCI}, {AUXILIARY}");
    Err(Error::invalid_config(msg).with_details(details))
}

fn on_bus(key: &str, bus: &str, id: &str) -> Result<PathBuf, Error> {
    let mut parts = Path::new(id).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(_)), None) => Ok(Path::new(bus).join(id)),
        _ => {
            let msg = format!("key {key:?} is {id:?}, expected an address such as 0000:00:1f.6");
            Err(Error::invalid_config(msg))
        }
    }
}

fn kernel_path(text: &str) -> Result<PathBuf, Error> {
    let path = Path::new(text);
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if climbs || !text.starts_with(DEVICES) {
        let msg = format!("kernel device path {text:?} must be absolute and begin with {DEVICES}/");
        return Err(Error::invalid_config(msg).with_details("key \"kernelpath\""));
    }
    Ok(path.to_owned())
}

fn is_driven_from_userspace(device: &Path) -> bool {
    let driver = fs::canonicalize(device.join("driver")).ok();
    let name = driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    name.is_some_and(|name| USERSPACE_DRIVERS.contains(&name))
}

impl Selector {
    /// Finds the interface on the host. An interface that the kernel moved back is found by its
    /// previous name.
    pub(super) fn find(&self, host: &Netlink, network: &str) -> Result<Option<Link>, Error> {
        let all = || link::list(host).context("list the host's interfaces");
        match self {
            Self::Name(name) => {
                let found = link::by_name(host, *name).context("look for the device")?;
                if found.is_some() {
                    return Ok(found);
                }
                let is_match = |link: &Link| home_name(link, network) == Some(*name);
                Ok(all()?.into_iter().find(is_match))
            }
            Self::Mac(mac) => Ok(all()?.into_iter().find(|link| link.mac == Some(*mac))),
            Self::Device(path) => match interface_of(path) {
                Some(name) => link::by_name(host, name).context("look for the device"),
                None => Ok(None),
            },
        }
    }

    /// Whether the selector may select a device that had this name on the host. A path in `/sys`
    /// does not decide it, because `/sys` shows no interfaces of other namespaces.
    pub(super) fn may_match(&self, link: &Link, home_name: Option<IfName>) -> bool {
        match self {
            Self::Name(name) => home_name == Some(*name),
            Self::Mac(mac) => link.mac == Some(*mac),
            Self::Device(_) => home_name.is_some(),
        }
    }

    /// Whether the device exists in `/sys`, wherever its interface is.
    pub(super) fn has_device(&self) -> bool {
        matches!(self, Self::Device(path) if path.exists())
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(f, "\"{name}\""),
            Self::Mac(mac) => write!(f, "with MAC address {mac}"),
            Self::Device(path) => write!(f, "of {}", path.display()),
        }
    }
}

/// The name that a device of the network had on the host before it was moved into a container.
pub(super) fn home_name(link: &Link, network: &str) -> Option<IfName> {
    let alias =
        link.alias.as_deref().filter(|_| names::is_attachment_group(network, link.group))?;
    alias.parse().ok()
}

/// The first interface of a device; virtio has another device in between.
fn interface_of(device: &Path) -> Option<IfName> {
    let own = names_in(&device.join("net"));
    let first = own.into_iter().next().or_else(|| {
        let children = names_in(device);
        let virtio = children.iter().filter(|name| name.starts_with("virtio"));
        virtio.flat_map(|name| names_in(&device.join(name).join("net"))).next()
    });
    first?.parse().ok()
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}
