// SPDX-License-Identifier: Apache-2.0
//! The addresses of one node, as a state machine: events in, actions out.
//!
//! The node owns blocks. In the stored block it sets addresses aside in advance, so it can assign them without asking
//! the store, and writes afterwards who has them. Before it answers, it writes a journal file, so that it knows the
//! address after a restart. The store is brought in line object by object: from what is known of an object and what it
//! should be follows at most one operation, and its result is awaited before the next. So lost, repeated and late
//! messages do no harm, and several assignments share a write.
//!
//! | part | state |
//! |---|---|
//! | [`block_work`] | one block: addresses held by this node, next write |
//! | [`affinities`], [`handles`] | the objects that follow from blocks and assignments |
//! | [`requests`] | requests that are not finished |
//! | [`table`] | assigned addresses |
//!
//! The caller performs the actions and reports results. It may perform store operations in any order, because there is
//! one per object at a time. After a crash it starts with a new machine, the journal and a list of the store.

mod affinities;
mod block_work;
mod blocks;
mod handles;
mod known;
pub mod messages;
mod requests;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::Timestamp;
use crate::block::{Block, Ordinal};
use crate::calico::{Key, Object};
use crate::collect::Collected;
use crate::node::affinities::{Affinities, AffinityKey};
use crate::node::block_work::{Context, Intent, Lost, PartId};
use crate::node::blocks::Blocks;
use crate::node::handles::Handles;
use crate::node::known::{InFlight, Known};
use crate::node::requests::{Pending, Placement, Requests, Stage, place};
use crate::node::table::Table;

pub use messages::{
    Action, AssignError, AssignRequest, Assigned, Attachment, Content, Event, JournalEntry,
    JournalOp, OpId, Outcome, Pod, Problem, Reply, Revision, Settings, StoreOp, Stored, Ticket,
    Tunnel, Verb,
};

/// Delay before the store is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The state machine of a node.
#[derive(Debug)]
pub struct Node {
    name: String,
    settings: Settings,
    start: Start,
    table: Table,
    blocks: Blocks,
    affinities: Affinities,
    handles: Handles,
    requests: Requests,
    journal: Journal,
    store: StoreState,
}

/// What the node needs before it assigns addresses.
#[derive(Debug, Default)]
struct Start {
    has_settings: bool,
    has_journal: bool,
    has_list: bool,
}

/// Journal operations whose result is awaited.
#[derive(Debug, Default)]
struct Journal {
    jobs: BTreeMap<OpId, Job>,
    /// Addresses whose files are being removed.
    leaving: BTreeSet<IpAddr>,
    /// Files of lost addresses that could not be removed.
    stale: Vec<JournalEntry>,
}

#[derive(Debug)]
enum Job {
    /// Removes the file of a lost address.
    Forget(JournalEntry),
    /// Writes the files of a request.
    Assign(u64),
    Release {
        tickets: Vec<Ticket>,
        addresses: Vec<IpAddr>,
    },
}

/// Operations of the store.
#[derive(Debug, Default)]
struct StoreState {
    next_id: u64,
    in_flight: BTreeMap<OpId, Key>,
    /// No operation is started before, because the last one failed.
    retry_at: Timestamp,
    /// Why the last operation failed.
    error: Option<String>,
}

type Actions = Vec<Action>;

