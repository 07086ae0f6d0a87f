// SPDX-License-Identifier: Apache-2.0
//! Affinities: the claims of nodes on blocks.
//!
//! The desired state of this node's claim on a block follows from the block alone:
//!
//! | block | affinity |
//! |---|---|
//! | to be claimed | pending |
//! | owned by this node | confirmed |
//! | owned by this node, to be deleted | pending deletion |
//! | anything else | none |

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::calico::{AffinityState, BlockAffinity};
use crate::node::block_work::{BlockWork, Intent};
use crate::node::known::{InFlight, Known};
use crate::node::messages::{Outcome, Revision};
use crate::node::objects::to_affinity;

/// Node and block.
pub(crate) type AffinityKey = (String, IpNet);

#[derive(Debug, Default)]
pub(crate) struct AffinityWork {
    pub(crate) known: Known<BlockAffinity>,
    pub(crate) in_flight: Option<InFlight<BlockAffinity>>,
    /// Revision at which the affinity of a departed node is deleted.
    departed: Option<Revision>,
}

#[derive(Debug, Default)]
pub(crate) struct Affinities {
    all: BTreeMap<AffinityKey, AffinityWork>,
    dirty: BTreeSet<AffinityKey>,
}

/// The next write of an affinity.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Write {
    Create(BlockAffinity),
    Replace(Revision, BlockAffinity),
    Delete(Revision),
}

impl Affinities {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&AffinityKey, &AffinityWork)> {
        self.all.iter()
    }

    pub(crate) fn change(&mut self, key: &AffinityKey) -> &mut AffinityWork {
        self.dirty.insert(key.clone());
        self.all.entry(key.clone()).or_default()
    }

    pub(crate) fn mark_dirty(&mut self, key: AffinityKey) {
        self.dirty.insert(key);
    }

    pub(crate) fn take_dirty(&mut self) -> BTreeSet<AffinityKey> {
        std::mem::take(&mut self.dirty)
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(crate) fn plan_departed(&mut self, key: &AffinityKey, revision: Revision) {
        self.change(key).departed = Some(revision);
    }

    pub(crate) fn start(&mut self, key: &AffinityKey, in_flight: InFlight<BlockAffinity>) {
        self.all.entry(key.clone()).or_default().in_flight = Some(in_flight);
    }

    /// Takes over the result of the operation in flight. The affinity is compared again.
    pub(crate) fn done(&mut self, key: &AffinityKey, outcome: Outcome) {
        let work = self.change(key);
        let Some(in_flight) = work.in_flight.take() else { return };
        match outcome {
            Outcome::Done(revision) => {
                work.known.update(in_flight.written(revision));
            }
            Outcome::Current(None) => {
                work.known.gone(in_flight.expected);
            }
            Outcome::Current(Some(stored)) => {
                work.known.update(to_affinity(stored.revision, stored.content));
            }
            Outcome::Unreachable(_) => {}
        }
    }

    /// Returns whether the claim on a block is stored, so that the block may be created.
    pub(crate) fn is_claimed(&self, key: &AffinityKey) -> bool {
        self.state(key).is_some_and(|state| state != AffinityState::PendingDeletion)
    }

    /// Returns whether it is stored that the block is being given up, so that it may be deleted.
    pub(crate) fn is_given_up(&self, key: &AffinityKey) -> bool {
        self.state(key).is_none_or(|state| state == AffinityState::PendingDeletion)
    }

    fn state(&self, key: &AffinityKey) -> Option<AffinityState> {
        let affinity = self.all.get(key)?.known.object()?;
        (!affinity.deleted).then_some(affinity.state)
    }

    /// Returns the next write, or `None` if the store has what it should have.
    pub(crate) fn next_write(
        &mut self,
        key: &AffinityKey,
        node: &str,
        block: Option<&BlockWork>,
    ) -> Option<Write> {
        let work = self.all.entry(key.clone()).or_default();
        if work.in_flight.is_some() {
            return None;
        }
        if key.0 != node {
            let at = work.departed.take()?;
            let is_same = work.known.present().is_some_and(|(revision, _)| revision == at);
            let is_used = block.is_some_and(|block| block.is_own(&key.0));
            return (is_same && !is_used).then_some(Write::Delete(at));
        }
        let desired = desired_state(node, block);
        match (&work.known, desired) {
            (Known::Unknown | Known::Missing(_), Some(state)) => {
                Some(Write::Create(BlockAffinity { state, ..BlockAffinity::default() }))
            }
            (Known::Present(revision, _), None) => Some(Write::Delete(*revision)),
            (Known::Present(revision, stored), Some(state)) => {
                // A claim that is already confirmed need not become pending again.
                let is_enough = stored.state == state
                    || stored.state == AffinityState::Confirmed && state == AffinityState::Pending;
                let affinity = BlockAffinity { state, deleted: false, ..stored.clone() };
                (!is_enough || stored.deleted).then_some(Write::Replace(*revision, affinity))
            }
            _ => None,
        }
    }
}

fn desired_state(node: &str, block: Option<&BlockWork>) -> Option<AffinityState> {
    let block = block?;
    match block.intent {
        Intent::Claim => Some(AffinityState::Pending),
        _ if !block.is_own(node) => None,
        Intent::Keep => Some(AffinityState::Confirmed),
        Intent::Release => Some(AffinityState::PendingDeletion),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::block::Block;

    fn cidr() -> IpNet {
        "10.0.0.0/26".parse().unwrap()
    }

    fn block(owner: &str, intent: Intent) -> BlockWork {
        let block = Block::new(cidr(), owner, Timestamp::from_millis(0));
        let mut work = BlockWork::default();
        work.known = Known::Present(Revision(1), block);
        work.intent = intent;
        work
    }

    fn check(stored: Option<AffinityState>, block: Option<&BlockWork>, expected: &str) {
        let key = ("me".to_owned(), cidr());
        let mut affinities = Affinities::default();
        if let Some(state) = stored {
            let affinity = BlockAffinity { state, ..BlockAffinity::default() };
            affinities.change(&key).known = Known::Present(Revision(5), affinity);
        }
        let actual = match affinities.next_write(&key, "me", block) {
            None => "nothing".to_owned(),
            Some(Write::Create(a)) => format!("create {}", a.state.as_str()),
            Some(Write::Replace(_, a)) => format!("replace {}", a.state.as_str()),
            Some(Write::Delete(_)) => "delete".to_owned(),
        };
        assert_eq!(actual, expected);
    }

    #[test]
    fn affinity_follows_the_block() {
        use AffinityState::{Confirmed, Pending, PendingDeletion};
        let mut claimed = BlockWork::default();
        claimed.intent = Intent::Claim;
        check(None, Some(&claimed), "create pending");
        check(Some(Pending), Some(&claimed), "nothing");
        check(Some(Confirmed), Some(&claimed), "nothing");
        check(Some(PendingDeletion), Some(&claimed), "replace pending");
        let own = block("me", Intent::Keep);
        check(None, Some(&own), "create confirmed");
        check(Some(Pending), Some(&own), "replace confirmed");
        check(Some(Confirmed), Some(&own), "nothing");
        let released = block("me", Intent::Release);
        check(Some(Confirmed), Some(&released), "replace pendingDeletion");
        check(Some(PendingDeletion), Some(&released), "nothing");
        let other = block("other", Intent::Keep);
        check(Some(Pending), Some(&other), "delete");
        check(None, Some(&other), "nothing");
        check(Some(Confirmed), None, "delete");
    }
}
