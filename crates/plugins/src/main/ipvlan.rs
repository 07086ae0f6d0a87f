// SPDX-License-Identifier: Apache-2.0
//! `ipvlan`: connects containers to the network of a host interface; all share its MAC address.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::link::{IpvlanMode, Kind};
use serde::Deserialize;

use crate::attach::container_link::{self, ContainerLink, Mac, Master};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "ipvlan",
    about: "connects containers to the network of a host interface with its MAC address",
    versions: Version::ALL,
    add,
    del: |request| container_link::del(request, "ipvlan"),
    check: |request| container_link::check(request, &parse(request)?),
    status: |request| container_link::status(request, &parse(request)?),
    gc: container_link::gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct IpvlanConf {
    mode: String,
}

/// Without `master`, the master may be the interface of an earlier plugin, which only ADD knows.
fn parse(request: &Request) -> Result<ContainerLink, Error> {
    let conf: IpvlanConf = request.conf()?;
    let kind = Kind::Ipvlan(parse_mode(&conf.mode)?);
    let mut desired = ContainerLink::parse(request, kind, Mac::OfMaster)?;
    if desired.master == Master::OfDefaultRoute {
        desired.master = Master::Unknown;
    }
    Ok(desired)
}

fn parse_mode(mode: &str) -> Result<IpvlanMode, Error> {
    match mode {
        "" | "l2" => Ok(IpvlanMode::L2),
        "l3" => Ok(IpvlanMode::L3),
        "l3s" => Ok(IpvlanMode::L3s),
        other => {
            let msg = format!("unknown ipvlan mode: {other:?}");
            let details = format!("key \"mode\" is {other:?}, allowed are l2, l3 and l3s");
            Err(Error::invalid_config(msg).with_details(details))
        }
    }
}

fn add(request: &Request) -> Result<CniResult, Error> {
    let mut desired = parse(request)?;
    let prev_result = request.prev_result()?;
    if desired.master == Master::Unknown {
        desired.master = chained_master(prev_result.as_ref())?;
    }
    if request.ipam_type()?.is_none() {
        desired.prev_result = Some(chained_addresses(prev_result)?);
    }
    container_link::add(request, &desired)
}

fn chained_master(prev_result: Option<&CniResult>) -> Result<Master, Error> {
    let Some(result) = prev_result else { return Ok(Master::OfDefaultRoute) };
    match result.interfaces.as_slice() {
        [one] if !one.name.is_empty() => Master::parse(&one.name),
        _ => {
            let msg = "chained master failure. PrevResult lacks a single named interface";
            Err(Error::invalid_config(msg).with_details("set key \"master\""))
        }
    }
}

fn chained_addresses(prev_result: Option<CniResult>) -> Result<CniResult, Error> {
    prev_result.filter(|result| !result.ips.is_empty()).ok_or_else(|| {
        Error::invalid_config("no plugin name provided")
            .with_details("key \"ipam.type\" must be set, because prevResult has no addresses")
    })
}