impl Node {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: Settings::default(),
            start: Start::default(),
            table: Table::default(),
            blocks: Blocks::default(),
            affinities: Affinities::default(),
            handles: Handles::default(),
            requests: Requests::default(),
            journal: Journal::default(),
            store: StoreState::default(),
        }
    }

    /// Continues the numbers of operations, so that late results of an earlier machine are recognized.
    #[must_use]
    pub fn with_first_id(mut self, id: OpId) -> Self {
        self.store.next_id = id.0;
        self
    }

    /// Processes an event and returns what to do.
    pub fn step(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        let mut actions = Actions::new();
        match event {
            Event::Settings(settings) => self.set_settings(settings, now),
            Event::Journal(entries) => self.load_journal(entries, &mut actions),
            Event::Listed { at, objects } => self.listed(at, objects, now, &mut actions),
            Event::Changed(stored) => self.changed(stored, now, &mut actions),
            Event::StoreDone { id, outcome } => self.store_done(id, outcome, now, &mut actions),
            Event::JournalDone { id, result } => self.journal_done(id, result, now, &mut actions),
            Event::Assign { ticket, request } => self.assign(ticket, request, now, &mut actions),
            Event::Release { ticket, handle, interface } => {
                self.release(ticket, &handle, interface.as_deref(), &mut actions);
            }
            Event::Gc { ticket, network, valid } => self.gc(ticket, &network, &valid, &mut actions),
            Event::Collect(collected) => self.collect(collected, now, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        if self.is_ready() {
            self.place_all(now, &mut actions);
            self.flush(now, &mut actions);
        }
        actions
    }

    fn is_ready(&self) -> bool {
        self.start.has_settings && self.start.has_journal && self.start.has_list
    }

    /// Returns when [`Event::Tick`] is due at the latest, if nothing else happens.
    pub fn next_tick(&self) -> Option<Timestamp> {
        let deadlines = self.requests.all.values().filter(|p| p.stage == Stage::Placing);
        let deadlines = deadlines.map(|pending| pending.request.deadline);
        let blocks = self.blocks.in_flight().filter_map(|(_, work)| work.in_flight.as_ref());
        let blocks = blocks.map(InFlight::timeout);
        let affinities = self.affinities.iter().filter_map(|(_, work)| work.in_flight.as_ref());
        let affinities = affinities.map(InFlight::timeout);
        let handles = self.handles.in_flight().map(|(_, in_flight)| in_flight.timeout());
        let is_dirty =
            self.blocks.has_dirty() || self.affinities.has_dirty() || self.handles.has_dirty();
        let retry = (self.is_ready() && is_dirty).then_some(self.store.retry_at);
        deadlines.chain(blocks).chain(affinities).chain(handles).chain(retry).min()
    }
}

/// Views for status, routes and the collector.
impl Node {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns all stored blocks, also those of other nodes.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.stored()
    }

    /// Returns the blocks of this node, as stored.
    pub fn own_blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.own().filter_map(|(_, work)| work.known.object())
    }

    /// Returns all stored blocks with their revisions.
    pub fn block_revisions(&self) -> impl Iterator<Item = (Revision, &Block)> {
        self.blocks.iter().filter_map(|(_, work)| work.known.present())
    }

    /// Returns the known affinities: node, block and revision.
    pub fn affinities(&self) -> impl Iterator<Item = (&str, IpNet, Revision)> {
        self.affinities.iter().filter_map(|((node, block), work)| {
            let (revision, _) = work.known.present()?;
            Some((node.as_str(), *block, revision))
        })
    }

    /// Returns the assigned addresses.
    pub fn assignments(&self) -> impl Iterator<Item = &JournalEntry> {
        self.table.iter()
    }

    /// Returns the addresses that can be assigned now without the store.
    pub fn ready_addresses(&self, now: Timestamp) -> Vec<IpAddr> {
        let context = self.context(now);
        let usable = self.blocks.own().filter(|(_, work)| work.is_usable(&self.name));
        usable.flat_map(|(_, work)| work.ready(&context)).collect()
    }

    /// Returns whether this node, and not another program on it, wrote an attribute.
    pub(crate) fn wrote(&self, attribute: &crate::block::Attribute) -> bool {
        Attachment::wrote(&self.name, attribute)
    }

    /// Returns why the last store operation failed, if it did.
    pub fn store_error(&self) -> Option<&str> {
        self.store.error.as_deref()
    }

    /// Returns whether requests or writes are waiting.
    pub fn is_busy(&self) -> bool {
        !self.requests.all.is_empty()
            || !self.store.in_flight.is_empty()
            || !self.journal.jobs.is_empty()
            || self.next_tick().is_some()
    }

    fn context(&self, now: Timestamp) -> Context<'_> {
        context(&self.name, &self.settings, now)
    }
}

fn context<'a>(node: &'a str, settings: &'a Settings, now: Timestamp) -> Context<'a> {
    Context {
        node,
        now,
        cooldown: settings.config.cooldown,
        reservations: &settings.reservations,
        strict: settings.config.strict_affinity,
    }
}

/// Settings, journal and the state of the store.
impl Node {
    fn set_settings(&mut self, settings: Settings, now: Timestamp) {
        self.settings = settings;
        self.start.has_settings = true;
        let context = context(&self.name, &self.settings, now);
        let own: Vec<_> = self.blocks.own().map(|(cidr, _)| cidr).collect();
        for cidr in own {
            self.blocks.change(cidr).apply_reservations(&context);
        }
    }

    fn load_journal(&mut self, entries: Vec<JournalEntry>, actions: &mut Actions) {
        self.start.has_journal = true;
        for entry in entries {
            let address = entry.address;
            let Some(ordinal) = ordinal(entry.block, address) else {
                let reason = format!("it is not in block {}", entry.block);
                actions.push(Action::Report(Problem::JournalEntry { address, reason }));
                continue;
            };
            let work = self.blocks.change(entry.block);
            work.set_used(ordinal, entry.attribute(&self.name));
            let handle = entry.attachment.handle.clone();
            self.table.insert(entry);
            self.handles.set(&handle, self.table.counts(&handle));
        }
    }

