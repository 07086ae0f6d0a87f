// SPDX-License-Identifier: Apache-2.0
//! `dummy`: an interface with addresses that discards everything sent through it.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::link::Kind;

use crate::attach::container_link::{self, ContainerLink, Mac, Master};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "dummy",
    about: "creates a dummy interface with addresses in a container",
    versions: Version::ALL,
    add,
    del: |request| container_link::del(request, "dummy"),
    check: |request| container_link::check(request, &parse(request)?),
    status: |request| container_link::status(request, &parse(request)?),
    gc: container_link::gc,
};

/// The keys `master` and `mtu` are ignored.
fn parse(request: &Request) -> Result<ContainerLink, Error> {
    super::require_ipam(request, "dummy interface requires an IPAM configuration")?;
    let desired = ContainerLink::parse(request, Kind::Dummy, Mac::Own(None))?;
    Ok(ContainerLink { master: Master::None, master_in_container: true, mtu: None, ..desired })
}

fn add(request: &Request) -> Result<CniResult, Error> {
    container_link::add(request, &parse(request)?)
}
