// SPDX-License-Identifier: Apache-2.0
//! Logs changes of the status: one line when the node becomes ready or stops being ready, when the store is lost or
//! reachable again, when any other condition fails, changes or recovers, and when a failed controller runs again.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::timeout;
use tracing::{info, warn};

use crate::status::readiness::condition_line;
use crate::status::{Changes, ConditionKind, Status, StatusHub};
use crate::supervisor::Heartbeat;

/// The part of the status that is logged.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Logged {
    ready: bool,
    reasons: Vec<String>,
    store: Option<bool>,
    problems: BTreeMap<ConditionKind, String>,
    failed_controllers: BTreeSet<String>,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    StoreUnreachable(String),
    StoreReachable,
    Failed(ConditionKind, String),
    Recovered(ConditionKind),
    /// The supervisor has logged the failure.
    ControllerRecovered(String),
    Ready,
    NotReady(String),
}

impl Line {
    fn write(&self) {
        match self {
            Line::StoreUnreachable(error) => warn!(%error, "store unreachable"),
            Line::StoreReachable => info!("store reachable again"),
            Line::Failed(kind, problem) => {
                warn!(condition = kind.name(), %problem, "condition failed");
            }
            Line::Recovered(kind) => info!(condition = kind.name(), "condition recovered"),
            Line::ControllerRecovered(controller) => info!(controller, "controller recovered"),
            Line::Ready => info!("node ready"),
            Line::NotReady(reasons) => warn!(%reasons, "node not ready"),
        }
    }
}

/// Logs changes of the status since the time of its creation. It must be created before the first report.
#[derive(Debug)]
pub(crate) struct StatusLog {
    hub: StatusHub,
    changes: Changes,
    logged: Logged,
}

impl StatusLog {
    pub(crate) fn new(hub: &StatusHub) -> StatusLog {
        let (changes, logged) = (hub.changes(), Logged::of(&hub.summary()));
        StatusLog { hub: hub.clone(), changes, logged }
    }