    fn listed(
        &mut self,
        at: Revision,
        objects: Vec<Stored>,
        now: Timestamp,
        actions: &mut Actions,
    ) {
        let listed: BTreeSet<_> = objects.iter().map(|stored| stored.key.clone()).collect();
        for stored in objects {
            self.changed(stored, now, actions);
        }
        let blocks = self.blocks.iter().map(|(cidr, _)| Key::Block(cidr));
        let affinities = self.affinities.iter();
        let affinities = affinities
            .map(|((node, block), _)| Key::Affinity { node: node.clone(), block: *block });
        let missing: Vec<_> =
            blocks.chain(affinities).filter(|key| !listed.contains(key)).collect();
        for key in missing {
            let content = Content::Deleted;
            self.changed(Stored { key, revision: at, content }, now, actions);
        }
        self.start.has_list = true;
        self.blocks.mark_all_dirty();
    }

    fn changed(&mut self, stored: Stored, now: Timestamp, actions: &mut Actions) {
        let Stored { key, revision, content } = stored;
        if let Content::Malformed(reason) = &content {
            let (key, reason) = (key.to_string(), reason.clone());
            actions.push(Action::Report(Problem::Malformed { key, reason }));
        }
        match key {
            Key::Block(cidr) => {
                let known = to_known(revision, content, |object| match object {
                    Object::Block(block) => Some(block),
                    _ => None,
                });
                let context = context(&self.name, &self.settings, now);
                let lost = self.blocks.learn(cidr, known, &context);
                self.after_block(cidr, lost, actions);
            }
            Key::Affinity { node, block } => {
                let known = to_known(revision, content, |object| match object {
                    Object::Affinity(affinity) => Some(affinity),
                    _ => None,
                });
                self.affinities.change(&(node, block)).known.update(known);
                self.blocks.mark_dirty(block);
            }
            _ => {}
        }
    }

    /// Follows up on a change of a block: claims a block again in which addresses are in use, and handles lost
    /// addresses.
    fn after_block(&mut self, cidr: IpNet, lost: Vec<Lost>, actions: &mut Actions) {
        self.affinities.mark_dirty((self.name.clone(), cidr));
        let is_gone =
            self.blocks.get(cidr).is_some_and(|work| work.known.is_missing() && work.has_used());
        let pool = self.settings.pools.containing(cidr.network());
        if is_gone && pool.is_some_and(|pool| pool.block_size() == cidr.prefix_len()) {
            self.blocks.change(cidr).intent = Intent::Claim;
        }
        self.blocks.index(cidr, &self.name);
        for Lost { address, part, user } in lost {
            match part {
                Some(part) => self.lose_part(part),
                None => self.lose_assignment(address, user, actions),
            }
        }
    }

    fn lose_part(&mut self, part: PartId) {
        let Some(pending) = self.requests.all.get_mut(&part.0) else { return };
        if pending.stage == Stage::Journaling {
            pending.stage = Stage::Cancelled { releases: Vec::new() };
        }
        self.requests.set_held(part, None);
    }

    fn lose_assignment(&mut self, address: IpAddr, user: String, actions: &mut Actions) {
        let Some(entry) = self.table.remove(address) else { return };
        let handle = entry.attachment.handle.clone();
        self.handles.set(&handle, self.table.counts(&handle));
        self.journal.leaving.remove(&address);
        self.forget(entry, actions);
        actions.push(Action::Report(Problem::Lost { address, handle, user }));
    }

    fn forget(&mut self, entry: JournalEntry, actions: &mut Actions) {
        let id = self.new_id();
        let remove = vec![entry.clone()];
        self.journal.jobs.insert(id, Job::Forget(entry));
        actions.push(Action::Journal(JournalOp { id, write: Vec::new(), remove }));
    }

    fn new_id(&mut self) -> OpId {
        self.store.next_id += 1;
        OpId(self.store.next_id)
    }
}

