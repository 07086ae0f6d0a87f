// SPDX-License-Identifier: Apache-2.0
//! Limits set before the interface is up. Later the kernel would wait for a grace period at each change
//! of a queue, and with it everybody who changes an interface: twice in each ADD, and for milliseconds on
//! a busy machine.

use std::cell::OnceCell;
use std::ptr;
use std::sync::Arc;

use cni::{CniResult, Command, Error, Interface, Request};

use super::{List, Step, failed};
use crate::meta::bandwidth;

/// The step that limits, where the list has one with something to limit.
pub struct Early<'a> {
    step: Option<(&'a Step, Request<'a>)>,
    /// The interfaces that it has added, once it is done.
    added: OnceCell<Vec<Interface>>,
}

impl<'a> Early<'a> {
    pub fn of(list: &'a List, request: &Request<'a>) -> Early<'a> {
        let step = list.steps.iter().find(|step| step.plugin.name == bandwidth::PLUGIN.name);
        let step = step.map(|step| (step, list.request(request, step, Command::Add, None)));
        let step = step.filter(|(_, asked)| bandwidth::limits(asked));
        Early { step, added: OnceCell::new() }
    }

    pub fn is_waiting(&self) -> bool {
        self.step.is_some() && self.added.get().is_none()
    }

    /// Limits an interface that is still down.
    pub fn shape(&self, made: &[Interface]) -> Result<(), Error> {
        let Some((step, asked)) = &self.step else { return Ok(()) };
        let before = CniResult { interfaces: made.to_vec(), ..CniResult::default() };
        let mut asked = asked.clone();
        asked.delegation.prev_result = Some(Arc::new(before));
        let mut after = (step.plugin.add)(&asked).map_err(|error| failed(step, error))?;
        self.added.get_or_init(|| after.interfaces.split_off(made.len()));
        Ok(())
    }

    pub fn has_done(&self, step: &Step) -> bool {
        let is_this = |(own, _): &(&Step, _)| ptr::eq(*own, step);
        self.step.as_ref().is_some_and(is_this) && self.added.get().is_some()
    }

    /// The result as it is after the step in its turn.
    pub fn complete(&self, result: Arc<CniResult>) -> Arc<CniResult> {
        let mut result = Arc::unwrap_or_clone(result);
        result.interfaces.extend(self.added.get().into_iter().flatten().cloned());
        Arc::new(result)
    }

    pub fn take_back(&self) {
        if let Some((step, asked)) = self.step.as_ref().filter(|_| self.added.get().is_some()) {
            // The error that led here is the one to tell.
            let _ = (step.plugin.del)(&Request { command: Command::Del, ..asked.clone() });
        }
    }
}
