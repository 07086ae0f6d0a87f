// SPDX-License-Identifier: Apache-2.0
//! What the log says of the hub: a line when the node becomes ready or is no longer, when the store is lost or
//! back, and when anything else that is wrong begins, changes or ends.

use std::collections::BTreeMap;

use tokio::time::timeout;

use crate::status::{Changes, ConditionKind, Status, StatusHub};

/// What was said last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    ready: bool,
    reasons: Vec<String>,
    store: Option<bool>,
    problems: BTreeMap<ConditionKind, String>,
}

/// A line, and whether something is wrong.
type Line = (bool, String);

/// What becomes of a hub from when this is made, which has to be before anybody posts.
#[derive(Debug)]
pub struct StatusLog {
    hub: StatusHub,
    changes: Changes,
    said: Said,
}

impl StatusLog {
    pub fn new(hub: &StatusHub) -> StatusLog {
        let (changes, said) = (hub.changes(), Said::of(&hub.summary()));
        StatusLog { hub: hub.clone(), changes, said }
    }

    /// Tells what is on the hub until it is dropped.
    pub async fn keep(mut self) {
        loop {
            for (is_wrong, line) in self.next().await {
                match is_wrong {
                    true => tracing::warn!("{line}"),
                    false => tracing::info!("{line}"),
                }
            }
        }
    }

    /// What is to be said when something has changed.
    async fn next(&mut self) -> Vec<Line> {
        match self.hub.readiness().holds_for {
            Some(left) => drop(timeout(left, self.changes.next()).await),
            None => self.changes.next().await,
        }
        let now = Said::of(&self.hub.summary());
        let lines = self.said.until(&now);
        self.said = now;
        lines
    }
}

impl Said {
    fn of(status: &Status) -> Said {
        let problems = status.problems.iter();
        Said {
            ready: status.ready,
            reasons: status.reasons.clone(),
            store: status.store.reachable,
            problems: problems.map(|(part, problem)| (*part, problem.text.clone())).collect(),
        }
    }

    /// What is to be said now.
    fn until(&self, now: &Said) -> Vec<Line> {
        let mut lines = Vec::new();
        match (self.store, now.store) {
            (before, Some(false)) if before != now.store => {
                let why = now.problems.get(&ConditionKind::Store).map_or("", String::as_str);
                lines.push((true, format!("the store cannot be reached: {why}")));
            }
            (Some(false), Some(true)) => lines.push((false, "the store is back".to_owned())),
            _ => {}
        }
        // Where the node is not ready, these are the reasons.
        if now.ready {
            lines.extend(now.problems.iter().filter_map(|(part, text)| {
                let is_new = *part != ConditionKind::Store && self.problems.get(part) != Some(text);
                is_new.then(|| (true, format!("{}: {text}", part.name())))
            }));
        }
        // A node that becomes ready says so below.
        if now.ready && self.ready {
            lines.extend(self.problems.keys().filter_map(|part| {
                let is_over = *part != ConditionKind::Store && !now.problems.contains_key(part);
                is_over.then(|| (false, format!("{}: the problem is solved", part.name())))
            }));
        }
        if now.ready && !self.ready {
            lines.push((false, "this node is ready".to_owned()));
        } else if !now.ready && (self.ready || self.reasons != now.reasons) {
            lines.push((true, format!("this node is not ready: {}", now.reasons.join("; "))));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ready: bool, store: Option<bool>, problems: &[(ConditionKind, &str)]) -> Said {
        let reasons = problems.iter().filter(|_| !ready).map(|(_, text)| (*text).to_owned());
        Said {
            ready,
            reasons: reasons.collect(),
            store,
            problems: problems.iter().map(|(part, text)| (*part, (*text).to_owned())).collect(),
        }
    }

    #[tokio::test]
    async fn what_was_posted_before_anybody_looked_is_said() {
        let hub = StatusHub::new("a", "etcd");
        let mut journal = StatusLog::new(&hub);
        hub.set_problem(ConditionKind::Config, "none");
        let line = "this node is not ready: this node is not part of the network yet; config: none";
        assert_eq!(journal.next().await, [(true, line.to_owned())]);
    }

    #[test]
    fn each_change_is_one_line() {
        let start = said(false, None, &[]);
        let waits = said(false, Some(true), &[(ConditionKind::Config, "none")]);
        let ready = said(true, Some(true), &[]);
        let lost = said(true, Some(false), &[(ConditionKind::Store, "refused")]);
        let remark = said(true, Some(true), &[(ConditionKind::Config, "differs")]);
        let check = |before: &Said, now: &Said, lines: &[(bool, &str)]| {
            let lines: Vec<Line> = lines.iter().map(|(bad, text)| (*bad, (*text).into())).collect();
            assert_eq!(before.until(now), lines);
            assert_eq!(now.until(now), [], "once");
        };
        check(&start, &waits, &[(true, "this node is not ready: none")]);
        check(&waits, &ready, &[(false, "this node is ready")]);
        check(&ready, &lost, &[(true, "the store cannot be reached: refused")]);
        check(&lost, &ready, &[(false, "the store is back")]);
        check(&ready, &remark, &[(true, "config: differs")]);
        check(&remark, &ready, &[(false, "config: the problem is solved")]);
        check(&ready, &waits, &[(true, "this node is not ready: none")]);
    }
}