/// Requests.
impl Node {
    fn assign(
        &mut self,
        ticket: Ticket,
        request: AssignRequest,
        now: Timestamp,
        actions: &mut Actions,
    ) {
        let fail = |error| Action::Reply { ticket, reply: Reply::Failed(error) };
        let (handle, interface) = (&request.attachment.handle, &request.attachment.interface);
        let existing: Vec<_> =
            self.table.of(handle, Some(interface)).map(|entry| entry.address).collect();
        if existing.iter().any(|address| self.journal.leaving.contains(address)) {
            actions.push(fail(AssignError::Leaving));
        } else if !existing.is_empty() {
            let assigned = existing.into_iter().map(|address| self.assigned(address)).collect();
            actions.push(Action::Reply { ticket, reply: Reply::Assigned(assigned) });
        } else if let Some(id) = self.requests.of(handle, Some(interface)).first() {
            match self.requests.all.get_mut(id) {
                Some(Pending { stage: Stage::Placing | Stage::Journaling, tickets, .. }) => {
                    tickets.push(ticket);
                }
                _ => actions.push(fail(AssignError::Leaving)),
            }
        } else if request.addresses.is_empty() && !request.ipv4 && !request.ipv6 {
            actions.push(fail(AssignError::Nothing));
        } else {
            self.requests.add(ticket, request, &self.name, now);
        }
    }

    fn assigned(&self, address: IpAddr) -> Assigned {
        let pool = self.settings.pools.containing(address).map(|pool| pool.name().to_owned());
        Assigned { address, pool }
    }

    /// Finds addresses for all requests. What a request needs from the store is computed anew each time.
    fn place_all(&mut self, now: Timestamp, actions: &mut Actions) {
        let waiting = self.requests.all.iter().filter(|(_, p)| p.stage == Stage::Placing);
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        if waiting.is_empty() {
            return;
        }
        self.blocks.clear_demands();
        for id in waiting {
            self.place_request(id, now, actions);
        }
        while let Some(id) = self.requests.complete() {
            self.write_journal(id, actions);
        }
    }

    fn place_request(&mut self, id: u64, now: Timestamp, actions: &mut Actions) {
        let count = self.requests.all.get(&id).map_or(0, |pending| pending.parts.len());
        for index in 0..count {
            let context = context(&self.name, &self.settings, now);
            let Some(pending) = self.requests.all.get_mut(&id) else { return };
            if pending.parts[index].held.is_some() || self.blocks.is_served((id, index)) {
                continue;
            }
            match place(pending, (id, index), &mut self.blocks, &self.settings, &context) {
                Placement::Held(cidr, ordinal) => pending.parts[index].held = Some((cidr, ordinal)),
                Placement::Demand(cidr, ordinal) => {
                    pending.waits_for = "the write of a block";
                    let demand = pending.demand((id, index), ordinal);
                    self.blocks.add_demand(cidr, demand);
                }
                Placement::Claim(cidr) => {
                    pending.waits_for = "the claim of a block";
                    self.claim(cidr);
                }
                Placement::Wait(reason) => pending.waits_for = reason,
                Placement::Failed(error) => {
                    self.fail(id, &error, now, actions);
                    return;
                }
            }
        }
    }

    fn claim(&mut self, cidr: IpNet) {
        let work = self.blocks.change(cidr);
        work.known.update(Known::Missing(Revision(0)));
        work.intent = Intent::Claim;
        self.blocks.index(cidr, &self.name);
        self.affinities.mark_dirty((self.name.clone(), cidr));
    }

    fn write_journal(&mut self, id: u64, actions: &mut Actions) {
        let op = self.new_id();
        let Some(pending) = self.requests.all.get_mut(&id) else { return };
        pending.stage = Stage::Journaling;
        let write = entries(pending);
        self.journal.jobs.insert(op, Job::Assign(id));
        actions.push(Action::Journal(JournalOp { id: op, write, remove: Vec::new() }));
    }

    /// Ends a request with an error and gives back what it holds.
    fn fail(&mut self, id: u64, error: &AssignError, now: Timestamp, actions: &mut Actions) {
        let Some(pending) = self.requests.all.remove(&id) else { return };
        let _ = now;
        for (cidr, ordinal) in pending.parts.iter().filter_map(|part| part.held) {
            self.blocks.change(cidr).put_back(ordinal, &self.name);
        }
        for ticket in pending.tickets {
            actions.push(Action::Reply { ticket, reply: Reply::Failed(error.clone()) });
        }
    }

    fn release(
        &mut self,
        ticket: Ticket,
        handle: &str,
        interface: Option<&str>,
        actions: &mut Actions,
    ) {
        let mut is_unfinished = false;
        for id in self.requests.of(handle, interface) {
            is_unfinished |= self.cancel(id, ticket, actions);
        }
        if is_unfinished {
            return;
        }
        let entries = self.table.of(handle, interface).map(|entry| entry.address).collect();
        let is_empty = self.table.of(handle, interface).next().is_none();
        if is_empty && self.is_ready() {
            let released = self.release_foreign(handle);
            actions.push(Action::Reply { ticket, reply: Reply::Released(released) });
        } else {
            self.remove(entries, Some(ticket), actions);
        }
    }

