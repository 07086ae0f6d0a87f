// SPDX-License-Identifier: Apache-2.0
//! The conditions and controllers that have failed, and since when. Pure, except that failures get the current time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::model::{ConditionKind, ControllerStatus, Problem, Time};
use super::shortened;

/// The conditions that are not fulfilled.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    failed: BTreeMap<ConditionKind, FailedCondition>,
    /// Managed files that cannot be written, with the reason. Together they are the condition `Files`.
    files: BTreeMap<PathBuf, String>,
}

/// A condition that is not fulfilled.
#[derive(Debug)]
pub(super) struct FailedCondition {
    pub problem: Problem,
    /// When it failed, by a clock that is never set.
    pub since: Instant,
}

impl Conditions {
    /// Sets the problem of a condition. Returns `false` if the condition has this problem already.
    pub(super) fn set(&mut self, kind: ConditionKind, text: String) -> bool {
        let text = shortened(text);
        if let Some(failed) = self.failed.get_mut(&kind) {
            let is_new = failed.problem.text != text;
            failed.problem.text = text;
            return is_new;
        }
        let problem = Problem { text, since: Time::now() };
        self.failed.insert(kind, FailedCondition { problem, since: Instant::now() });
        true
    }

    /// Clears a condition. Returns `false` if it is fulfilled already.
    pub(super) fn clear(&mut self, kind: ConditionKind) -> bool {
        self.failed.remove(&kind).is_some()
    }

    /// Sets whether a managed file has its content. Returns `false` if nothing changes.
    pub(super) fn set_file(&mut self, path: &Path, result: Result<(), String>) -> bool {
        match result {
            Ok(()) => drop(self.files.remove(path)),
            Err(problem) => drop(self.files.insert(path.to_owned(), problem)),
        }
        let problems: Vec<&str> = self.files.values().map(String::as_str).collect();
        match problems.is_empty() {
            true => self.clear(ConditionKind::Files),
            false => self.set(ConditionKind::Files, problems.join("; ")),
        }
    }

    pub(super) fn get(&self, kind: ConditionKind) -> Option<&FailedCondition> {
        self.failed.get(&kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.failed.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConditionKind, &Problem)> {
        self.failed.iter().map(|(kind, failed)| (*kind, &failed.problem))
    }
}

/// The controllers by name.
#[derive(Debug, Default)]
pub(super) struct Controllers(BTreeMap<String, Controller>);

#[derive(Debug, Default)]
struct Controller {
    status: ControllerStatus,
    /// When the current failure started; `None` while the controller runs.
    failing_since: Option<Instant>,
}

impl Controllers {
    pub(super) fn running(&mut self, name: &str) {
        let controller = self.0.entry(name.to_owned()).or_default();
        controller.status.failure = None;
        controller.failing_since = None;
    }

    pub(super) fn failed(&mut self, name: &str, reason: String) {
        let controller = self.0.entry(name.to_owned()).or_default();
        controller.status.restarts += 1;
        controller.status.failure = Some(shortened(reason));
        controller.failing_since.get_or_insert_with(Instant::now);
    }

    /// Returns the controllers that do not run: name, reason, and since when.
    pub(super) fn failing(&self) -> impl Iterator<Item = (&str, &str, Instant)> {
        self.0.iter().filter_map(|(name, controller)| {
            let reason = controller.status.failure.as_ref()?;
            Some((name.as_str(), reason.as_str(), controller.failing_since?))
        })
    }

    pub(super) fn status(&self) -> BTreeMap<String, ControllerStatus> {
        let status =
            |(name, controller): (&String, &Controller)| (name.clone(), controller.status.clone());
        self.0.iter().map(status).collect()
    }
}
