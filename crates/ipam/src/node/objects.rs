// SPDX-License-Identifier: Apache-2.0
//! The objects in the store as the node knows them, and the operations that bring the store in line.
//!
//! Each object is compared with what it should be after every change of either. At most one operation per object is in
//! flight; its result, or a report of another change, leads to the next comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipnet::IpNet;

use crate::Timestamp;
use crate::block::Ordinal;
use crate::calico::{Key, Object};
use crate::node::affinities::{self, Affinities, AffinityKey};
use crate::node::block_work::{self, Context, Intent, Lost, PartId};
use crate::node::blocks::Blocks;
use crate::node::handles::{self, Handles};
use crate::node::known::{InFlight, Known};
use crate::node::messages::{
    Action, Content, OpId, Outcome, Problem, Revision, Settings, StoreOp, Stored, Verb,
};
use crate::pool::Assignment;

/// Delay before the store is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) node: String,
    pub(crate) settings: Settings,
    pub(crate) blocks: Blocks,
    pub(crate) affinities: Affinities,
    pub(crate) handles: Handles,
    last_id: u64,
    in_flight: BTreeMap<OpId, Key>,
    /// No operation is started before, because the last one failed.
    retry_at: Timestamp,
    /// Why the last operation failed.
    error: Option<String>,
}

/// Consequence of a change of a block for requests and assignments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A part of a request has an address now.
    Served(PartId, IpNet, Ordinal),
    Lost(Lost),
}

impl Objects {
    pub(crate) fn new(node: &str, first_id: u64) -> Self {
        Self {
            node: node.to_owned(),
            settings: Settings::default(),
            blocks: Blocks::default(),
            affinities: Affinities::default(),
            handles: Handles::default(),
            last_id: first_id,
            in_flight: BTreeMap::new(),
            retry_at: Timestamp::default(),
            error: None,
        }
    }