    /// Cancels a request. Returns whether the release has to wait for the journal.
    fn cancel(&mut self, id: u64, ticket: Ticket, actions: &mut Actions) -> bool {
        let Some(pending) = self.requests.all.get_mut(&id) else { return false };
        match &mut pending.stage {
            Stage::Placing => {
                self.fail(id, &AssignError::Cancelled, Timestamp::default(), actions);
                false
            }
            Stage::Journaling => {
                pending.stage = Stage::Cancelled { releases: vec![ticket] };
                true
            }
            Stage::Cancelled { releases } => {
                releases.push(ticket);
                true
            }
        }
    }

    /// Releases addresses that Calico assigned on this node before podwire took over.
    fn release_foreign(&mut self, handle: &str) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for (cidr, work) in self.blocks.iter() {
            let Some(block) = work.known.object() else { continue };
            for (ordinal, allocation) in block.allocations() {
                let attribute = &allocation.attribute;
                let is_meant = attribute.handle() == Some(handle)
                    && attribute.node() == Some(&self.name)
                    && !Attachment::wrote(&self.name, attribute);
                if is_meant {
                    found.push((cidr, ordinal, allocation.sequence, block.address(ordinal)));
                }
            }
        }
        for (cidr, ordinal, sequence, _) in &found {
            self.blocks.change(*cidr).plan_release(*ordinal, handle.to_owned(), *sequence);
        }
        if !found.is_empty() {
            self.handles.set(handle, BTreeMap::new());
        }
        found.into_iter().map(|(.., address)| address).collect()
    }

    fn gc(
        &mut self,
        ticket: Ticket,
        network: &str,
        valid: &BTreeSet<(String, String)>,
        actions: &mut Actions,
    ) {
        let is_invalid = |entry: &&JournalEntry| {
            let attachment = &entry.attachment;
            let pair = (attachment.container_id.clone(), attachment.interface.clone());
            attachment.network == network && attachment.tunnel.is_none() && !valid.contains(&pair)
        };
        let invalid = self.table.iter().filter(is_invalid).map(|entry| entry.address).collect();
        self.remove(invalid, Some(ticket), actions);
    }

    /// Removes the journal files of addresses. Only then they can be assigned again.
    fn remove(&mut self, addresses: Vec<IpAddr>, ticket: Option<Ticket>, actions: &mut Actions) {
        let (leaving, addresses): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| self.journal.leaving.contains(address));
        if addresses.is_empty() {
            let running = self.journal.jobs.values_mut().find_map(|job| match job {
                Job::Release { tickets, addresses }
                    if addresses.iter().any(|a| leaving.contains(a)) =>
                {
                    Some(tickets)
                }
                _ => None,
            });
            match (running, ticket) {
                (Some(tickets), Some(ticket)) => tickets.push(ticket),
                (None, Some(ticket)) => {
                    actions.push(Action::Reply { ticket, reply: Reply::Released(Vec::new()) });
                }
                (_, None) => {}
            }
            return;
        }
        let id = self.new_id();
        let remove = addresses.iter().filter_map(|address| self.table.get(*address)).cloned();
        let remove = remove.collect();
        self.journal.leaving.extend(&addresses);
        let tickets = ticket.into_iter().collect();
        self.journal.jobs.insert(id, Job::Release { tickets, addresses });
        actions.push(Action::Journal(JournalOp { id, write: Vec::new(), remove }));
    }

    fn journal_done(
        &mut self,
        id: OpId,
        result: Result<(), String>,
        now: Timestamp,
        actions: &mut Actions,
    ) {
        match self.journal.jobs.remove(&id) {
            None => {}
            Some(Job::Forget(entry)) => {
                if result.is_err() {
                    self.journal.stale.push(entry);
                }
            }
            Some(Job::Assign(request)) => self.journal_written(request, result, now, actions),
            Some(Job::Release { tickets, addresses }) => {
                self.journal_removed(tickets, addresses, result, now, actions);
            }
        }
    }

    fn journal_written(
        &mut self,
        id: u64,
        result: Result<(), String>,
        now: Timestamp,
        actions: &mut Actions,
    ) {
        if let Err(reason) = result {
            let releases = match self.requests.all.get(&id).map(|pending| &pending.stage) {
                Some(Stage::Cancelled { releases }) => releases.clone(),
                _ => Vec::new(),
            };
            self.fail(id, &AssignError::Journal(reason), now, actions);
            for ticket in releases {
                actions.push(Action::Reply { ticket, reply: Reply::Released(Vec::new()) });
            }
            return;
        }
        let Some(pending) = self.requests.all.remove(&id) else { return };
        let handle = pending.attachment.handle.clone();
        let entries = entries(&pending);
        let addresses: Vec<_> = entries.iter().map(|entry| entry.address).collect();
        for entry in entries {
            if let Some(ordinal) = ordinal(entry.block, entry.address) {
                let attribute = entry.attribute(&self.name);
                self.blocks.change(entry.block).set_used(ordinal, attribute);
            }
            self.table.insert(entry);
        }
        self.handles.set(&handle, self.table.counts(&handle));
        let reply = match &pending.stage {
            Stage::Cancelled { .. } => Reply::Failed(AssignError::Cancelled),
            _ => Reply::Assigned(addresses.iter().map(|a| self.assigned(*a)).collect()),
        };
        for ticket in pending.tickets {
            actions.push(Action::Reply { ticket, reply: reply.clone() });
        }
        if let Stage::Cancelled { releases } = pending.stage {
            self.remove(addresses.clone(), None, actions);
            for ticket in releases {
                self.remove(addresses.clone(), Some(ticket), actions);
            }
        }
    }

    fn journal_removed(
        &mut self,
        tickets: Vec<Ticket>,
        addresses: Vec<IpAddr>,
        result: Result<(), String>,
        now: Timestamp,
        actions: &mut Actions,
    ) {
        // An address that was lost in the meantime is not this node's any more.
        let addresses: Vec<_> =
            addresses.into_iter().filter(|address| self.journal.leaving.remove(address)).collect();
        let reply = match result {
            Err(reason) => Reply::Failed(AssignError::Journal(reason)),
            Ok(()) => {
                for address in &addresses {
                    self.free(*address, now);
                }
                Reply::Released(addresses)
            }
        };
        for ticket in tickets {
            actions.push(Action::Reply { ticket, reply: reply.clone() });
        }
    }

    fn free(&mut self, address: IpAddr, now: Timestamp) {
        let Some(entry) = self.table.remove(address) else { return };
        let context = context(&self.name, &self.settings, now);
        if let Some(ordinal) = ordinal(entry.block, address) {
            self.blocks.change(entry.block).free(ordinal, &context);
        }
        let handle = &entry.attachment.handle;
        self.handles.set(handle, self.table.counts(handle));
    }

    fn collect(&mut self, collected: Vec<Collected>, now: Timestamp, actions: &mut Actions) {
        let _ = now;
        for item in collected {
            match item {
                Collected::Assignment { address, handle, assigned_at } => {
                    let entry = self.table.get(address);
                    let is_same = entry.is_some_and(|entry| {
                        entry.attachment.handle == handle && entry.assigned_at == assigned_at
                    });
                    if is_same {
                        self.remove(vec![address], None, actions);
                    }
                }
                Collected::Allocation { block, address, handle, sequence } => {
                    if let Some(ordinal) = ordinal(block, address) {
                        self.blocks.change(block).plan_release(ordinal, handle.clone(), sequence);
                        self.handles.set(&handle, self.table.counts(&handle));
                    }
                }
                Collected::EmptyBlock { block } => self.give_up(block),
                Collected::EndCooldowns { block } => self.blocks.change(block).plan_settle(),
                Collected::Departed { node, block, revision } => {
                    let work = self.blocks.change(block);
                    if node != self.name && work.known.revision() == Some(revision) {
                        work.plan_departed(node, revision);
                    }
                }
                Collected::DepartedAffinity { node, block, revision } => {
                    self.affinities.plan_departed(&(node, block), revision);
                }
                Collected::Handle { id, revision } => self.handles.plan_delete(&id, revision),
            }
        }
    }

    /// Starts to delete an own block that nobody uses.
    fn give_up(&mut self, cidr: IpNet) {
        let work = self.blocks.change(cidr);
        if work.is_usable(&self.name) && work.in_flight.is_none() && work.is_unused() {
            work.intent = Intent::Release;
            self.affinities.mark_dirty((self.name.clone(), cidr));
        }
    }

    fn tick(&mut self, now: Timestamp, actions: &mut Actions) {
        for entry in std::mem::take(&mut self.journal.stale) {
            self.forget(entry, actions);
        }
        let lost: Vec<_> = self
            .blocks
            .in_flight()
            .filter_map(|(_, work)| work.in_flight.as_ref())
            .filter(|in_flight| in_flight.is_lost(now))
            .map(|in_flight| in_flight.id)
            .chain(self.affinities.iter().filter_map(|(_, work)| {
                work.in_flight.as_ref().filter(|f| f.is_lost(now)).map(|f| f.id)
            }))
            .chain(self.handles.in_flight().filter(|(_, f)| f.is_lost(now)).map(|(_, f)| f.id))
            .collect();
        for id in lost {
            let outcome = Outcome::Unreachable("no answer".to_owned());
            self.store_done(id, outcome, now, actions);
        }
        let late = self.requests.all.iter().filter(|(_, pending)| {
            pending.stage == Stage::Placing && pending.request.deadline <= now
        });
        let late: Vec<_> = late.map(|(id, pending)| (*id, pending.waits_for)).collect();
        for (id, waits_for) in late {
            let waits_for = if waits_for.is_empty() { "the list of blocks" } else { waits_for };
            let reason = match &self.store.error {
                Some(error) => format!("{waits_for}: {error}"),
                None => waits_for.to_owned(),
            };
            self.fail(id, &AssignError::Waiting(reason), now, actions);
        }
    }
}

