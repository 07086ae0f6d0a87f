// SPDX-License-Identifier: Apache-2.0
//! `macvlan`: containers on the network of one of the host's interfaces, each with a hardware address
//! of its own.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::MacAddr;
use kernel::link::{Kind, MacvlanMode};
use serde::Deserialize;

use crate::child::{self, Child, Mac};
use crate::mac::{self, Source};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "macvlan",
    about: "puts containers on the network of a host's interface, with MACs of their own",
    versions: Version::ALL,
    add,
    del: |request| child::del(request, "macvlan"),
    check: |request| child::check(request, &understand(request)?),
    status: |request| child::status(request, &understand(request)?),
    gc: child::gc,
};

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct MacvlanConf {
    mode: String,
    bcqueuelen: u32,
}

fn understand(request: &Request) -> Result<Child, Error> {
    let conf: MacvlanConf = request.conf()?;
    let mode = understand_mode(&conf.mode)?;
    let bc_queue_len = Some(conf.bcqueuelen).filter(|len| *len != 0);
    let sources = [Source::RuntimeConfig, Source::Environment, Source::Conf];
    let asked = mac::wanted(request, &sources)?;
    let mac = understand_mac(mode, asked)?;
    Child::understand(request, Kind::Macvlan { mode, bc_queue_len }, mac)
}

fn understand_mode(mode: &str) -> Result<MacvlanMode, Error> {
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

/// The one interface of a master in mode passthru shares its hardware address; the kernel passes over
/// any other without a word.
fn understand_mac(mode: MacvlanMode, asked: Option<MacAddr>) -> Result<Mac, Error> {
    match (mode, asked) {
        (MacvlanMode::Passthru, None) => Ok(Mac::OfParent),
        (MacvlanMode::Passthru, Some(mac)) => Err(Error::invalid_config(format!(
            "hardware address {mac} cannot be had: in mode \"passthru\" it is the master's"
        ))),
        (_, asked) => Ok(Mac::Own(asked)),
    }
}

fn add(request: &Request) -> Result<CniResult, Error> {
    child::add(request, &understand(request)?)
}
