// SPDX-License-Identifier: Apache-2.0
//! `ipvlan`: containers on the network of one of the host's interfaces, all with that one's hardware
//! address.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::link::{IpvlanMode, Kind};
use serde::Deserialize;

use crate::child::{self, Child, Mac, Parent};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "ipvlan",
    about: "puts containers on the network of a host's interface, with the MAC of that one",
    versions: Version::ALL,
    add,
    del: |request| child::del(request, "ipvlan"),
    check: |request| child::check(request, &understand(request)?),
    status: |request| child::status(request, &understand(request)?),
    gc: child::gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct IpvlanConf {
    mode: String,
}

/// Without a `master` it may be the interface of a plugin before this one, so that only an ADD knows.
fn understand(request: &Request) -> Result<Child, Error> {
    let conf: IpvlanConf = request.conf()?;
    let kind = Kind::Ipvlan(understand_mode(&conf.mode)?);
    let mut child = Child::understand(request, kind, Mac::OfParent)?;
    if child.parent == Parent::OfDefaultRoute {
        child.parent = Parent::Unknown;
    }
    Ok(child)
}

fn understand_mode(mode: &str) -> Result<IpvlanMode, Error> {
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
    let mut child = understand(request)?;
    let before = request.prev_result()?;
    if child.parent == Parent::Unknown {
        child.parent = chained_parent(before.as_ref())?;
    }
    if request.ipam_type()?.is_none() {
        child.given = Some(chained_addresses(before)?);
    }
    child::add(request, &child)
}

fn chained_parent(before: Option<&CniResult>) -> Result<Parent, Error> {
    let Some(result) = before else { return Ok(Parent::OfDefaultRoute) };
    match result.interfaces.as_slice() {
        [one] if !one.name.is_empty() => Parent::understand(&one.name),
        _ => {
            let msg = "chained master failure. PrevResult lacks a single named interface";
            Err(Error::invalid_config(msg).with_details("set key \"master\""))
        }
    }
}

fn chained_addresses(before: Option<CniResult>) -> Result<CniResult, Error> {
    before.filter(|result| !result.ips.is_empty()).ok_or_else(|| {
        Error::invalid_config("no plugin name provided").with_details(
            "key \"ipam.type\" must be set: there are no addresses from a plugin before",
        )
    })
}
