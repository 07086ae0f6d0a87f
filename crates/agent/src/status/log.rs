// SPDX-License-Identifier: Apache-2.0
//! Logs changes of the status: one line when the node becomes ready or stops being ready, when the store is lost or
//! reachable again, and when any other problem starts, changes or ends.

use std::collections::BTreeMap;

use tokio::time::timeout;
use tracing::{info, warn};

use crate::status::{Changes, ConditionKind, Status, StatusHub};
use crate::supervisor::Heartbeat;

/// The part of the status that is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Logged {
    ready: bool,
    reasons: Vec<String>,
    store: Option<bool>,
    problems: BTreeMap<ConditionKind, String>,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    StoreUnreachable(String),
    StoreReachable,
    Problem(ConditionKind, String),
    Solved(ConditionKind),
    Ready,
    NotReady(String),
}

impl Line {
    fn write(&self) {
        match self {
            Line::StoreUnreachable(error) => warn!(%error, "store unreachable"),
            Line::StoreReachable => info!("store reachable again"),
            Line::Problem(kind, problem) => {
                warn!(condition = kind.name(), %problem, "condition failed");
            }
            Line::Solved(kind) => info!(condition = kind.name(), "condition recovered"),
            Line::Ready => info!("node ready"),
            Line::NotReady(reasons) => warn!(%reasons, "node not ready"),
        }
    }
}

/// Watches a hub from the time of its creation on. It must be created before the first update of the hub.
#[derive(Debug)]
pub struct StatusLog {
    hub: StatusHub,
    changes: Changes,
    logged: Logged,
}

impl StatusLog {
    pub fn new(hub: &StatusHub) -> StatusLog {
        let (changes, logged) = (hub.changes(), Logged::of(&hub.summary()));
        StatusLog { hub: hub.clone(), changes, logged }
    }

    /// Logs changes until it is dropped.
    pub async fn run(&mut self, heartbeat: &Heartbeat) {
        heartbeat.beat();
        loop {
            tokio::select! {
                lines = self.next() => lines.iter().for_each(Line::write),
                () = heartbeat.tick() => {}
            }
        }
    }

    /// Waits for a change and returns the lines to log.
    async fn next(&mut self) -> Vec<Line> {
        match self.hub.readiness().holds_for {
            Some(left) => drop(timeout(left, self.changes.next()).await),
            None => self.changes.next().await,
        }
        let now = Logged::of(&self.hub.summary());
        let lines = self.logged.lines_until(&now);
        self.logged = now;
        lines
    }
}

impl Logged {
    fn of(status: &Status) -> Logged {
        let problems = status.problems.iter();
        Logged {
            ready: status.ready,
            reasons: status.reasons.clone(),
            store: status.store.reachable,
            problems: problems.map(|(kind, problem)| (*kind, problem.text.clone())).collect(),
        }
    }

    /// Returns the lines for the change from this state to `now`.
    fn lines_until(&self, now: &Logged) -> Vec<Line> {
        let mut lines = Vec::new();
        match (self.store, now.store) {
            (before, Some(false)) if before != now.store => {
                let error = now.problems.get(&ConditionKind::Store).cloned().unwrap_or_default();
                lines.push(Line::StoreUnreachable(error));
            }
            (Some(false), Some(true)) => lines.push(Line::StoreReachable),
            _ => {}
        }
        // If the node is not ready, the problems are among the reasons.
        if now.ready {
            lines.extend(now.problems.iter().filter_map(|(kind, text)| {
                let is_new = *kind != ConditionKind::Store && self.problems.get(kind) != Some(text);
                is_new.then(|| Line::Problem(*kind, text.clone()))
            }));
        }
        // The line for a node that becomes ready covers solved problems.
        if now.ready && self.ready {
            lines.extend(self.problems.keys().filter_map(|kind| {
                let is_over = *kind != ConditionKind::Store && !now.problems.contains_key(kind);
                is_over.then_some(Line::Solved(*kind))
            }));
        }
        if now.ready && !self.ready {
            lines.push(Line::Ready);
        } else if !now.ready && (self.ready || self.reasons != now.reasons) {
            lines.push(Line::NotReady(now.reasons.join("; ")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(ready: bool, store: Option<bool>, problems: &[(ConditionKind, &str)]) -> Logged {
        let reasons = problems.iter().filter(|_| !ready).map(|(_, text)| (*text).to_owned());
        Logged {
            ready,
            reasons: reasons.collect(),
            store,
            problems: problems.iter().map(|(kind, text)| (*kind, (*text).to_owned())).collect(),
        }
    }

    #[tokio::test]
    async fn update_before_the_first_wait_is_logged() {
        let hub = StatusHub::new("a", "etcd");
        let mut log = StatusLog::new(&hub);
        hub.set_problem(ConditionKind::Config, "none");
        let lines = log.next().await;
        let [Line::NotReady(reasons)] = &lines[..] else { panic!("{lines:?}") };
        assert!(reasons.ends_with("config: none"), "{reasons}");
    }

    #[test]
    fn each_change_is_logged_once() {
        let start = logged(false, None, &[]);
        let waiting = logged(false, Some(true), &[(ConditionKind::Config, "none")]);
        let ready = logged(true, Some(true), &[]);
        let store_lost = logged(true, Some(false), &[(ConditionKind::Store, "refused")]);
        let problem = logged(true, Some(true), &[(ConditionKind::Config, "differs")]);
        let check = |before: &Logged, now: &Logged, line: Line| {
            assert_eq!(before.lines_until(now), [line]);
            assert_eq!(now.lines_until(now), []);
        };
        check(&start, &waiting, Line::NotReady("none".into()));
        check(&waiting, &ready, Line::Ready);
        check(&ready, &store_lost, Line::StoreUnreachable("refused".into()));
        check(&store_lost, &ready, Line::StoreReachable);
        check(&ready, &problem, Line::Problem(ConditionKind::Config, "differs".into()));
        check(&problem, &ready, Line::Solved(ConditionKind::Config));
        check(&ready, &waiting, Line::NotReady("none".into()));
    }
}
