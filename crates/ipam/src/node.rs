// SPDX-License-Identifier: Apache-2.0
//! The addresses of one node, as a state machine: events in, actions out.
//!
//! The node owns blocks. In the stored block it sets addresses aside in advance, so it can assign them without asking
//! the store, and writes the users afterwards. Before it answers, it writes a journal file, so that it knows the
//! address after a restart.
//!
//! The machine compares each object in the store with its desired state. A difference leads to one operation, and the
//! machine awaits its result before the next operation on this object. So lost, repeated and late messages do no harm,
//! and several assignments share a write.
//!
//! | part | state |
//! |---|---|
//! | `block_work` | one block: addresses held by this node, next write |
//! | `objects` | all objects in the store, operations in flight |
//! | `affinities`, `handles` | the objects that follow from blocks and assignments |
//! | `requests` | requests that are not finished |
//! | `table` | assigned addresses |
//!
//! The caller performs the actions and reports results. The order of store operations is free, because there is one per
//! object at a time. After a crash it starts with a new machine, the journal and a list of the store.

mod affinities;
mod block_work;
mod blocks;
mod handles;
mod known;
pub mod messages;
mod objects;
mod requests;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::Timestamp;
use crate::block::{Block, Ordinal};
use crate::collect::Collected;
use crate::node::block_work::{Lost, PartId};
use crate::node::objects::{Effect, Objects};
use crate::node::requests::{Pending, Placement, Requests, Stage, place};
use crate::node::table::Table;

pub use messages::{
    Action, AssignError, AssignRequest, Assigned, Attachment, Content, Event, JournalEntry,
    JournalOp, OpId, Outcome, Pod, Problem, Reply, Revision, Settings, StoreOp, Stored, Ticket,
    Tunnel, Verb,
};

/// The state machine of a node.
#[derive(Debug)]
pub struct Node {
    start: Start,
    objects: Objects,
    table: Table,
    requests: Requests,
    journal: Journal,
}

/// Inputs that the node needs before it assigns addresses.
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

type Actions = Vec<Action>;

impl Node {
    pub fn new(name: &str) -> Self {
        Self::with_first_id(name, OpId(0))
    }

    /// Creates a machine whose operations have greater numbers than `id`, so that late results of an earlier machine are
    /// recognized.
    pub fn with_first_id(name: &str, id: OpId) -> Self {
        Self {
            start: Start::default(),
            objects: Objects::new(name, id.0),
            table: Table::default(),
            requests: Requests::default(),
            journal: Journal::default(),
        }
    }

