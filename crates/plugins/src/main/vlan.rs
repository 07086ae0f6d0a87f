// SPDX-License-Identifier: Apache-2.0
//! `vlan`: connects a container to a VLAN of a host interface.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::bridge_vlan;
use kernel::link::Kind;
use serde::Deserialize;

use crate::attach::container_link::{self, ContainerLink, Mac, Master};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "vlan",
    about: "connects a container to a VLAN of a host interface",
    versions: Version::ALL,
    add,
    del: |request| container_link::del(request, "vlan"),
    check: |request| container_link::check(request, &parse(request)?),
    status: |request| container_link::status(request, &parse(request)?),
    gc: container_link::gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct VlanConf {
    vlan_id: i64,
}

fn parse(request: &Request) -> Result<ContainerLink, Error> {
    let conf: VlanConf = request.conf()?;
    let id =
        u16::try_from(conf.vlan_id).ok().filter(|id| *id <= bridge_vlan::MAX).ok_or_else(|| {
            let (found, last) = (conf.vlan_id, bridge_vlan::MAX);
            Error::invalid_config(format!("invalid VLAN ID {found} (must be between 0 and {last})"))
                .with_details(format!("key \"vlanId\" is {found}, allowed are 0 to {last}"))
        })?;
    let desired = ContainerLink::parse(request, Kind::Vlan(id), Mac::OfMaster)?;
    if desired.master == Master::OfDefaultRoute {
        let msg = "\"master\" field is required. It specifies the host interface name to create \
                   the VLAN for";
        return Err(Error::invalid_config(msg).with_details("key \"master\" must be set"));
    }
    super::require_ipam(request, "no plugin name provided")?;
    Ok(desired)
}

fn add(request: &Request) -> Result<CniResult, Error> {
    container_link::add(request, &parse(request)?)
}