/// The store.
impl Node {
    /// Starts the operations that bring the store in line.
    fn flush(&mut self, now: Timestamp, actions: &mut Actions) {
        if now < self.store.retry_at {
            return;
        }
        for cidr in self.blocks.take_dirty() {
            self.flush_block(cidr, now, actions);
        }
        for key in self.affinities.take_dirty() {
            self.flush_affinity(&key, now, actions);
        }
        for id in self.handles.take_dirty() {
            self.flush_handle(&id, now, actions);
        }
    }

    fn flush_block(&mut self, cidr: IpNet, now: Timestamp, actions: &mut Actions) {
        let key = (self.name.clone(), cidr);
        self.affinities.mark_dirty(key.clone());
        let intent = self.blocks.get(cidr).map_or(Intent::Keep, |work| work.intent);
        let is_due = match intent {
            Intent::Keep => true,
            Intent::Claim => self.affinities.is_claimed(&key),
            Intent::Release => self.affinities.is_given_up(&key),
        };
        if !is_due {
            return;
        }
        let pool = self.settings.pools.containing(cidr.network());
        let automatic = pool.is_some_and(|pool| {
            !pool.conf().disabled && pool.conf().assignment == crate::pool::Assignment::Automatic
        });
        let context = context(&self.name, &self.settings, now);
        let Some(write) = self.blocks.next_write(cidr, automatic, &context) else { return };
        let (expected, block, verb) = match write {
            block_work::Write::Create(block) => {
                (None, Some(block.clone()), Verb::Create(Object::Block(block)))
            }
            block_work::Write::Replace(at, block) => {
                (Some(at), Some(block.clone()), Verb::Replace(at, Object::Block(block)))
            }
            block_work::Write::Delete(at) => (Some(at), None, Verb::Delete(at)),
        };
        let id = self.send(Key::Block(cidr), verb, actions);
        let in_flight = InFlight { id, expected, object: block, sent: now };
        self.blocks.start(cidr, in_flight, &self.name);
    }

