// SPDX-License-Identifier: Apache-2.0
//! The steps that undo a failed ADD, last step first. A value and not a destructor, because the
//! plugin program aborts on panic and a successful ADD must undo nothing.

use std::fmt;

/// Runs `build`; if it fails, runs the undo steps that it has pushed.
pub(crate) fn or_undo<'a, T, E>(build: impl FnOnce(&mut Undo<'a>) -> Result<T, E>) -> Result<T, E> {
    let mut undo = Undo::default();
    let built = build(&mut undo);
    if built.is_err() {
        undo.run();
    }
    built
}

#[derive(Default)]
pub(crate) struct Undo<'a>(Vec<Box<dyn FnOnce() + 'a>>);

impl<'a> Undo<'a> {
    /// Adds a step that undoes what was just done. A step cannot report a failure: the error that
    /// caused the rollback is the one to report.
    pub(crate) fn push(&mut self, step: impl FnOnce() + 'a) {
        self.0.push(Box::new(step));
    }

    fn run(self) {
        for step in self.0.into_iter().rev() {
            step();
        }
    }
}

impl fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Undo({} steps)", self.0.len())
    }
}
