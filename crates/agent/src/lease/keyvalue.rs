// SPDX-License-Identifier: Apache-2.0
//! Leases in a key-value store, under flannel's keys. Each node chooses a free subnet and creates its key; the write
//! fails if another node was faster.

mod keys;
mod mirror;
#[cfg(test)]
mod tests;
mod watch;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use gojson::DecodeError;
use overlay::allocate::{self, Choice, Requester};
use overlay::lease::{Attributes, Lease, print_key};
use overlay::netconf::{Pool, RawNetConf};
use overlay::{Addresses, PerFamily, Prefixes};
use store::{Entry, Revision, Store, WriteResult};

use self::keys::Keys;
use self::mirror::Mirror;
use self::watch::KeyValueWatch;
use super::{
    AcquireError, BoxFuture, Cached, CachedEntry, ConfigLocation, Error, HeldLease, LeaseBackend,
    LeaseOrigin, LeasePreview, LeaseRequest, NodeRecord, NodeRecordState, PeerSource, Renewal,
    Snapshot, StoreItem, saved_text,
};

/// Time to live of a lease, the same as flannel's. A node that is away for longer loses its subnet.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// Attempts to take a subnet before [`AcquireError::Races`]. No node loses this many races in a row.
const ATTEMPTS: usize = 100;

/// The leases in a store. Clones share the mirror.
#[derive(Debug, Clone)]
pub struct KeyValueLeases {
    store: Arc<dyn Store>,
    keys: Keys,
    mirror: Mirror,
}

