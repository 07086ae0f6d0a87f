// SPDX-License-Identifier: Apache-2.0
//! Runs bandwidth before the interface is up. On an interface that is up, each change of a qdisc
//! waits for a grace period while it holds the RTNL lock: twice in each ADD, and for milliseconds
//! on a busy machine.

use std::cell::OnceCell;
use std::ptr;
use std::sync::Arc;

use cni::{CniResult, Command, Error, Interface, Request};

use super::{List, Step, failed};
use crate::meta::bandwidth;

/// The bandwidth step, if the list has one with something to limit.
pub(super) struct EarlyLimits<'a> {
    step: Option<(&'a Step, Request<'a>)>,
    /// The interfaces that the step added, after it has run.
    added: OnceCell<Vec<Interface>>,
}

impl<'a> EarlyLimits<'a> {
    pub(super) fn of(list: &'a List, request: &Request<'a>) -> Self {
        let step = list.steps.iter().find(|step| step.plugin.name == bandwidth::PLUGIN.name);
        let step = step.map(|step| (step, list.request(request, step, Command::Add, None)));
        let step = step.filter(|(_, call)| bandwidth::limits(call));
        Self { step, added: OnceCell::new() }
    }

    pub(super) fn is_pending(&self) -> bool {
        self.step.is_some() && self.added.get().is_none()
    }

    /// Limits interfaces that are still down.
    pub(super) fn run(&self, interfaces: &[Interface]) -> Result<(), Error> {
        let Some((step, call)) = &self.step else { return Ok(()) };
        let before = CniResult { interfaces: interfaces.to_vec(), ..CniResult::default() };
        let mut call = call.clone();
        call.delegation.prev_result = Some(Arc::new(before));
        let mut after = (step.plugin.add)(&call).map_err(|error| failed(step, error))?;
        self.added.get_or_init(|| after.interfaces.split_off(interfaces.len()));
        Ok(())
    }

    pub(super) fn has_run(&self, step: &Step) -> bool {
        let is_same = |(own, _): &(&Step, _)| ptr::eq(*own, step);
        self.step.as_ref().is_some_and(is_same) && self.added.get().is_some()
    }

    /// Adds the step's interfaces to the result, when it is the step's turn.
    pub(super) fn complete(&self, result: Arc<CniResult>) -> Arc<CniResult> {
        let mut result = Arc::unwrap_or_clone(result);
        result.interfaces.extend(self.added.get().into_iter().flatten().cloned());
        Arc::new(result)
    }

    pub(super) fn rollback(&self) {
        if let Some((step, call)) = self.step.as_ref().filter(|_| self.added.get().is_some()) {
            // The error that caused the rollback is the one to report.
            let _ = (step.plugin.del)(&Request { command: Command::Del, ..call.clone() });
        }
    }
}
