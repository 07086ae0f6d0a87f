// SPDX-License-Identifier: Apache-2.0
//! What people see while the demo works: lines, and on a terminal a bar while it builds.

use std::io::IsTerminal;

use anyhow::Result;
use text::escape;

use crate::output::{self, Format};

const BAR_WIDTH: usize = 30;
/// Back to the line's beginning, and clear it.
const AGAIN: &str = "\r\x1b[K";

/// Tells people what is going on; programs read JSON in the end.
#[derive(Debug)]
pub struct Progress {
    pub format: Format,
    is_terminal: bool,
    bar: Option<Bar>,
}

/// How far something has come.
#[derive(Debug, Clone, Copy)]
struct Bar {
    done: usize,
    total: usize,
}

impl Progress {
    pub fn new(format: Format) -> Progress {
        Progress { format, is_terminal: std::io::stdout().is_terminal(), bar: None }
    }

    /// A line.
    pub fn step(&mut self, what: &str, text: &str) -> Result<()> {
        self.text(&line(what, text))
    }

    pub fn text(&mut self, text: &str) -> Result<()> {
        if self.format == Format::Text { output::print(text) } else { Ok(()) }
    }

    fn raw(&mut self, text: &str) -> Result<()> {
        if self.format == Format::Text { output::print_raw(text) } else { Ok(()) }
    }

    /// From now on so many things are built.
    pub fn begin(&mut self, total: usize) -> Result<()> {
        self.bar = Some(Bar { done: 0, total });
        self.show_bar("")
    }

    /// One of them is: a line, or a longer bar.
    pub fn built(&mut self, what: &str, text: &str) -> Result<()> {
        if let Some(bar) = &mut self.bar {
            bar.done += 1;
        }
        if self.is_terminal { self.show_bar(what) } else { self.step(what, text) }
    }

    /// The bar goes away.
    pub fn end(&mut self) -> Result<()> {
        match self.bar.take() {
            Some(_) if self.is_terminal => self.raw(AGAIN),
            _ => Ok(()),
        }
    }

    fn show_bar(&mut self, what: &str) -> Result<()> {
        match self.bar {
            Some(bar) if self.is_terminal => self.raw(&format!("{AGAIN}{}", bar.shown(what))),
            _ => Ok(()),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // An error follows in a line of its own; where the terminal is gone nobody sees either.
        let _ = self.end();
    }
}

impl Bar {
    fn shown(self, what: &str) -> String {
        let full = BAR_WIDTH * self.done.min(self.total) / self.total.max(1);
        let (full_part, rest) = ("█".repeat(full), "░".repeat(BAR_WIDTH - full));
        let what = escape::line(what);
        format!("{:<9} {full_part}{rest} {}/{} {what}", "building", self.done, self.total)
    }
}

fn line(what: &str, text: &str) -> String {
    format!("{what:<9} {}\n", escape::line(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_and_never_overflows() {
        let check = |done: usize, total: usize, full: usize| {
            let shown = Bar { done, total }.shown("pod1");
            assert_eq!(shown.matches('█').count(), full, "{shown}");
            assert_eq!(shown.matches(['█', '░']).count(), BAR_WIDTH, "{shown}");
            assert!(shown.ends_with(&format!(" {done}/{total} pod1")), "{shown}");
        };
        check(0, 6, 0);
        check(3, 6, 15);
        check(6, 6, 30);
        check(7, 6, 30);
        check(0, 0, 0);
    }
}