impl KeyValueLeases {
    /// Uses the keys under `prefix`.
    pub fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self { store, keys: Keys::new(prefix), mirror: Mirror::default() }
    }

    async fn list_entries(&self) -> store::Result<store::Snapshot> {
        let listed = self.store.list(&self.keys.all()).await?;
        self.mirror.replace(&listed);
        Ok(listed)
    }

    fn parse(&self, snapshot: &store::Snapshot) -> Snapshot {
        let items = snapshot.entries.iter().filter_map(|entry| self.keys.parse(entry)).collect();
        Snapshot { items, revision: snapshot.revision }
    }

    /// Returns the keys of all subnets that are taken, as last known.
    fn taken(&self) -> Vec<allocate::Entry> {
        let entries = self.mirror.snapshot().map(|snapshot| snapshot.entries).unwrap_or_default();
        entries.iter().filter_map(|entry| self.keys.taken(entry)).collect()
    }

    fn choose(&self, request: &LeaseRequest<'_>) -> Result<Choice, allocate::Error> {
        let LeaseRequest { pools, attributes, previous, random } = *request;
        let requester = Requester { public: attributes.public, previous, random };
        allocate::choose(pools, &self.taken(), &requester)
    }

    fn known_entry(&self, subnets: &Prefixes) -> Option<Entry> {
        self.mirror.get(&self.keys.lease(&print_key(subnets)))
    }

    async fn acquire_lease(&self, request: &LeaseRequest<'_>) -> Result<HeldLease, AcquireError> {
        for attempt in 0..ATTEMPTS {
            match self.try_acquire(request, attempt).await {
                Ok(Some(held)) if self.has_no_older_overlap(&held, request.pools).await? => {
                    return Ok(held);
                }
                Ok(Some(held)) => self.release(&held).await?,
                // After an uncertain write the next list shows whether it was carried out.
                Ok(None)
                | Err(AcquireError::Store(Error::Store(store::Error::Uncertain { .. }))) => {}
                Err(error) => return Err(error),
            }
            self.list_entries().await?;
        }
        Err(AcquireError::Races(ATTEMPTS))
    }

    /// Returns `None` if another node was faster.
    async fn try_acquire(
        &self,
        request: &LeaseRequest<'_>,
        attempt: usize,
    ) -> Result<Option<HeldLease>, AcquireError> {
        let random = request.random.wrapping_add(attempt as u64);
        let (subnets, is_reservation, written) = match self
            .choose(&LeaseRequest { random, ..*request })?
        {
            Choice::Keep { subnets, is_reservation } => {
                let Some(entry) = self.known_entry(&subnets) else { return Ok(None) };
                (subnets, is_reservation, self.replace_value(&entry, request.attributes).await?)
            }
            Choice::Create { subnets, obsolete, .. } => {
                for entry in obsolete.iter().filter_map(|old| self.known_entry(old)) {
                    self.store.delete(&entry.key, Some(entry.revision)).await?;
                }
                let key = self.keys.lease(&print_key(&subnets));
                let value = request.attributes.print();
                let created = self.store.create(&key, value.as_bytes(), Some(TIME_TO_LIVE)).await?;
                (subnets, false, created)
            }
        };
        let lease = Lease { subnets, attributes: request.attributes.clone() };
        Ok(match written {
            WriteResult::Done(revision) => {
                Some(HeldLease { name: lease.key(), lease, revision, is_reservation })
            }
            WriteResult::Conflict(_) => None,
        })
    }

    /// Checks that no older lease overlaps the new one. Two keys with subnets of both families may differ in one subnet
    /// and share the other, and the store accepts both. The older one wins.
    async fn has_no_older_overlap(
        &self,
        held: &HeldLease,
        pools: &PerFamily<Pool>,
    ) -> Result<bool, Error> {
        if held.lease.subnets.iter().count() < 2 {
            return Ok(true);
        }
        let snapshot = self.list_entries().await?;
        let own = self.known_entry(&held.lease.subnets).map(|entry| entry.created);
        let is_older = |entry: &&Entry| own.is_none_or(|own| entry.created < own);
        let mut older = snapshot.entries.iter().filter(is_older);
        Ok(!older.any(|entry| {
            let taken = self.keys.taken(entry);
            let subnets = &held.lease.subnets;
            taken.is_some_and(|taken| allocate::overlap(pools, &taken.subnets, subnets))
        }))
    }

    /// Deletes a lease. A reservation stays.
    async fn release(&self, held: &HeldLease) -> Result<(), Error> {
        if held.is_reservation {
            return Ok(());
        }
        self.store.delete(&self.keys.lease(&held.name), Some(held.revision)).await?;
        Ok(())
    }

    /// Writes the value of this node's entry and restarts its time to live. A reservation stays without one.
    async fn replace_value(
        &self,
        entry: &Entry,
        attributes: &Attributes,
    ) -> store::Result<WriteResult> {
        let value = attributes.print();
        if entry.value == value.as_bytes() {
            return self.store.refresh_ttl(&entry.key, entry.revision).await;
        }
        let ttl = entry.expires.then_some(TIME_TO_LIVE);
        self.store.compare_and_swap(&entry.key, value.as_bytes(), entry.revision, ttl).await
    }

    async fn renew_lease_with(
        &self,
        held: &HeldLease,
        request: &LeaseRequest<'_>,
    ) -> Result<Option<HeldLease>, AcquireError> {
        let entry = self.store.get(&self.keys.lease(&held.name)).await?;
        // Another store, or a store that has lost its data, may have another value at the same revision.
        let value = held.lease.attributes.print();
        let is_unchanged =
            |entry: &Entry| entry.revision == held.revision && entry.value == value.as_bytes();
        let Some(entry) = entry.filter(is_unchanged) else { return Ok(None) };
        if !allocate::fits(request.pools, &held.lease.subnets) {
            return Ok(None);
        }
        Ok(match self.replace_value(&entry, request.attributes).await? {
            WriteResult::Done(revision) => {
                let lease = Lease { attributes: request.attributes.clone(), ..held.lease.clone() };
                Some(HeldLease { lease, revision, ..held.clone() })
            }
            WriteResult::Conflict(_) => None,
        })
    }

    async fn renew_lease(&self, held: &mut HeldLease) -> Result<Renewal, Error> {
        let key = self.keys.lease(&held.name);
        let mut written = self.store.refresh_ttl(&key, held.revision).await?;
        if let WriteResult::Conflict(Some(entry)) = &written {
            let public = Attributes::parse(&entry.value).map(|attributes| attributes.public);
            if public.ok() != Some(held.lease.attributes.public) {
                return Ok(Renewal::Lost);
            }
            written = self.replace_value(&entry.clone(), &held.lease.attributes).await?;
        }
        match written {
            WriteResult::Done(revision) => {
                held.revision = revision;
                Ok(Renewal::Done)
            }
            WriteResult::Conflict(_) => Ok(Renewal::Lost),
        }
    }

    async fn replace_config_value(&self, text: &str) -> Result<(), Error> {
        let (key, value) = (self.keys.config(), text.as_bytes());
        loop {
            let written = match self.store.get(&key).await? {
                Some(entry) => {
                    self.store.compare_and_swap(&key, value, entry.revision, None).await?
                }
                None => self.store.create(&key, value, None).await?,
            };
            if written.is_done() {
                return Ok(());
            }
        }
    }
}

impl LeaseBackend for KeyValueLeases {
    fn id(&self) -> String {
        self.keys.all()
    }

    fn reconnect(&self) {
        self.store.reconnect();
    }

    fn config_location(&self) -> ConfigLocation {
        ConfigLocation::Key(self.keys.config())
    }

    fn config<'a>(&'a self, items: &'a [StoreItem]) -> BoxFuture<'a, io::Result<Option<String>>> {
        let config = items.iter().find_map(|item| match item {
            StoreItem::Config(text) => text.clone().map(Ok),
            StoreItem::ConfigRejected(reason) => Some(Err(io::Error::other(reason.clone()))),
            StoreItem::Node(_) => None,
        });
        Box::pin(std::future::ready(config.transpose()))
    }