    /// Processes an event and returns what to do.
    pub fn step(&mut self, now: Timestamp, event: Event) -> Vec<Action> {
        let mut actions = Actions::new();
        match event {
            Event::Settings(settings) => self.set_settings(settings, now),
            Event::Journal(entries) => self.load_journal(entries, &mut actions),
            Event::Listed { at, objects } => {
                self.start.has_list = true;
                let effects = self.objects.listed(at, objects, now, &mut actions);
                self.apply(effects, &mut actions);
                self.forget_released();
            }
            Event::Changed(stored) => {
                let effects = self.objects.changed(stored, now, &mut actions);
                self.apply(effects, &mut actions);
            }
            Event::StoreDone { id, outcome } => {
                let effects = self.objects.done(id, outcome, now, &mut actions);
                self.apply(effects, &mut actions);
            }
            Event::JournalDone { id, result } => self.journal_done(id, result, now, &mut actions),
            Event::Assign { ticket, request } => self.assign(ticket, request, now, &mut actions),
            Event::Release { ticket, handle, interface } => {
                self.release(ticket, &handle, interface.as_deref(), &mut actions);
            }
            Event::Gc { ticket, network, valid } => self.gc(ticket, &network, &valid, &mut actions),
            Event::Collect(collected) => self.collect(collected, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        if self.is_ready() {
            self.place_all(now, &mut actions);
            self.objects.flush(now, &mut actions);
        }
        actions
    }

    fn is_ready(&self) -> bool {
        self.start.has_settings && self.start.has_journal && self.start.has_list
    }

    /// Returns when [`Event::Tick`] is due at the latest, if nothing else happens.
    pub fn next_tick(&self) -> Option<Timestamp> {
        let placing = self.requests.all.values().filter(|p| p.stage == Stage::Placing);
        let deadlines = placing.map(|pending| pending.request.deadline);
        let objects = self.is_ready().then(|| self.objects.next_tick()).flatten();
        deadlines.chain(objects).min()
    }
}

/// Views for status, routes and the collector.
impl Node {
    pub fn name(&self) -> &str {
        &self.objects.node
    }

    pub fn settings(&self) -> &Settings {
        &self.objects.settings
    }

    /// Returns all stored blocks, also those of other nodes.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.objects.blocks.stored()
    }

    /// Returns the blocks of this node, as stored.
    pub fn own_blocks(&self) -> impl Iterator<Item = &Block> {
        self.objects.blocks.own().filter_map(|(_, work)| work.known.object())
    }

    /// Returns all stored blocks with their revisions.
    pub fn block_revisions(&self) -> impl Iterator<Item = (Revision, &Block)> {
        self.objects.blocks.iter().filter_map(|(_, work)| work.known.present())
    }

    /// Returns the known affinities: node, block and revision.
    pub fn affinities(&self) -> impl Iterator<Item = (&str, IpNet, Revision)> {
        self.objects.affinities.iter().filter_map(|((node, block), work)| {
            let (revision, _) = work.known.present()?;
            Some((node.as_str(), *block, revision))
        })
    }

    /// Returns the assigned addresses.
    pub fn assignments(&self) -> impl Iterator<Item = &JournalEntry> {
        self.table.iter()
    }

    /// Returns whether an interface has addresses.
    pub fn has_addresses(&self, handle: &str, interface: &str) -> bool {
        self.table.of(handle, Some(interface)).next().is_some()
    }

    /// Returns the addresses that can be assigned now without the store.
    pub fn ready_addresses(&self, now: Timestamp) -> Vec<IpAddr> {
        let context = self.objects.context(now);
        let own = self.objects.blocks.own();
        let usable = own.filter(|(_, work)| work.is_usable(context.node));
        usable.flat_map(|(_, work)| work.ready(&context)).collect()
    }

    /// Returns whether this node, and not another program on it, wrote an attribute.
    pub(crate) fn wrote(&self, attribute: &crate::block::Attribute) -> bool {
        Attachment::wrote(&self.objects.node, attribute)
    }

    /// Returns why the last store operation failed, if it did.
    pub fn store_error(&self) -> Option<&str> {
        self.objects.error()
    }

    /// Returns whether requests or writes are waiting.
    pub fn is_busy(&self) -> bool {
        !self.requests.all.is_empty() || !self.journal.jobs.is_empty() || !self.objects.is_idle()
    }
}

/// Settings, journal and the state of the store.
impl Node {
    fn set_settings(&mut self, settings: Settings, now: Timestamp) {
        self.objects.settings = settings;
        self.start.has_settings = true;
        let (blocks, _, context) = self.objects.split(now);
        let own: Vec<_> = blocks.own().map(|(cidr, _)| cidr).collect();
        for cidr in own {
            blocks.change(cidr).apply_reservations(&context);
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
            let attribute = entry.attribute(&self.objects.node);
            let work = self.objects.blocks.change(entry.block);
            work.set_used(ordinal, attribute);
            let handle = entry.attachment.handle.clone();
            self.table.insert(entry);
            self.objects.handles.set(&handle, self.table.counts(&handle));
        }
    }

    /// Plans to delete the handles of addresses that were released while the node did not run. The next writes of
    /// their blocks release the addresses.
    fn forget_released(&mut self) {
        let allocations = self.objects.blocks.stored().flat_map(Block::allocations);
        let attributes = allocations.map(|(_, allocation)| &allocation.attribute);
        let own = attributes.filter(|attribute| self.wrote(attribute));
        let handles = own.filter(|attribute| attribute.reserved_by().is_none());
        let handles: BTreeSet<_> = handles
            .filter_map(|attribute| attribute.handle())
            .filter(|handle| self.table.of(handle, None).next().is_none())
            .filter(|handle| self.requests.of(handle, None).is_empty())
            .map(str::to_owned)
            .collect();
        for handle in handles {
            self.objects.handles.set(&handle, BTreeMap::new());
        }
    }