    pub(crate) fn context(&self, now: Timestamp) -> Context<'_> {
        context(&self.node, &self.settings, now)
    }

    /// Returns the blocks for changes, and what decisions about them depend on.
    pub(crate) fn split(&mut self, now: Timestamp) -> (&mut Blocks, &Settings, Context<'_>) {
        (&mut self.blocks, &self.settings, context(&self.node, &self.settings, now))
    }

    pub(crate) fn new_id(&mut self) -> OpId {
        self.last_id += 1;
        OpId(self.last_id)
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.is_dirty()
    }

    fn is_dirty(&self) -> bool {
        self.blocks.has_dirty() || self.affinities.has_dirty() || self.handles.has_dirty()
    }

    /// Returns when something is due: a timeout, or another attempt.
    pub(crate) fn next_tick(&self) -> Option<Timestamp> {
        let timeouts = self.timeouts().map(|(_, at)| at);
        timeouts.chain(self.is_dirty().then_some(self.retry_at)).min()
    }

    /// Returns the operations in flight, and when their results count as lost.
    fn timeouts(&self) -> impl Iterator<Item = (OpId, Timestamp)> {
        let blocks = self.blocks.in_flight().filter_map(|(_, work)| work.in_flight.as_ref());
        let blocks = blocks.map(|in_flight| (in_flight.id, in_flight.timeout()));
        let affinities = self.affinities.iter().filter_map(|(_, work)| work.in_flight.as_ref());
        let affinities = affinities.map(|in_flight| (in_flight.id, in_flight.timeout()));
        let handles = self.handles.in_flight();
        let handles = handles.map(|(_, in_flight)| (in_flight.id, in_flight.timeout()));
        blocks.chain(affinities).chain(handles)
    }

    /// Gives up operations without result.
    pub(crate) fn tick(&mut self, now: Timestamp, actions: &mut Vec<Action>) -> Vec<Effect> {
        let lost: Vec<_> = self.timeouts().filter(|(_, at)| *at <= now).map(|(id, _)| id).collect();
        let mut effects = Vec::new();
        for id in lost {
            let outcome = Outcome::Unreachable("no answer".to_owned());
            effects.extend(self.done(id, outcome, now, actions));
        }
        effects
    }

    /// Takes over all blocks and affinities at one revision.
    pub(crate) fn listed(
        &mut self,
        at: Revision,
        objects: Vec<Stored>,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) -> Vec<Effect> {
        let listed: BTreeSet<_> = objects.iter().map(|stored| stored.key.clone()).collect();
        let blocks = self.blocks.iter().map(|(cidr, _)| Key::Block(cidr));
        let affinities = self.affinities.iter();
        let affinities = affinities
            .map(|((node, block), _)| Key::Affinity { node: node.clone(), block: *block });
        let missing = blocks.chain(affinities).filter(|key| !listed.contains(key));
        let missing = missing.map(|key| Stored { key, revision: at, content: Content::Deleted });
        let all: Vec<_> = missing.collect();
        let mut effects = Vec::new();
        for stored in all.into_iter().chain(objects) {
            effects.extend(self.changed(stored, now, actions));
        }
        self.blocks.mark_all_dirty();
        effects
    }

    /// Takes over a state of an object, if it is newer than the known one.
    pub(crate) fn changed(
        &mut self,
        stored: Stored,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) -> Vec<Effect> {
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
                let (blocks, _, context) = self.split(now);
                let lost = blocks.change(cidr).learn(known, &context);
                self.after_block(cidr);
                lost.into_iter().map(Effect::Lost).collect()
            }
            Key::Affinity { node, block } => {
                let known = to_affinity(revision, content);
                self.affinities.change(&(node, block)).known.update(known);
                self.blocks.mark_dirty(block);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Follows up on a change of a block. A block is claimed again if it is gone although addresses are in use.
    fn after_block(&mut self, cidr: IpNet) {
        self.handles.block_changed(cidr);
        self.affinities.mark_dirty((self.node.clone(), cidr));
        let is_gone =
            self.blocks.get(cidr).is_some_and(|work| work.known.is_missing() && work.has_used());
        let pool = self.settings.pools.containing(cidr.network());
        if is_gone && pool.is_some_and(|pool| pool.block_size() == cidr.prefix_len()) {
            self.blocks.change(cidr).intent = Intent::Claim;
        }
        self.blocks.index(cidr, &self.node);
    }

    /// Starts to claim a block that does not exist.
    pub(crate) fn claim(&mut self, cidr: IpNet) {
        let work = self.blocks.change(cidr);
        work.known.update(Known::Missing(Revision(0)));
        work.intent = Intent::Claim;
        self.blocks.index(cidr, &self.node);
        self.affinities.mark_dirty((self.node.clone(), cidr));
    }

    /// Starts to delete an own block without used addresses.
    pub(crate) fn give_up(&mut self, cidr: IpNet) {
        let work = self.blocks.change(cidr);
        if work.is_usable(&self.node) && work.in_flight.is_none() && work.is_unused() {
            work.intent = Intent::Release;
            self.affinities.mark_dirty((self.node.clone(), cidr));
        }
    }

    /// Starts the operations that bring the store in line.
    pub(crate) fn flush(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        if now < self.retry_at {
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

    fn flush_block(&mut self, cidr: IpNet, now: Timestamp, actions: &mut Vec<Action>) {
        let key = (self.node.clone(), cidr);
        let intent = self.blocks.get(cidr).map_or(Intent::Keep, |work| work.intent);
        let is_due = match intent {
            Intent::Keep => true,
            Intent::Claim => self.affinities.is_claimed(&key),
            Intent::Release => self.affinities.is_given_up(&key),
        };
        self.affinities.mark_dirty(key);
        if !is_due {
            return;
        }
        let pool = self.settings.pools.containing(cidr.network()).map(|pool| pool.conf());
        let automatic =
            pool.is_some_and(|pool| !pool.disabled && pool.assignment == Assignment::Automatic);
        let (blocks, _, context) = self.split(now);
        let Some(write) = blocks.next_write(cidr, automatic, &context) else { return };
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
        self.blocks.start(cidr, in_flight, &self.node);
    }

    fn flush_affinity(&mut self, key: &AffinityKey, now: Timestamp, actions: &mut Vec<Action>) {
        let block = self.blocks.get(key.1);
        let Some(write) = self.affinities.next_write(key, &self.node, block) else { return };
        let (expected, object, verb) = match write {
            affinities::Write::Create(affinity) => {
                (None, Some(affinity.clone()), Verb::Create(Object::Affinity(affinity)))
            }
            affinities::Write::Replace(at, affinity) => {
                (Some(at), Some(affinity.clone()), Verb::Replace(at, Object::Affinity(affinity)))
            }
            affinities::Write::Delete(at) => (Some(at), None, Verb::Delete(at)),
        };
        let id = self.send(Key::Affinity { node: key.0.clone(), block: key.1 }, verb, actions);
        self.affinities.start(key, InFlight { id, expected, object, sent: now });
    }

    /// Returns a block in which the addresses of a handle are not stored yet.
    fn unwritten_block(&self, handle: &str) -> Option<IpNet> {
        let is_stored = |cidr: IpNet, count: u32| {
            let block = self.blocks.get(cidr).and_then(|work| work.known.object());
            let allocations = block.into_iter().flat_map(|block| block.allocations());
            let stored = allocations.filter(|(_, a)| a.attribute.handle() == Some(handle)).count();
            stored >= count as usize
        };
        let mut desired = self.handles.desired(handle);
        desired.find(|(cidr, count)| !is_stored(*cidr, *count)).map(|(cidr, _)| cidr)
    }

    fn flush_handle(&mut self, handle: &str, now: Timestamp, actions: &mut Vec<Action>) {
        if let Some(cidr) = self.unwritten_block(handle) {
            return self.handles.wait_for(cidr, handle.to_owned());
        }
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

    fn send(&mut self, key: Key, verb: Verb, actions: &mut Vec<Action>) -> OpId {
        let id = self.new_id();
        self.in_flight.insert(id, key.clone());
        actions.push(Action::Store(StoreOp { id, key, verb }));
        id
    }

    /// Takes over the result of an operation. Repeated results, and results of an earlier process, are ignored.
    pub(crate) fn done(
        &mut self,
        id: OpId,
        outcome: Outcome,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) -> Vec<Effect> {
        let Some(key) = self.in_flight.remove(&id) else { return Vec::new() };
        match &outcome {
            Outcome::Unreachable(error) => {
                self.retry_at = now + RETRY_DELAY;
                self.error = Some(error.clone());
            }
            Outcome::Done(_) | Outcome::Current(_) => self.error = None,
        }
        match key {
            Key::Block(cidr) => return self.block_done(cidr, outcome, now, actions),
            Key::Affinity { node, block } => {
                self.affinities.done(&(node, block), outcome);
                self.blocks.mark_dirty(block);
            }
            Key::Handle(handle) => self.handles.done(&handle, outcome),
            _ => {}
        }
        Vec::new()
    }

    fn block_done(
        &mut self,
        cidr: IpNet,
        outcome: Outcome,
        now: Timestamp,
        actions: &mut Vec<Action>,
    ) -> Vec<Effect> {
        let (blocks, _, context) = self.split(now);
        let work = blocks.change(cidr);
        let mut effects = Vec::new();
        match outcome {
            Outcome::Done(revision) => {
                let (lost, served) = work.written(revision, &context);
                let served = served.into_iter();
                effects.extend(served.map(|(part, ordinal)| Effect::Served(part, cidr, ordinal)));
                effects.extend(lost.into_iter().map(Effect::Lost));
            }
            Outcome::Current(None) => {
                let expected = work.not_written().and_then(|in_flight| in_flight.expected);
                let lost = work.learn_gone(expected, &context);
                effects.extend(lost.into_iter().map(Effect::Lost));
            }
            Outcome::Current(Some(stored)) => {
                work.not_written();
                effects = self.changed(*stored, now, actions);
            }
            Outcome::Unreachable(_) => work.unknown(),
        }
        self.after_block(cidr);
        effects
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

pub(crate) fn to_known<T>(
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

pub(crate) fn to_affinity(
    revision: Revision,
    content: Content,
) -> Known<crate::calico::BlockAffinity> {
    to_known(revision, content, |object| match object {
        Object::Affinity(affinity) => Some(affinity),
        _ => None,
    })
}
