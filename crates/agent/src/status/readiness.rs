// SPDX-License-Identifier: Apache-2.0
//! Whether a node is ready and an agent healthy: a function of what is on the hub and of the time.
//!
//! Ready is about pods: a new one would be connected, and reach all others. That does not end with
//! the store, which only tells of changes; it ends when the lease does, as then the subnet may be
//! another node's. Healthy is about the agent: if it is not, starting it again may help.

use std::time::{Duration, Instant};

use super::State;
use super::model::ConditionKind;

/// The loop gives a sign of life at least this often.
pub const BEAT_EVERY: Duration = Duration::from_secs(10);

/// Without one for that long it counts as stuck.
const SILENCE: Duration = Duration::from_secs(45);

/// What fails for longer is not going to heal by being tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Up to so many texts of a kind are told one by one.
const MANY: usize = 8;

/// With these, new pods would not work.
const UNFIT: [ConditionKind; 5] = [
    ConditionKind::Lease,
    ConditionKind::Underlay,
    ConditionKind::Kernel,
    ConditionKind::Rules,
    ConditionKind::Bridge,
];

/// What an agent repairs for as long as it lives.
const REPAIRED: [ConditionKind; 2] = [ConditionKind::Kernel, ConditionKind::Rules];

/// Whether pods can be connected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readiness {
    pub is_ready: bool,
    /// Why not.
    pub reasons: Vec<String>,
    /// What is wrong and does not make the node unfit.
    pub warnings: Vec<String>,
    /// It may end then though nothing happens.
    pub holds_for: Option<Duration>,
    /// The CNI configuration stays: the node is ready, or all that is wrong are old pods on the bridge. A runtime
    /// without the configuration cannot delete pods.
    pub keeps_cni_conf: bool,
}

/// Whether the agent works.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub is_healthy: bool,
    /// Why not.
    pub reasons: Vec<String>,
}

pub(super) fn readiness(state: &State, now: Instant) -> Readiness {
    let has_ended = |until: Instant| until <= now;
    let mut reasons = Vec::new();
    if state.session.is_none() {
        reasons.push("this node is not part of the network yet".to_owned());
    } else if state.lease_until.is_some_and(has_ended) {
        reasons.push("the lease has run out, and could not be renewed".to_owned());
    }
    if state.store.reachable.is_none() && state.problems.is_empty() && state.session.is_none() {
        reasons.push(format!("store: {} has not answered yet", state.store.kind));
    }
    let mut warnings = Vec::new();
    for (part, active) in &state.problems {
        // Before there is a network, whatever is wrong is what keeps it from being there.
        let is_reason = UNFIT.contains(part) || state.session.is_none();
        let texts = if is_reason { &mut reasons } else { &mut warnings };
        texts.push(format!("{}: {}", part.name(), active.problem.text));
    }
    for (name, controller) in &state.controllers {
        if let Some(failure) = &controller.shown.failure {
            warnings.push(format!("controller {name} is being restarted: {failure}"));
        }
    }
    // A route is one peer's, a device all of them's.
    let (devices, others): (Vec<_>, Vec<_>) =
        state.conflicts.iter().partition(|conflict| conflict.is_device());
    summarise(&mut reasons, devices.iter().map(ToString::to_string), "conflicting devices");
    summarise(&mut warnings, others.iter().map(ToString::to_string), "conflicts");
    let refused = state.refused.iter().map(|refused| match refused.subnet {
        Some(subnet) => format!("{subnet} of {} is not served: {}", refused.peer, refused.reason),
        None => format!("{} is not served: {}", refused.peer, refused.reason),
    });
    summarise(&mut warnings, refused, "keys or subnets refused");
    let is_ready = reasons.is_empty();
    let left = state.lease_until.map(|until| until.saturating_duration_since(now));
    let of_bridge = usize::from(state.problems.contains_key(&ConditionKind::Bridge));
    let keeps_cni_conf = reasons.len() <= of_bridge;
    Readiness { is_ready, reasons, warnings, holds_for: left.filter(|_| is_ready), keeps_cni_conf }
}

/// Adds each text, or if there are many their number and the first of them.
fn summarise(
    texts: &mut Vec<String>,
    mut found: impl ExactSizeIterator<Item = String>,
    kind: &str,
) {
    match found.len() {
        ..=MANY => texts.extend(found),
        count => {
            let first = found.next().unwrap_or_default();
            texts.push(format!("{count} {kind}, the first: {first}"));
        }
    }
}

pub(super) fn health(state: &State, now: Instant) -> Health {
    let mut reasons = Vec::new();
    let silence = now.saturating_duration_since(state.beat);
    if silence > SILENCE {
        reasons.push(format!("event loop stalled for {} s", silence.as_secs()));
    }
    for part in REPAIRED {
        let Some(active) = state.problems.get(&part) else { continue };
        let lasted = now.saturating_duration_since(active.start);
        if lasted > PATIENCE {
            let (text, seconds) = (&active.problem.text, lasted.as_secs());
            reasons.push(format!("{}: not repaired for {seconds} s: {text}", part.name()));
        }
    }
    for (name, controller) in &state.controllers {
        let (Some(since), Some(failure)) = (controller.failing_since, &controller.shown.failure)
        else {
            continue;
        };
        let lasted = now.saturating_duration_since(since);
        if lasted > PATIENCE {
            let seconds = lasted.as_secs();
            reasons.push(format!("controller {name} has failed for {seconds} s: {failure}"));
        }
    }
    Health { is_healthy: reasons.is_empty(), reasons }
}
