// SPDX-License-Identifier: Apache-2.0
//! The states of this node's membership in the network, and the transitions between them. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use store::Revision;
use text::ErrorChain;

use crate::lease::{self, AcquireError, Renewal};
use crate::status::ConditionKind;

/// Conditions for joining a network, in the order in which they are checked.
const PREREQUISITES: [ConditionKind; 4] =
    [ConditionKind::Store, ConditionKind::Config, ConditionKind::Underlay, ConditionKind::Lease];

/// Maximum delay before the next attempt to join, if no event comes first.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum delay if there is no interface to other nodes, because new routes cause no event.
const ROUTE_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay if the store is unreachable, because no event reports that it answers again.
const STORE_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Whether this node is a member of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The node looks up configuration, underlay and lease.
    Joining,
    /// Something is missing. The node waits for a change and joins again.
    Waiting,
    /// The node holds a lease.
    Member,
    /// The store does not answer, and the node continues with the last known state.
    Cached,
}

/// Why a node cannot join, or has to join again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinError {
    pub condition: ConditionKind,
    pub reason: String,
    pub retry: Retry,
}

/// When joining may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// After a change in the store behind this revision, or of the interfaces.
    OnChange(Option<Revision>),
    /// When the store answers, or after a change of the interfaces.
    OnStoreReachable,
}

impl JoinError {
    pub(crate) fn new(condition: ConditionKind, reason: impl Into<String>) -> Self {
        Self { condition, reason: reason.into(), retry: Retry::OnChange(None) }
    }

    /// An invalid lease or configuration may be corrected in the store.
    pub(crate) fn until_change_after(self, revision: Revision) -> Self {
        match self.condition {
            ConditionKind::Lease | ConditionKind::Config => {
                Self { retry: Retry::OnChange(Some(revision)), ..self }
            }
            _ => self,
        }
    }
}

impl From<lease::Error> for JoinError {
    fn from(error: lease::Error) -> Self {
        let retry = if error.can_retry() { Retry::OnStoreReachable } else { Retry::OnChange(None) };
        let reason = ErrorChain(&error).to_string();
        Self { condition: ConditionKind::Store, reason, retry }
    }
}

impl From<AcquireError> for JoinError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Store(cause) => Self::from(cause),
            other => Self::new(ConditionKind::Lease, other.to_string()),
        }
    }
}

/// An event that may change the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Joined {
        from_cache: bool,
    },
    JoinFailed(JoinError),
    /// A wait ended, after a change or by its timeout.
    WaitOver,
    /// The store answers after an outage.
    StoreAnswered,
    OwnLease(OwnLease),
    RenewalDue,
    Renewed(Renewal),
    RenewalFailed(String),
    /// The stored configuration differs from the effective one, and this node can use it.
    ConfigChanged,
    /// The underlay differs, as the text says.
    UnderlayChanged(String),
}

/// The store's record of this node's own lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnLease {
    /// As this node wrote it.
    Unchanged,
    /// A state from before the last write of this node.
    Outdated,
    /// Another program has changed or deleted it.
    Changed,
}

/// An action that the controller has to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Join, at least the minimum interval after the last attempt.
    Join,
    /// Wait for a change after this revision, at most this long, then report [`Event::WaitOver`].
    Wait {
        after: Option<Revision>,
        at_most: Duration,
    },
    Report(ConditionKind, String),
    Clear(ConditionKind),
    /// Log why the node joins again.
    LogRestart(String),
    Renew,
    SaveLease,
    /// Plan the next renewal after a success.
    ScheduleRenewal,
    RetryRenewal,
    ForgetLease,
    /// Use new connections, because the node's addresses have changed.
    Reconnect,
}

/// A state with the actions that are still to be performed.
#[derive(Debug)]
pub(super) struct Progress {
    state: State,
    actions: VecDeque<Action>,
}

