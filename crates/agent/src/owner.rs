// SPDX-License-Identifier: Apache-2.0
//! Owner tags of the agents on one node. The tag selects one of 256 ranges of next-hop IDs. Two agents with the same range
//! would remove each other's next hops.

use kernel::{Netlink, link};
use overlay::ownership::nexthop_ranges_collide;

use crate::settings::{Settings, saved};

/// Why an owner tag cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "owner tag {owner:?} has the same next-hop IDs as {other:?}, the owner tag of another agent on this node: \
         choose another --owner, or remove that agent with podwire cleanup --owner {other}"
    )]
    Shared { owner: String, other: String },
    #[error("list devices of other agents")]
    Links(#[from] kernel::Error),
}

/// Fails if another agent, known by its record or by its devices, has the same range.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    let owner = &settings.node.owner;
    let mut others = saved::owners(&settings.node.state_dir);
    let links = link::list(&Netlink::open()?)?;
    // Names of flannel's and podwire's devices begin with "fl". Their alias is the owner tag.
    let devices = links.into_iter().filter(|link| link.name.as_str().starts_with("fl"));
    others.extend(devices.filter_map(|link| link.alias));
    match others.into_iter().find(|other| other != owner && nexthop_ranges_collide(owner, other)) {
        Some(other) => Err(Error::Shared { owner: owner.clone(), other }),
        None => Ok(()),
    }
}
