// SPDX-License-Identifier: Apache-2.0
//! What the log says of the board: a line when the node becomes ready or is no longer, when the store is lost or
//! back, and when anything else that is wrong is another.

use std::collections::BTreeMap;

use tokio::time::timeout;

use crate::board::{Board, Part, Status};

/// What was said last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    ready: bool,
    reasons: Vec<String>,
    store: Option<bool>,
    problems: BTreeMap<Part, String>,
}

/// A line, and whether something is wrong.
type Line = (bool, String);

/// Tells what is on the board until it is dropped.
pub async fn keep(board: &Board) {
    let mut changes = board.changes();
    let mut before = Said::of(&board.summary());
    loop {
        match board.readiness().holds_for {
            Some(left) => drop(timeout(left, changes.next()).await),
            None => changes.next().await,
        }
        let now = Said::of(&board.summary());
        for (is_wrong, line) in before.until(&now) {
            match is_wrong {
                true => tracing::warn!("{line}"),
                false => tracing::info!("{line}"),
            }
        }
        before = now;
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
                let why = now.problems.get(&Part::Store).map_or("", String::as_str);
                lines.push((true, format!("the store cannot be reached: {why}")));
            }
            (Some(false), Some(true)) => lines.push((false, "the store is back".to_owned())),
            _ => {}
        }
        // Where the node is not ready, these are the reasons.
        if now.ready {
            lines.extend(now.problems.iter().filter_map(|(part, text)| {
                let is_new = *part != Part::Store && self.problems.get(part) != Some(text);
                is_new.then(|| (true, format!("{}: {text}", part.name())))
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

    fn said(ready: bool, store: Option<bool>, problems: &[(Part, &str)]) -> Said {
        let reasons = problems.iter().filter(|_| !ready).map(|(_, text)| (*text).to_owned());
        Said {
            ready,
            reasons: reasons.collect(),
            store,
            problems: problems.iter().map(|(part, text)| (*part, (*text).to_owned())).collect(),
        }
    }

    #[test]
    fn each_change_is_one_line() {
        let start = said(false, None, &[]);
        let waits = said(false, Some(true), &[(Part::Config, "none")]);
        let ready = said(true, Some(true), &[]);
        let lost = said(true, Some(false), &[(Part::Store, "refused")]);
        let remark = said(true, Some(true), &[(Part::Config, "differs")]);
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
        check(&ready, &waits, &[(true, "this node is not ready: none")]);
    }
}