    /// Updates requests and assignments after changes of blocks.
    fn apply(&mut self, effects: Vec<Effect>, actions: &mut Actions) {
        for effect in effects {
            match effect {
                Effect::Served(part, cidr, ordinal) => {
                    if !self.requests.set_held(part, Some((cidr, ordinal))) {
                        // The request has failed in the meantime.
                        let node = self.objects.node.clone();
                        self.objects.blocks.change(cidr).put_back(ordinal, &node);
                    }
                }
                Effect::Lost(Lost { part: Some(part), .. }) => self.lose_part(part),
                Effect::Lost(Lost { address, user, .. }) => {
                    self.lose_assignment(address, user, actions);
                }
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
        self.objects.handles.set(&handle, self.table.counts(&handle));
        self.journal.leaving.remove(&address);
        self.forget(entry, actions);
        actions.push(Action::Report(Problem::Lost { address, handle, user }));
    }

    fn forget(&mut self, entry: JournalEntry, actions: &mut Actions) {
        let id = self.objects.new_id();
        let remove = vec![entry.clone()];
        self.journal.jobs.insert(id, Job::Forget(entry));
        actions.push(Action::Journal(JournalOp { id, write: Vec::new(), remove }));
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
            self.requests.add(ticket, request, &self.objects.node, now);
        }
    }

    fn assigned(&self, address: IpAddr) -> Assigned {
        let pool =
            self.objects.settings.pools.containing(address).map(|pool| pool.name().to_owned());
        Assigned { address, pool }
    }

    /// Finds addresses for all requests. The demands on the store are computed again each time.
    fn place_all(&mut self, now: Timestamp, actions: &mut Actions) {
        let waiting = self.requests.all.iter().filter(|(_, p)| p.stage == Stage::Placing);
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        if waiting.is_empty() {
            return;
        }
        self.objects.blocks.clear_demands();
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
            let (blocks, settings, context) = self.objects.split(now);
            let Some(pending) = self.requests.all.get_mut(&id) else { return };
            if pending.parts[index].held.is_some() || blocks.is_served((id, index)) {
                continue;
            }
            match place(pending, (id, index), blocks, settings, &context) {
                Placement::Held(cidr, ordinal) => pending.parts[index].held = Some((cidr, ordinal)),
                Placement::Demand(cidr, ordinal) => {
                    pending.waits_for = "the write of a block";
                    let demand = pending.demand((id, index), ordinal);
                    blocks.add_demand(cidr, demand);
                }
                Placement::Claim(cidr) => {
                    pending.waits_for = "the claim of a block";
                    self.objects.claim(cidr);
                }
                Placement::Wait(reason) => pending.waits_for = reason,
                Placement::Failed(error) => {
                    self.fail(id, &error, actions);
                    return;
                }
            }
        }
    }

    fn write_journal(&mut self, id: u64, actions: &mut Actions) {
        let op = self.objects.new_id();
        let Some(pending) = self.requests.all.get_mut(&id) else { return };
        pending.stage = Stage::Journaling;
        let write = entries(pending);
        self.journal.jobs.insert(op, Job::Assign(id));
        actions.push(Action::Journal(JournalOp { id: op, write, remove: Vec::new() }));
    }

