// SPDX-License-Identifier: Apache-2.0
//! The plugins' state in nf_tables: elements of sets and maps in the table `podwire`, each tagged
//! with the attachment that owns it. The cost of a packet, an ADD or a DEL does not grow with the
//! number of elements, because there is no rule and no jump per container (see [`Placement`]).
//!
//! Each [`Feature`] has its own maps, chains and rules in the table, created when they are first
//! needed. The set `owned` is an index: it lists the elements of each attachment under a key that
//! is derived from the attachment. DEL therefore needs neither a result nor a namespace, and GC
//! reads only the elements of one network.

mod element;
mod elements;
mod error;
mod index;
pub(crate) mod masquerade;
mod owner;
mod schema;

use cni::{Attachment, Error, Request};
use kernel::Netns;
use kernel::netns::Lock;
use kernel::nft::{Table, TableFamily};

pub(crate) use self::element::{ChainId, ConflictPolicy, Entry, Map, Placement, key};
pub(crate) use self::elements::ElementStore;
pub(crate) use self::error::{Conflict, ElementError};
pub(crate) use self::index::IndexEntry;
pub(crate) use self::owner::Owner;
pub(crate) use self::schema::{
    DesiredChain, Feature, JumpRule, Rules, remove_unused, remove_unused_chains, status,
};
use crate::error::Context;
pub(crate) use kernel::nft::match_expr;

/// The table for everything that filters or changes IP packets.
pub(crate) const TABLE: Table<'static> = Table { family: TableFamily::Inet, name: "podwire" };

/// Locks the plugins' nf_tables state of the calling thread's namespace, for a change that depends
/// on what was read before.
pub(crate) fn lock() -> kernel::Result<Lock> {
    Netns::current()?.lock("rules")
}

/// Removes the elements of the request's attachment. If there are none, this costs one lookup per
/// feature.
pub(crate) fn remove(request: &Request, features: &[&'static Feature]) -> Result<(), Error> {
    for_each(features, "remove the container's rules", |store| {
        store.remove(&request.network, &request.attachment()).map(drop)
    })
}

/// Removes the elements of a network that belong to none of these attachments, and chains without
/// elements.
pub(crate) fn gc(
    request: &Request,
    features: &[&'static Feature],
    valid: &[Attachment],
) -> Result<(), Error> {
    for_each(features, "remove stale rules", |store| {
        store.gc(&request.network, valid)?;
        remove_unused_chains(store.nft(), store.feature(), &request.network)
    })
}

/// Runs `body` for each feature over one socket. A failure does not stop the features after it.
fn for_each(
    features: &[&'static Feature],
    doing: &str,
    mut body: impl FnMut(&mut ElementStore) -> kernel::Result<()>,
) -> Result<(), Error> {
    let Some((first, _)) = features.split_first() else { return Ok(()) };
    let mut store = ElementStore::open(first).context(doing)?;
    let mut failures = Vec::new();
    for feature in features {
        store.select_feature(feature);
        failures.extend(body(&mut store).context(doing).err());
    }
    Error::join(failures)
}
