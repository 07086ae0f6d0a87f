// SPDX-License-Identifier: Apache-2.0
//! Whether the node is ready and the agent healthy: functions of the reported state and of the time.
//!
//! Readiness is about pods: a new pod can be attached and can reach all others. An unreachable store does not end it,
//! because the store only delivers changes. An expired lease does, because another node may have the subnet. Health is
//! about the agent: if the agent is not healthy, a restart may help.

use std::time::{Duration, Instant};

use super::State;
use super::model::{ConditionKind, RejectedPeerStatus};

/// Interval of the agent's heartbeat.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

/// The agent counts as hung after this time without a heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(45);

/// A repair or a controller that has failed for longer makes the agent unhealthy. Further attempts are unlikely to help.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of problems of the same kind that are listed one by one.
const MAX_ONE_BY_ONE: usize = 8;

/// The node is not ready while one of these conditions fails, because new pods would not work.
const NEEDED_BY_PODS: [ConditionKind; 5] = [
    ConditionKind::Lease,
    ConditionKind::Underlay,
    ConditionKind::Kernel,
    ConditionKind::Rules,
    ConditionKind::Bridge,
];

/// Conditions of state that the agent repairs all the time.
const REPAIRED: [ConditionKind; 2] = [ConditionKind::Kernel, ConditionKind::Rules];

/// Controllers that pods do not need. Their failures are shown, but the agent stays healthy: a restart would not
/// help, for example on a node without the capability for raw sockets, or without the right to list pods.
const OPTIONAL: [&str; 3] = ["path_check", "multicast", "pods"];

/// Whether pods can be attached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readiness {
    pub is_ready: bool,
    /// Why the node is not ready.
    pub reasons: Vec<String>,
    /// Problems that do not affect readiness.
    pub warnings: Vec<String>,
    /// Remaining time of the lease, after which a ready node is no longer ready unless the lease is renewed.
    pub holds_for: Option<Duration>,
    /// Whether the CNI configuration stays in place: the node is ready, or old pods on the bridge are the only problem.
    /// A container runtime cannot delete these pods without the configuration.
    pub keeps_cni_conf: bool,
}

/// Whether the agent works.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub is_healthy: bool,
    /// Why the agent is not healthy.
    pub reasons: Vec<String>,
}

pub(super) fn readiness(state: &State, now: Instant) -> Readiness {
    let (mut reasons, mut warnings) = (membership_problems(state, now), Vec::new());
    for (kind, problem) in state.conditions.iter() {
        // Until the node has joined, every problem may be the reason why it does not.
        let is_reason = NEEDED_BY_PODS.contains(&kind) || state.network.is_none();
        let texts = if is_reason { &mut reasons } else { &mut warnings };
        texts.push(condition_line(kind, &problem.text));
    }
    for (name, failure, _) in state.controllers.failing() {
        warnings.push(format!("controller {name} is being restarted: {failure}"));
    }
    // All pods need the device. A route serves one peer only.
    let (devices, others): (Vec<_>, Vec<_>) =
        state.kernel.conflicts.iter().partition(|conflict| conflict.is_device());
    summarize(&mut reasons, devices.iter().map(ToString::to_string), "conflicting devices");
    summarize(&mut warnings, others.iter().map(ToString::to_string), "conflicts");
    let rejected = state.peers.rejected().iter().map(rejection);
    summarize(&mut warnings, rejected, "keys or subnets refused");

    let is_ready = reasons.is_empty();
    let left = state.lease_until.map(|until| until.saturating_duration_since(now));
    let bridge_reasons = usize::from(state.conditions.get(ConditionKind::Bridge).is_some());
    let keeps_cni_conf = reasons.len() <= bridge_reasons;
    Readiness { is_ready, reasons, warnings, holds_for: left.filter(|_| is_ready), keeps_cni_conf }
}

/// A condition among the reasons or warnings.
pub(super) fn condition_line(kind: ConditionKind, problem: &str) -> String {
    format!("{}: {problem}", kind.name())
}

/// Returns why the node is not a member of a network.
fn membership_problems(state: &State, now: Instant) -> Vec<String> {
    let mut problems = Vec::new();
    if state.network.is_none() {
        problems.push("this node is not part of the network yet".to_owned());
        if state.store.reachable.is_none() && state.conditions.is_empty() {
            problems.push(format!("store: {} has not answered yet", state.store.kind));
        }
    } else if state.lease_until.is_some_and(|until| until <= now) {
        problems.push("the lease has expired and could not be renewed".to_owned());
    }
    problems
}

fn rejection(rejected: &RejectedPeerStatus) -> String {
    let RejectedPeerStatus { peer, subnet, reason } = rejected;
    match subnet {
        Some(subnet) => format!("{subnet} of {peer} is not served: {reason}"),
        None => format!("{peer} is not served: {reason}"),
    }
}

/// Adds each problem, or the number of problems and the first one if there are many.
fn summarize(
    texts: &mut Vec<String>,
    mut problems: impl ExactSizeIterator<Item = String>,
    kind: &str,
) {
    match problems.len() {
        ..=MAX_ONE_BY_ONE => texts.extend(problems),
        count => {
            let first = problems.next().unwrap_or_default();
            texts.push(format!("{count} {kind}, the first: {first}"));
        }
    }
}

pub(super) fn health(state: &State, now: Instant) -> Health {
    let mut reasons = Vec::new();
    let since_heartbeat = now.saturating_duration_since(state.heartbeat);
    if since_heartbeat > HEARTBEAT_TIMEOUT {
        reasons.push(format!("event loop stalled for {} s", since_heartbeat.as_secs()));
    }
    for kind in REPAIRED {
        let Some(failed) = state.conditions.get(kind) else { continue };
        let lasted = now.saturating_duration_since(failed.since);
        if lasted > UNHEALTHY_AFTER {
            let (text, seconds) = (&failed.problem.text, lasted.as_secs());
            reasons.push(format!("{}: not repaired for {seconds} s: {text}", kind.name()));
        }
    }
    let needed = state.controllers.failing().filter(|(name, ..)| !OPTIONAL.contains(name));
    for (name, failure, since) in needed {
        let lasted = now.saturating_duration_since(since);
        if lasted > UNHEALTHY_AFTER {
            let seconds = lasted.as_secs();
            reasons.push(format!("controller {name} has failed for {seconds} s: {failure}"));
        }
    }
    Health { is_healthy: reasons.is_empty(), reasons }
}