    fn flush_affinity(&mut self, key: &AffinityKey, now: Timestamp, actions: &mut Actions) {
        let block = self.blocks.get(key.1);
        let Some(write) = self.affinities.next_write(key, &self.name, block) else { return };
        let (expected, affinity, verb) = match write {
            affinities::Write::Create(affinity) => {
                (None, Some(affinity.clone()), Verb::Create(Object::Affinity(affinity)))
            }
            affinities::Write::Replace(at, affinity) => {
                (Some(at), Some(affinity.clone()), Verb::Replace(at, Object::Affinity(affinity)))
            }
            affinities::Write::Delete(at) => (Some(at), None, Verb::Delete(at)),
        };
        let id = self.send(Key::Affinity { node: key.0.clone(), block: key.1 }, verb, actions);
        self.affinities.change(key).start(id, expected, affinity, now);
    }

    fn flush_handle(&mut self, handle: &str, now: Timestamp, actions: &mut Actions) {
        let Some(write) = self.handles.next_write(handle) else { return };
        let (expected, object, verb) = match write {
            handles::Write::Read => (None, None, Verb::Read),
            handles::Write::Create(object) => {
                (None, Some(object.clone()), Verb::Create(Object::Handle(object)))
            }
            handles::Write::Replace(at, object) => {
                (Some(at), Some(object.clone()), Verb::Replace(at, Object::Handle(object)))
            }
            handles::Write::Delete(at) => (Some(at), None, Verb::Delete(at)),
        };
        let id = self.send(Key::Handle(handle.to_owned()), verb, actions);
        self.handles.start(handle, InFlight { id, expected, object, sent: now });
    }

