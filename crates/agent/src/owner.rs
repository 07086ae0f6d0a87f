// SPDX-License-Identifier: Apache-2.0
//! Marks of agents on one node. Numbers of next hops follow from the mark, in one of 256 shares: two agents with
//! the same share would remove each other's.

use kernel::{Netlink, link};
use overlay::ownership::nexthop_ranges_collide;

use crate::settings::{Settings, saved};

/// Why a mark cannot be this agent's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "mark {mark:?} has the same numbers of next hops as {other:?}, which is the mark of another agent of this \
         node: choose another --mark, or remove that agent's things with podwire cleanup --mark {other}"
    )]
    Shared { mark: String, other: String },
    #[error("look for other agents' devices")]
    Links(#[from] kernel::Error),
}

/// Fails where an agent that is known by its record or by its devices has the same share.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    let mark = &settings.node.owner;
    let mut others = saved::owners(&settings.node.state_dir);
    let links = link::list(&Netlink::open()?)?;
    // All our devices are called so, as flannel's are, and their alias is the mark.
    let devices = links.into_iter().filter(|link| link.name.as_str().starts_with("fl"));
    others.extend(devices.filter_map(|link| link.alias));
    match others.into_iter().find(|other| other != mark && nexthop_ranges_collide(mark, other)) {
        Some(other) => Err(Error::Shared { mark: mark.clone(), other }),
        None => Ok(()),
    }
}