    /// Ends a request with an error and gives back what it holds.
    fn fail(&mut self, id: u64, error: &AssignError, actions: &mut Actions) {
        let Some(pending) = self.requests.all.remove(&id) else { return };
        for (cidr, ordinal) in pending.parts.iter().filter_map(|part| part.held) {
            self.objects.blocks.change(cidr).put_back(ordinal, &self.objects.node);
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
                self.fail(id, &AssignError::Cancelled, actions);
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
        for (cidr, work) in self.objects.blocks.iter() {
            let Some(block) = work.known.object() else { continue };
            for (ordinal, allocation) in block.allocations() {
                let attribute = &allocation.attribute;
                let is_meant = attribute.handle() == Some(handle)
                    && attribute.node() == Some(&self.objects.node)
                    && !Attachment::wrote(&self.objects.node, attribute);
                if is_meant {
                    found.push((cidr, ordinal, allocation.sequence, block.address(ordinal)));
                }
            }
        }
        for (cidr, ordinal, sequence, _) in &found {
            self.objects.blocks.change(*cidr).plan_release(*ordinal, handle.to_owned(), *sequence);
        }
        if !found.is_empty() {
            self.objects.handles.set(handle, BTreeMap::new());
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
        let id = self.objects.new_id();
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
            Some(Job::Forget(entry)) if result.is_err() => self.journal.stale.push(entry),
            Some(Job::Forget(_)) => {}
            Some(Job::Assign(request)) => self.journal_written(request, result, actions),
            Some(Job::Release { tickets, addresses }) => {
                self.journal_removed(tickets, addresses, result, now, actions);
            }
        }
    }

    fn journal_written(&mut self, id: u64, result: Result<(), String>, actions: &mut Actions) {
        if let Err(reason) = result {
            let releases = match self.requests.all.get(&id).map(|pending| &pending.stage) {
                Some(Stage::Cancelled { releases }) => releases.clone(),
                _ => Vec::new(),
            };
            self.fail(id, &AssignError::Journal(reason), actions);
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
                let attribute = entry.attribute(&self.objects.node);
                self.objects.blocks.change(entry.block).set_used(ordinal, attribute);
            }
            self.table.insert(entry);
        }
        self.objects.handles.set(&handle, self.table.counts(&handle));
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
        let (blocks, _, context) = self.objects.split(now);
        if let Some(ordinal) = ordinal(entry.block, address) {
            blocks.change(entry.block).free(ordinal, &context);
        }
        let handle = &entry.attachment.handle;
        self.objects.handles.set(handle, self.table.counts(handle));
    }

    fn collect(&mut self, collected: Vec<Collected>, actions: &mut Actions) {
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
                        self.objects.blocks.change(block).plan_release(
                            ordinal,
                            handle.clone(),
                            sequence,
                        );
                        self.objects.handles.set(&handle, self.table.counts(&handle));
                    }
                }
                Collected::EmptyBlock { block } => self.objects.give_up(block),
                Collected::EndCooldowns { block } => {
                    self.objects.blocks.change(block).plan_settle();
                }
                Collected::Departed { node, block, revision } => {
                    let is_this = node == self.objects.node;
                    let work = self.objects.blocks.change(block);
                    if !is_this && work.known.revision() == Some(revision) {
                        let handles = work.handles_of(&node);
                        work.plan_departed(node, revision);
                        for handle in handles {
                            self.objects.handles.set(&handle, self.table.counts(&handle));
                        }
                    }
                }
                Collected::DepartedAffinity { node, block, revision } => {
                    self.objects.affinities.plan_departed(&(node, block), revision);
                }
                Collected::Handle { id, revision } => {
                    self.objects.handles.plan_delete(&id, revision);
                }
            }
        }
    }

    fn tick(&mut self, now: Timestamp, actions: &mut Actions) {
        for entry in std::mem::take(&mut self.journal.stale) {
            self.forget(entry, actions);
        }
        let effects = self.objects.tick(now, actions);
        self.apply(effects, actions);
        let late = self.requests.all.iter().filter(|(_, pending)| {
            pending.stage == Stage::Placing && pending.request.deadline <= now
        });
        let late: Vec<_> = late.map(|(id, pending)| (*id, pending.waits_for)).collect();
        for (id, waits_for) in late {
            let waits_for = if waits_for.is_empty() { "the list of blocks" } else { waits_for };
            let reason = match self.objects.error() {
                Some(error) => format!("{waits_for}: {error}"),
                None => waits_for.to_owned(),
            };
            self.fail(id, &AssignError::Waiting(reason), actions);
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
