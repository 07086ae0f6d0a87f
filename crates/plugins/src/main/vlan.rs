// SPDX-License-Identifier: Apache-2.0
//! `vlan`: a container on a VLAN of one of the host's interfaces.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::bridge_vlan;
use kernel::link::Kind;
use serde::Deserialize;

use crate::child::{self, Child, Mac, Parent};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "vlan",
    about: "puts a container on a VLAN of a host's interface",
    versions: Version::ALL,
    add,
    del: |request| child::del(request, "vlan"),
    check: |request| child::check(request, &understand(request)?),
    status: |request| child::status(request, &understand(request)?),
    gc: child::gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct VlanConf {
    vlan_id: i64,
}

fn understand(request: &Request) -> Result<Child, Error> {
    let conf: VlanConf = request.conf()?;
    let id =
        u16::try_from(conf.vlan_id).ok().filter(|id| *id <= bridge_vlan::MAX).ok_or_else(|| {
            let (found, last) = (conf.vlan_id, bridge_vlan::MAX);
            Error::invalid_config(format!("invalid VLAN ID {found} (must be between 0 and {last})"))
                .with_details(format!("key \"vlanId\" is {found}, allowed are 0 to {last}"))
        })?;
    let child = Child::understand(request, Kind::Vlan(id), Mac::OfParent)?;
    if child.parent == Parent::OfDefaultRoute {
        let msg = "\"master\" field is required. It specifies the host interface name to create \
                   the VLAN for";
        return Err(Error::invalid_config(msg).with_details("key \"master\" must be set"));
    }
    super::require_ipam(request, "no plugin name provided")?;
    Ok(child)
}

fn add(request: &Request) -> Result<CniResult, Error> {
    child::add(request, &understand(request)?)
}
