// SPDX-License-Identifier: Apache-2.0
//! What to take back, last first, when an ADD fails half-way. A value and not a destructor:
//! the plugin program aborts on panic, and success must undo nothing.

use std::fmt;

/// Builds something; when that fails, what was done of it is taken back.
pub fn or_undo<'a, T, E>(build: impl FnOnce(&mut Undo<'a>) -> Result<T, E>) -> Result<T, E> {
    let mut undo = Undo::default();
    let built = build(&mut undo);
    if built.is_err() {
        undo.run();
    }
    built
}

/// Steps that take back what was done.
#[derive(Default)]
pub struct Undo<'a>(Vec<Box<dyn FnOnce() + 'a>>);

impl<'a> Undo<'a> {
    /// Remembers how to take back what has just been done. The step must not fail aloud: the
    /// error that made it run is the one to tell.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
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
