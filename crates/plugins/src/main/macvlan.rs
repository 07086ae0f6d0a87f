// SPDX-License-Identifier: Apache-2.0
//! `macvlan`: connects containers to the network of a host interface, each with its own MAC
//! address.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::MacAddr;
use kernel::link::{Kind, MacvlanMode};
use serde::Deserialize;

use crate::attach::container_link::{self, ContainerLink, Mac};
use crate::attach::mac::{self, Source};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "macvlan",
    about: "connects containers to the network of a host interface with their own MAC addresses",
    versions: Version::ALL,
    add,
    del: |request| container_link::del(request, "macvlan"),
    check: |request| container_link::check(request, &parse(request)?),
    status: |request| container_link::status(request, &parse(request)?),
    gc: container_link::gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct MacvlanConf {
    mode: String,
    bcqueuelen: u32,
}

fn parse(request: &Request) -> Result<ContainerLink, Error> {
    let conf: MacvlanConf = request.conf()?;
    let mode = parse_mode(&conf.mode)?;
    let bc_queue_len = Some(conf.bcqueuelen).filter(|len| *len != 0);
    let sources = [Source::RuntimeConfig, Source::Environment, Source::Conf];
    let requested = mac::requested(request, &sources)?;
    let mac = parse_mac(mode, requested)?;
    ContainerLink::parse(request, Kind::Macvlan { mode, bc_queue_len }, mac)
}

fn parse_mode(mode: &str) -> Result<MacvlanMode, Error> {
    match mode {
        "" | "bridge" => Ok(MacvlanMode::Bridge),
        "private" => Ok(MacvlanMode::Private),
        "vepa" => Ok(MacvlanMode::Vepa),
        "passthru" => Ok(MacvlanMode::Passthru),
        other => {
            let allowed = "bridge, private, vepa and passthru";
            Err(Error::invalid_config(format!("unknown macvlan mode: {other:?}"))
                .with_details(format!("key \"mode\" is {other:?}, allowed are {allowed}")))
        }
    }
}

/// In mode passthru the interface has the master's MAC address; the kernel silently ignores another
/// one.
fn parse_mac(mode: MacvlanMode, requested: Option<MacAddr>) -> Result<Mac, Error> {
    match (mode, requested) {
        (MacvlanMode::Passthru, None) => Ok(Mac::OfMaster),
        (MacvlanMode::Passthru, Some(mac)) => Err(Error::invalid_config(format!(
            "MAC address {mac} cannot be set: mode \"passthru\" uses the MAC address of the master"
        ))),
        (_, requested) => Ok(Mac::Own(requested)),
    }
}

fn add(request: &Request) -> Result<CniResult, Error> {
    container_link::add(request, &parse(request)?)
}