    fn create_config_if_absent<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let created = self.store.create(&self.keys.config(), text.as_bytes(), None).await?;
            Ok(created.is_done())
        })
    }

    fn replace_config<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.replace_config_value(text))
    }

    fn list(&self) -> BoxFuture<'_, Result<Snapshot, Error>> {
        Box::pin(async { Ok(self.parse(&self.list_entries().await?)) })
    }

    fn watch(&self, after: Revision) -> Box<dyn PeerSource> {
        Box::new(KeyValueWatch::new(self.clone(), after))
    }

    fn watch_after_list(&self) -> Box<dyn PeerSource> {
        Box::new(KeyValueWatch::after_list(self.clone()))
    }

    fn last_known(&self) -> Option<Snapshot> {
        self.mirror.snapshot().map(|snapshot| self.parse(&snapshot))
    }

    fn take_changed(&self) -> bool {
        self.mirror.take_changed()
    }

    fn export_cache(&self) -> Option<Cached> {
        let snapshot = self.mirror.snapshot()?;
        let entries = snapshot.entries.into_iter().filter_map(to_cached).collect();
        Some(Cached { revision: snapshot.revision, entries })
    }

    fn import_cache(&self, Cached { revision, entries }: Cached) {
        let entries = entries.into_iter().map(from_cached).collect();
        self.mirror.replace(&store::Snapshot { entries, revision });
    }

    fn pools(&self, conf: &RawNetConf) -> Result<PerFamily<Pool>, DecodeError> {
        conf.pools()
    }

    fn may_keep(&self, pools: &PerFamily<Pool>, subnets: &Prefixes) -> bool {
        allocate::fits(pools, subnets)
    }

    fn check_capacity(
        &self,
        pools: &PerFamily<Pool>,
        public: Addresses,
    ) -> Result<(), AcquireError> {
        let requester = Requester { public, previous: None, random: 0 };
        Ok(allocate::choose(pools, &self.taken(), &requester).map(drop)?)
    }

    fn saved_lease(&self, saved: &str) -> Option<HeldLease> {
        let (name, _) = saved.split_once(' ')?;
        let entry = self.mirror.get(&self.keys.lease(name))?;
        match self.keys.parse(&entry)? {
            StoreItem::Node(NodeRecord {
                name,
                revision,
                state: NodeRecordState::Active { lease, .. },
            }) if saved_text(&lease) == saved => {
                Some(HeldLease { name, lease: *lease, revision, is_reservation: !entry.expires })
            }
            _ => None,
        }
    }

    fn preview(
        &self,
        saved: Option<Lease>,
        request: &LeaseRequest<'_>,
    ) -> Result<LeasePreview, AcquireError> {
        let is_kept = |lease: &Lease| allocate::fits(request.pools, &lease.subnets);
        let (subnets, origin, obsolete) = match saved.filter(is_kept) {
            Some(lease) => (lease.subnets, LeaseOrigin::Kept, Vec::new()),
            None => match self.choose(request)? {
                Choice::Keep { subnets, .. } => (subnets, LeaseOrigin::Kept, Vec::new()),
                Choice::Create { subnets, obsolete, is_random } => {
                    let origin = if is_random { LeaseOrigin::Free } else { LeaseOrigin::Known };
                    (subnets, origin, obsolete)
                }
            },
        };
        let lease = Lease { subnets, attributes: request.attributes.clone() };
        Ok(LeasePreview { lease, origin, obsolete: obsolete.iter().map(print_key).collect() })
    }

    fn acquire<'a>(
        &'a self,
        request: &'a LeaseRequest<'a>,
    ) -> BoxFuture<'a, Result<HeldLease, AcquireError>> {
        Box::pin(self.acquire_lease(request))
    }

    fn renew_with<'a>(
        &'a self,
        held: &'a HeldLease,
        request: &'a LeaseRequest<'a>,
    ) -> BoxFuture<'a, Result<Option<HeldLease>, AcquireError>> {
        Box::pin(self.renew_lease_with(held, request))
    }

    fn renew<'a>(&'a self, held: &'a mut HeldLease) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(self.renew_lease(held))
    }

    fn release_saved<'a>(
        &'a self,
        saved: &'a str,
        dry_run: bool,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let Some((name, value)) = saved.trim_end().split_once(' ') else { return Ok(false) };
            let entry = self.store.get(&self.keys.lease(name)).await?;
            let is_saved = |entry: &Entry| entry.expires && entry.value == value.as_bytes();
            let Some(entry) = entry.filter(is_saved) else { return Ok(false) };
            if dry_run {
                return Ok(true);
            }
            Ok(self.store.delete(&entry.key, Some(entry.revision)).await?.is_done())
        })
    }
}

/// Values that are too large or not UTF-8 are no leases and are left out.
fn to_cached(entry: Entry) -> Option<CachedEntry> {
    if entry.oversized.is_some() {
        return None;
    }
    Some(CachedEntry {
        value: String::from_utf8(entry.value).ok()?,
        key: entry.key,
        revision: entry.revision.0,
        created: entry.created.0,
        expires: entry.expires,
    })
}

fn from_cached(cached: CachedEntry) -> Entry {
    Entry {
        key: cached.key,
        value: cached.value.into_bytes(),
        revision: Revision(cached.revision),
        created: Revision(cached.created),
        expires: cached.expires,
        oversized: None,
    }
}