    /// Logs changes until it is dropped.
    pub(crate) async fn run(&mut self, heartbeat: &Heartbeat) {
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
        let failed =
            status.controllers.iter().filter(|(_, controller)| controller.failure.is_some());
        Logged {
            ready: status.ready,
            reasons: status.reasons.clone(),
            store: status.store.reachable,
            problems: problems.map(|(kind, problem)| (*kind, problem.text.clone())).collect(),
            failed_controllers: failed.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Returns the failed conditions that are not among the reasons why the node is not ready. The lines about readiness
    /// cover those. The store has lines of its own.
    fn others(&self) -> impl Iterator<Item = (ConditionKind, &str)> {
        let problems = self.problems.iter().map(|(kind, text)| (*kind, text.as_str()));
        problems.filter(|(kind, text)| {
            *kind != ConditionKind::Store && !self.reasons.contains(&condition_line(*kind, text))
        })
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
        let is_new = |(kind, text): &(ConditionKind, &str)| {
            self.problems.get(kind).map(String::as_str) != Some(text)
        };
        let failed = now.others().filter(is_new);
        lines.extend(failed.map(|(kind, text)| Line::Failed(kind, text.to_owned())));
        let recovered = self.others().filter(|(kind, _)| !now.problems.contains_key(kind));
        lines.extend(recovered.map(|(kind, _)| Line::Recovered(kind)));
        let running = self.failed_controllers.difference(&now.failed_controllers);
        lines.extend(running.cloned().map(Line::ControllerRecovered));
        if now.ready && !self.ready {
            lines.push(Line::Ready);
        } else if !now.ready
            && (self.ready || now.reasons.iter().any(|one| !self.reasons.contains(one)))
        {
            // A reason that has gone is no news, so that a healthy start logs no warning.
            lines.push(Line::NotReady(now.reasons.join("; ")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: ConditionKind = ConditionKind::Config;
    const KERNEL: ConditionKind = ConditionKind::Kernel;

    /// A status in which the conditions of `reasons` keep the node from being ready, and those of `warnings` do not.
    fn logged(
        store: Option<bool>,
        reasons: &[(ConditionKind, &str)],
        warnings: &[(ConditionKind, &str)],
    ) -> Logged {
        let problems = reasons.iter().chain(warnings);
        Logged {
            ready: reasons.is_empty(),
            reasons: reasons.iter().map(|(kind, text)| condition_line(*kind, text)).collect(),
            store,
            problems: problems.map(|(kind, text)| (*kind, (*text).to_owned())).collect(),
            failed_controllers: BTreeSet::new(),
        }
    }

    /// Checks the lines of a change, and that they are not repeated.
    fn check(before: &Logged, now: &Logged, lines: &[Line]) {
        assert_eq!(before.lines_until(now), lines);
        assert_eq!(now.lines_until(now), []);
    }

    #[tokio::test]
    async fn update_before_the_first_wait_is_logged() {
        let hub = StatusHub::new("a", "etcd");
        let mut log = StatusLog::new(&hub);
        hub.set_problem(CONFIG, "none");
        let lines = log.next().await;
        let [Line::NotReady(reasons)] = &lines[..] else { panic!("{lines:?}") };
        assert!(reasons.ends_with("config: none"), "{reasons}");
    }

    #[test]
    fn change_of_readiness_is_one_line() {
        let waiting = logged(Some(true), &[(CONFIG, "none")], &[]);
        let ready = logged(Some(true), &[], &[]);
        check(&logged(None, &[(CONFIG, "starting")], &[]), &waiting, &[not_ready("config: none")]);
        check(&waiting, &ready, &[Line::Ready]);
        check(&ready, &waiting, &[not_ready("config: none")]);
    }

    #[tokio::test]
    async fn healthy_start_logs_no_warning() {
        let hub = StatusHub::new("a", "etcd");
        let mut log = StatusLog::new(&hub);
        hub.clear_problem(ConditionKind::Store);
        assert_eq!(log.next().await, [], "the store has answered");
        hub.set_network(Some(crate::status::tests::network()));
        assert_eq!(log.next().await, [Line::Ready]);
    }

    fn not_ready(reasons: &str) -> Line {
        Line::NotReady(reasons.to_owned())
    }

    #[test]
    fn loss_and_return_of_the_store_are_logged() {
        let ready = logged(Some(true), &[], &[]);
        let lost = logged(Some(false), &[], &[(ConditionKind::Store, "refused")]);
        check(&ready, &lost, &[Line::StoreUnreachable("refused".into())]);
        check(&lost, &ready, &[Line::StoreReachable]);
    }

    #[test]
    fn failure_and_recovery_of_a_condition_are_logged() {
        let ready = logged(Some(true), &[], &[]);
        let failed = logged(Some(true), &[], &[(CONFIG, "differs")]);
        check(&ready, &failed, &[Line::Failed(CONFIG, "differs".into())]);
        check(&failed, &ready, &[Line::Recovered(CONFIG)]);
    }

    #[test]
    fn warning_of_a_node_that_is_not_ready_is_logged() {
        let not_ready_node = logged(Some(true), &[(KERNEL, "no")], &[]);
        let with_warning = logged(Some(true), &[(KERNEL, "no")], &[(CONFIG, "differs")]);
        let ready_with_warning = logged(Some(true), &[], &[(CONFIG, "differs")]);
        check(&not_ready_node, &with_warning, &[Line::Failed(CONFIG, "differs".into())]);
        check(&with_warning, &not_ready_node, &[Line::Recovered(CONFIG)]);
        check(&with_warning, &ready_with_warning, &[Line::Ready]);
    }

    #[test]
    fn recovery_of_a_controller_is_logged() {
        let running = logged(Some(true), &[], &[]);
        let failed = Logged { failed_controllers: ["nat".to_owned()].into(), ..running.clone() };
        check(&running, &failed, &[]);
        check(&failed, &running, &[Line::ControllerRecovered("nat".into())]);
    }
}
