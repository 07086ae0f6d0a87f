// SPDX-License-Identifier: Apache-2.0
//! How a node comes to its lease, and keeps it: by writes that fail where somebody was quicker.

use std::time::Duration;

use overlay::allocate::{self, Choice, Requester};
use overlay::lease::{Attributes, Lease, print_key};
use overlay::netconf::Pool;
use overlay::{Addresses, PerFamily, Prefixes};
use store::{Entry, Error, Revision, Snapshot, Written};

use super::Leases;
use super::keys::Keys;
use super::layout::Layout;

/// flannel's. A node that is away for longer has lost its subnet.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// So many races are lost in a row by nobody.
const TRIES: usize = 100;

/// What a node wants.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    pub pools: &'a PerFamily<Pool>,
    pub attributes: &'a Attributes,
    /// What it had when it last ran.
    pub previous: Option<Prefixes>,
    /// Anything.
    pub random: u64,
}

/// A lease that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub name: String,
    pub lease: Lease,
    pub revision: Revision,
    /// It has no end.
    pub is_reservation: bool,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error(transparent)]
    Store(#[from] Error),
    #[error(transparent)]
    Choice(#[from] allocate::Error),
    #[error("{0}")]
    NotYet(String),
    #[error("other nodes took every subnet that this one chose, {TRIES} times in a row")]
    Races,
}

/// A lease that would be a node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    pub lease: Lease,
    pub how: How,
    /// Names of its leases that would be deleted.
    pub obsolete: Vec<String>,
}

/// How a node would come to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It has it.
    Kept,
    /// It had its subnets before, or is given them.
    Taken,
    /// Any free one would do: this is an example.
    ByChance,
}

/// What has become of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Done,
    /// Somebody has deleted or changed it.
    Lost,
}

fn choose(keys: &Keys, snapshot: &Snapshot, want: &Want<'_>) -> Result<Choice, allocate::Error> {
    let Want { pools, attributes, previous, random } = *want;
    let asker = Requester { public: attributes.public, previous, random };
    allocate::choose(pools, &taken(keys, snapshot), &asker)
}

fn taken(keys: &Keys, snapshot: &Snapshot) -> Vec<allocate::Entry> {
    snapshot.entries.iter().filter_map(|entry| keys.taken(entry)).collect()
}

impl Leases {
    /// Takes a lease: the node's own, what it had before, or a free one. `snapshot` is what the
    /// first choice is made from.
    pub async fn acquire(
        &self,
        mut snapshot: Snapshot,
        want: &Want<'_>,
    ) -> Result<Held, AcquireError> {
        for try_number in 0..TRIES {
            match self.try_once(&snapshot, want, try_number).await {
                Ok(Some(held)) if self.is_undisputed(&held, want.pools).await? => return Ok(held),
                Ok(Some(held)) => self.release(&held).await?,
                // Perhaps it was written: the next list tells.
                Ok(None) | Err(AcquireError::Store(Error::Uncertain { .. })) => {}
                Err(error) => return Err(error),
            }
            snapshot = self.list().await?;
        }
        Err(AcquireError::Races)
    }

    /// Whether a node with these addresses has a lease, or could have one.
    pub fn has_room(
        &self,
        snapshot: &Snapshot,
        pools: &PerFamily<Pool>,
        public: Addresses,
    ) -> Result<(), AcquireError> {
        let Layout::Keys(keys) = &self.layout else { return Ok(()) };
        let asker = Requester { public, previous: None, random: 0 };
        Ok(allocate::choose(pools, &taken(keys, snapshot), &asker).map(drop)?)
    }

    /// None where somebody was quicker.
    async fn try_once(
        &self,
        snapshot: &Snapshot,
        want: &Want<'_>,
        try_number: usize,
    ) -> Result<Option<Held>, AcquireError> {
        let keys = match &self.layout {
            Layout::Keys(keys) => keys,
            Layout::Nodes(nodes) => return self.annotate(nodes, snapshot, want).await,
        };
        let random = want.random.wrapping_add(try_number as u64);
        let choice = choose(keys, snapshot, &Want { random, ..*want })?;
        let (subnets, is_reservation, written) = match choice {
            Choice::Keep { subnets, is_reservation } => {
                let Some(entry) = self.entry(snapshot, &subnets) else { return Ok(None) };
                (subnets, is_reservation, self.write_over(entry, want.attributes).await?)
            }
            Choice::Create { subnets, obsolete, .. } => {
                for old in obsolete {
                    if let Some(entry) = self.entry(snapshot, &old) {
                        self.store.delete(&entry.key, Some(entry.revision)).await?;
                    }
                }
                let key = self.layout.lease(&print_key(&subnets));
                let value = want.attributes.print();
                let created = self.store.create(&key, value.as_bytes(), Some(TIME_TO_LIVE)).await?;
                (subnets, false, created)
            }
        };
        let lease = Lease { subnets, attributes: want.attributes.clone() };
        Ok(match written {
            Written::Done(revision) => {
                Some(Held { name: lease.key(), lease, revision, is_reservation })
            }
            Written::Conflict(_) => None,
        })
    }