impl Progress {
    /// A node that is about to join.
    pub(super) fn joining() -> Progress {
        Progress { state: State::Joining, actions: VecDeque::from([Action::Join]) }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Takes the next action out of the queue.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Handles events that came together. Once one of them ends the membership, the others and all queued actions
    /// are dropped: joining reads everything again, and a late action would concern the next membership.
    pub(super) fn handle(&mut self, events: Vec<Event>) {
        for event in events {
            let (next, more) = self.state.step(event);
            let is_left = self.state != next && next == State::Joining;
            self.state = next;
            if is_left {
                self.actions = more.into();
                return;
            }
            self.actions.extend(more);
        }
    }
}

impl State {
    /// Returns the next state and the actions, in order.
    pub(crate) fn step(self, event: Event) -> (State, Vec<Action>) {
        use Action::{Clear, Report};
        match (self, event) {
            (_, Event::Joined { from_cache }) => {
                let fulfilled = [ConditionKind::Underlay, ConditionKind::Lease];
                let mut actions: Vec<Action> = fulfilled.map(Clear).into();
                if from_cache {
                    return (State::Cached, actions);
                }
                // The watch reports nothing if the list already had every change.
                actions.push(Clear(ConditionKind::Store));
                (State::Member, actions)
            }
            (_, Event::JoinFailed(error)) => after_failure(error),
            (_, Event::WaitOver) => (State::Joining, vec![Action::Join]),
            (State::Cached, Event::StoreAnswered) => {
                let (state, actions) = rejoin("the store answers again");
                (state, [vec![Clear(ConditionKind::Store)], actions].concat())
            }
            (_, Event::StoreAnswered) => (self, vec![Clear(ConditionKind::Store)]),
            (State::Cached, Event::OwnLease(_)) => (self, Vec::new()),
            (_, Event::OwnLease(own)) => match own {
                OwnLease::Unchanged => (self, vec![Action::SaveLease]),
                OwnLease::Outdated => (self, Vec::new()),
                OwnLease::Changed => (self, vec![Action::Renew]),
            },
            (_, Event::RenewalDue) => (self, vec![Action::Renew]),
            (_, Event::Renewed(Renewal::Done)) => (
                self,
                vec![Clear(ConditionKind::Store), Action::ScheduleRenewal, Action::SaveLease],
            ),
            (_, Event::Renewed(Renewal::Lost)) => {
                let (state, actions) = rejoin("the lease was deleted or taken");
                (state, [vec![Action::ForgetLease], actions].concat())
            }
            (_, Event::RenewalFailed(reason)) => {
                (self, vec![Report(ConditionKind::Store, reason), Action::RetryRenewal])
            }
            (_, Event::ConfigChanged) => rejoin("the network configuration changed"),
            (_, Event::UnderlayChanged(reason)) => {
                let (state, actions) = rejoin(&reason);
                (state, [vec![Action::Reconnect], actions].concat())
            }
        }
    }
}

fn rejoin(reason: &str) -> (State, Vec<Action>) {
    (State::Joining, vec![Action::LogRestart(reason.to_owned()), Action::Join])
}

fn after_failure(JoinError { condition, reason, retry }: JoinError) -> (State, Vec<Action>) {
    let after = match retry {
        Retry::OnChange(after) => after,
        Retry::OnStoreReachable => None,
    };
    // Earlier prerequisites are fulfilled; nothing is known of later ones. The store reports for itself.
    let fulfilled = PREREQUISITES.into_iter().take_while(|one| *one != condition);
    let cleared = fulfilled.filter(|one| *one != ConditionKind::Store).map(Action::Clear);
    let at_most = match condition {
        ConditionKind::Underlay => ROUTE_POLL_INTERVAL,
        ConditionKind::Store => STORE_POLL_INTERVAL,
        _ => RETRY_INTERVAL,
    };
    let wait = [Action::Report(condition, reason), Action::Wait { after, at_most }];
    (State::Waiting, cleared.chain(wait).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_clears_earlier_conditions_and_waits() {
        let error = JoinError::new(ConditionKind::Underlay, "no interface");
        let (state, actions) = State::Joining.step(Event::JoinFailed(error));
        assert_eq!(state, State::Waiting);
        assert_eq!(
            actions,
            [
                Action::Clear(ConditionKind::Config),
                Action::Report(ConditionKind::Underlay, "no interface".into()),
                Action::Wait { after: None, at_most: ROUTE_POLL_INTERVAL },
            ]
        );
        assert_eq!(state.step(Event::WaitOver), (State::Joining, vec![Action::Join]));
    }

    #[test]
    fn invalid_configuration_waits_for_a_newer_revision() {
        let error = JoinError::new(ConditionKind::Config, "bad").until_change_after(Revision(7));
        let (_, actions) = State::Joining.step(Event::JoinFailed(error));
        let wait = Action::Wait { after: Some(Revision(7)), at_most: RETRY_INTERVAL };
        assert_eq!(actions.last(), Some(&wait));
        let underlay = JoinError::new(ConditionKind::Underlay, "none");
        assert_eq!(underlay.clone().until_change_after(Revision(7)), underlay);
    }

    #[test]
    fn cached_member_joins_again_when_the_store_answers() {
        let (state, _) = State::Joining.step(Event::Joined { from_cache: true });
        assert_eq!(state, State::Cached);
        assert_eq!(state.step(Event::OwnLease(OwnLease::Changed)), (State::Cached, Vec::new()));
        let (state, actions) = state.step(Event::StoreAnswered);
        assert_eq!((state, actions.last()), (State::Joining, Some(&Action::Join)));
        assert_eq!(actions.first(), Some(&Action::Clear(ConditionKind::Store)));
        let cleared = vec![Action::Clear(ConditionKind::Store)];
        assert_eq!(State::Member.step(Event::StoreAnswered), (State::Member, cleared));
        let joined = |from_cache| state.step(Event::Joined { from_cache });
        assert!(joined(false).1.contains(&Action::Clear(ConditionKind::Store)));
        assert!(!joined(true).1.contains(&Action::Clear(ConditionKind::Store)));
    }

    #[test]
    fn changed_lease_is_renewed_lost_lease_is_replaced() {
        let (state, actions) = State::Member.step(Event::OwnLease(OwnLease::Changed));
        assert_eq!((state, &actions[..]), (State::Member, &[Action::Renew][..]));
        assert_eq!(state.step(Event::OwnLease(OwnLease::Outdated)), (State::Member, Vec::new()));
        let (state, actions) = state.step(Event::Renewed(Renewal::Lost));
        assert_eq!(state, State::Joining);
        assert_eq!(
            (actions.first(), actions.last()),
            (Some(&Action::ForgetLease), Some(&Action::Join))
        );
        let (state, actions) = State::Member.step(Event::RenewalFailed("away".into()));
        assert_eq!((state, actions.last()), (State::Member, Some(&Action::RetryRenewal)));
    }

    /// The store may report several changes of the lease at once.
    #[test]
    fn lost_lease_drops_the_actions_of_its_membership() {
        let mut progress = Progress { state: State::Member, actions: VecDeque::new() };
        progress.handle(vec![Event::OwnLease(OwnLease::Changed); 2]);
        assert_eq!(progress.actions, [Action::Renew, Action::Renew]);
        assert_eq!(progress.next_action(), Some(Action::Renew));
        progress.handle(vec![Event::Renewed(Renewal::Lost)]);
        assert_eq!(progress.state(), State::Joining);
        let log = Action::LogRestart("the lease was deleted or taken".into());
        assert_eq!(progress.actions, [Action::ForgetLease, log, Action::Join]);
    }

    #[test]
    fn event_after_the_end_of_a_membership_is_dropped() {
        let mut progress = Progress { state: State::Member, actions: VecDeque::new() };
        progress.handle(vec![Event::ConfigChanged, Event::OwnLease(OwnLease::Changed)]);
        assert_eq!((progress.state(), progress.actions.len()), (State::Joining, 2));
        assert_eq!(progress.actions.back(), Some(&Action::Join));
        // The end of a wait is no end of a membership.
        let mut progress = Progress::joining();
        progress.handle(vec![Event::JoinFailed(JoinError::new(ConditionKind::Lease, "none"))]);
        assert_eq!(progress.state(), State::Waiting);
        assert!(progress.actions.len() > 1);
    }

    #[test]
    fn changed_underlay_uses_new_connections() {
        for member in [State::Member, State::Cached] {
            let (state, actions) = member.step(Event::UnderlayChanged("eth1".into()));
            assert_eq!(state, State::Joining);
            assert_eq!(actions.first(), Some(&Action::Reconnect));
        }
    }
}
