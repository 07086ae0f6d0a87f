// SPDX-License-Identifier: Apache-2.0
//! `dummy`: an interface of the container with addresses and nobody behind it.

use cni::{CniResult, Error, Plugin, Request, Version};
use kernel::link::Kind;

use crate::child::{self, Child, Mac, Parent};

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    name: "dummy",
    about: "gives a container an interface with addresses and nobody behind it",
    versions: Version::ALL,
    add,
    del: |request| child::del(request, "dummy"),
    check: |request| child::check(request, &understand(request)?),
    status: |request| child::status(request, &understand(request)?),
    gc: child::gc,
};

/// Of the keys that the others have, `master` and `mtu` mean nothing here.
fn understand(request: &Request) -> Result<Child, Error> {
    super::require_ipam(request, "dummy interface requires an IPAM configuration")?;
    let child = Child::understand(request, Kind::Dummy, Mac::Own(None))?;
    Ok(Child { parent: Parent::None, in_container: true, mtu: None, ..child })
}

fn add(request: &Request) -> Result<CniResult, Error> {
    child::add(request, &understand(request)?)
}