    /// Two keys of both families may differ in one of them and have the other in common, and the
    /// store takes both. The older one stays.
    async fn is_undisputed(&self, held: &Held, pools: &PerFamily<Pool>) -> Result<bool, Error> {
        let Layout::Keys(keys) = &self.layout else { return Ok(true) };
        if held.lease.subnets.iter().count() < 2 {
            return Ok(true);
        }
        let snapshot = self.list().await?;
        let own = self.entry(&snapshot, &held.lease.subnets).map(|entry| entry.created);
        let is_older = |entry: &&Entry| own.is_none_or(|own| entry.created < own);
        let mut older = snapshot.entries.iter().filter(is_older);
        Ok(!older.any(|entry| {
            let taken = keys.taken(entry);
            let subnets = &held.lease.subnets;
            taken.is_some_and(|taken| allocate::overlap(pools, &taken.subnets, subnets))
        }))
    }

    /// A lease that is held, with other attributes perhaps: its node has moved, and keeps its pods.
    /// None where somebody else has written it since, or the network no longer has such subnets.
    pub async fn keep_with(
        &self,
        held: &Held,
        want: &Want<'_>,
    ) -> Result<Option<Held>, AcquireError> {
        // Of a cluster's nodes the name tells whose a lease is.
        if !self.are_chosen() {
            return Ok(None);
        }
        let entry = self.store.get(&self.layout.lease(&held.name)).await?;
        // Another store, or one that has lost its data, may have something else at the same revision.
        let value = held.lease.attributes.print();
        let is_ours =
            |entry: &Entry| entry.revision == held.revision && entry.value == value.as_bytes();
        let Some(entry) = entry.filter(is_ours) else { return Ok(None) };
        if !allocate::fits(want.pools, &held.lease.subnets) {
            return Ok(None);
        }
        Ok(match self.write_over(&entry, want.attributes).await? {
            Written::Done(revision) => {
                let lease = Lease { attributes: want.attributes.clone(), ..held.lease.clone() };
                Some(Held { lease, revision, ..held.clone() })
            }
            Written::Conflict(_) => None,
        })
    }

    fn entry<'a>(&self, snapshot: &'a Snapshot, subnets: &Prefixes) -> Option<&'a Entry> {
        let key = self.layout.lease(&print_key(subnets));
        snapshot.entries.iter().find(|entry| entry.key == key)
    }

    /// The node's own entry, with a whole time to live; a reservation stays without an end.
    async fn write_over(&self, entry: &Entry, attributes: &Attributes) -> Result<Written, Error> {
        let value = attributes.print();
        if entry.value == value.as_bytes() {
            return self.store.keep(&entry.key, entry.revision).await;
        }
        let ttl = entry.expires.then_some(TIME_TO_LIVE);
        self.store.swap(&entry.key, value.as_bytes(), entry.revision, ttl).await
    }

    /// Starts the time to live anew. A lease that somebody has written over is written again if it
    /// is still this node's.
    pub async fn renew(&self, held: &mut Held) -> Result<Renewal, Error> {
        if let Layout::Nodes(nodes) = &self.layout {
            return self.annotate_again(nodes, held).await;
        }
        let key = self.layout.lease(&held.name);
        let mut written = self.store.keep(&key, held.revision).await?;
        if let Written::Conflict(Some(entry)) = &written {
            let public = Attributes::parse(&entry.value).map(|attributes| attributes.public);
            if public.ok() != Some(held.lease.attributes.public) {
                return Ok(Renewal::Lost);
            }
            written = self.write_over(&entry.clone(), &held.lease.attributes).await?;
        }
        match written {
            Written::Done(revision) => {
                held.revision = revision;
                Ok(Renewal::Done)
            }
            Written::Conflict(_) => Ok(Renewal::Lost),
        }
    }

    /// Which lease would be taken by a node that remembers this one. Nothing is written.
    pub fn preview(
        &self,
        snapshot: &Snapshot,
        remembered: Option<Lease>,
        want: &Want<'_>,
    ) -> Result<Foreseen, AcquireError> {
        let keys = match &self.layout {
            Layout::Keys(keys) => keys,
            Layout::Nodes(nodes) => return nodes.preview(snapshot, want),
        };
        let is_kept = |lease: &Lease| allocate::fits(want.pools, &lease.subnets);
        let (subnets, how, obsolete) = match remembered.filter(is_kept) {
            Some(lease) => (lease.subnets, How::Kept, Vec::new()),
            None => match choose(keys, snapshot, want)? {
                Choice::Keep { subnets, .. } => (subnets, How::Kept, Vec::new()),
                Choice::Create { subnets, obsolete, is_random } => {
                    (subnets, if is_random { How::ByChance } else { How::Taken }, obsolete)
                }
            },
        };
        let lease = Lease { subnets, attributes: want.attributes.clone() };
        Ok(Foreseen { lease, how, obsolete: obsolete.iter().map(print_key).collect() })
    }

    /// The lease that an agent has written down as `text`, if it is as it was left and has an end.
    pub async fn written(&self, text: &str) -> Result<Option<Entry>, Error> {
        let Some((name, value)) = text.trim_end().split_once(' ') else { return Ok(None) };
        let found = self.store.get(&self.layout.lease(name)).await?;
        Ok(found.filter(|entry| entry.expires && entry.value == value.as_bytes()))
    }

    /// Gives it back, where it is there.
    pub async fn release_written(&self, text: &str) -> Result<bool, Error> {
        let Some(entry) = self.written(text).await? else { return Ok(false) };
        let written = self.store.delete(&entry.key, Some(entry.revision)).await?;
        Ok(written.is_done())
    }

    /// Gives the lease back; a reservation stays.
    pub async fn release(&self, held: &Held) -> Result<(), Error> {
        if held.is_reservation {
            return Ok(());
        }
        self.store.delete(&self.layout.lease(&held.name), Some(held.revision)).await.map(drop)
    }
}