    fn send(&mut self, key: Key, verb: Verb, actions: &mut Actions) -> OpId {
        let id = self.new_id();
        self.store.in_flight.insert(id, key.clone());
        actions.push(Action::Store(StoreOp { id, key, verb }));
        id
    }

    fn store_done(&mut self, id: OpId, outcome: Outcome, now: Timestamp, actions: &mut Actions) {
        let Some(key) = self.store.in_flight.remove(&id) else { return };
        match &outcome {
            Outcome::Unreachable(error) => {
                self.store.retry_at = now + RETRY_DELAY;
                self.store.error = Some(error.clone());
            }
            Outcome::Done(_) | Outcome::Current(_) => self.store.error = None,
        }
        match key {
            Key::Block(cidr) => self.block_done(cidr, outcome, now, actions),
            Key::Affinity { node, block } => self.affinity_done(&(node, block), outcome),
            Key::Handle(handle) => self.handle_done(&handle, outcome),
            _ => {}
        }
    }

    fn block_done(&mut self, cidr: IpNet, outcome: Outcome, now: Timestamp, actions: &mut Actions) {
        let context = context(&self.name, &self.settings, now);
        let work = self.blocks.change(cidr);
        let lost = match outcome {
            Outcome::Done(revision) => {
                let (lost, served) = work.written(revision, &context);
                for (part, ordinal) in served {
                    if !self.requests.set_held(part, Some((cidr, ordinal))) {
                        // The request has failed in the meantime.
                        work.put_back(ordinal, &self.name);
                    }
                }
                lost
            }
            Outcome::Current(None) => {
                let expected = work.not_written().and_then(|in_flight| in_flight.expected);
                work.learn_gone(expected, &context)
            }
            Outcome::Current(Some(stored)) => {
                work.not_written();
                self.changed(*stored, now, actions);
                Vec::new()
            }
            Outcome::Unreachable(_) => {
                work.not_written();
                Vec::new()
            }
        };
        self.after_block(cidr, lost, actions);
    }

    fn affinity_done(&mut self, key: &AffinityKey, outcome: Outcome) {
        let work = self.affinities.change(key);
        let Some(in_flight) = work.in_flight.take() else { return };
        match outcome {
            Outcome::Done(revision) => {
                work.known.update(in_flight.written(revision));
            }
            Outcome::Current(None) => {
                work.known.gone(in_flight.expected);
            }
            Outcome::Current(Some(stored)) => {
                let Stored { revision, content, .. } = *stored;
                let known = to_known(revision, content, |object| match object {
                    Object::Affinity(affinity) => Some(affinity),
                    _ => None,
                });
                work.known.update(known);
            }
            Outcome::Unreachable(_) => {}
        }
        self.blocks.mark_dirty(key.1);
    }

    fn handle_done(&mut self, handle: &str, outcome: Outcome) {
        let Some(in_flight) = self.handles.end(handle) else { return };
        let Some(work) = self.handles.get_mut(handle) else { return };
        match outcome {
            Outcome::Done(revision) => {
                work.known.update(in_flight.written(revision));
            }
            Outcome::Current(None) => {
                // Handles are not watched, so no newer report can come.
                work.known = Known::Missing(in_flight.expected.unwrap_or_default());
            }
            Outcome::Current(Some(stored)) => {
                let Stored { revision, content, .. } = *stored;
                let known = to_known(revision, content, |object| match object {
                    Object::Handle(handle) => Some(handle),
                    _ => None,
                });
                work.known.update(known);
            }
            Outcome::Unreachable(_) => {}
        }
    }
}

/// Returns the journal entries of a request whose parts all have addresses.
fn entries(pending: &Pending) -> Vec<JournalEntry> {
    let held = pending.parts.iter().filter_map(|part| part.held);
    let entries = held.map(|(block, ordinal)| JournalEntry {
        address: crate::cidr::nth(block, ordinal),
        block,
        assigned_at: pending.started,
        attachment: (*pending.attachment).clone(),
    });
    entries.collect()
}

fn ordinal(block: IpNet, address: IpAddr) -> Option<Ordinal> {
    let bits = crate::range::bits;
    let offset = || bits(address) - bits(block.network());
    block.contains(&address).then(offset)?.try_into().ok()
}

fn to_known<T>(
    revision: Revision,
    content: Content,
    select: impl FnOnce(Object) -> Option<T>,
) -> Known<T> {
    match content {
        Content::Deleted => Known::Missing(revision),
        Content::Malformed(_) => Known::Malformed(revision),
        Content::Object(object) => match select(object) {
            Some(object) => Known::Present(revision, object),
            None => Known::Malformed(revision),
        },
    }
}
