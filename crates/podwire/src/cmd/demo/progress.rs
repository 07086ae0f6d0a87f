// SPDX-License-Identifier: Apache-2.0
//! Output of a running demo: lines, and on a terminal a progress bar while it builds.

use std::io::IsTerminal;

use anyhow::Result;
use text::escape;

use crate::output::{self, Format};

const BAR_WIDTH: usize = 30;
/// Moves the cursor to the start of the line and clears the line.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Prints lines in text format only; in JSON format one document follows in the end.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) format: Format,
    is_terminal: bool,
    bar: Option<Bar>,
}

#[derive(Debug, Clone, Copy)]
struct Bar {
    done: usize,
    total: usize,
}

impl Progress {
    pub(crate) fn new(format: Format) -> Progress {
        Progress { format, is_terminal: std::io::stdout().is_terminal(), bar: None }
    }

    /// Prints a line with a label.
    pub(crate) fn step(&mut self, label: &str, text: &str) -> Result<()> {
        self.text(&line(label, text))
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        if self.format == Format::Text { output::print(text) } else { Ok(()) }
    }

    fn raw(&mut self, text: &str) -> Result<()> {
        if self.format == Format::Text { output::print_raw(text) } else { Ok(()) }
    }

    /// Starts the bar for this number of objects.
    pub(crate) fn begin(&mut self, total: usize) -> Result<()> {
        self.bar = Some(Bar { done: 0, total });
        self.show_bar("")
    }

    /// One more object is built: extends the bar, or prints a line.
    pub(crate) fn built(&mut self, label: &str, text: &str) -> Result<()> {
        if let Some(bar) = &mut self.bar {
            bar.done += 1;
        }
        if self.is_terminal { self.show_bar(label) } else { self.step(label, text) }
    }

    /// Removes the bar.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.bar.take() {
            Some(_) if self.is_terminal => self.raw(CLEAR_LINE),
            _ => Ok(()),
        }
    }

    fn show_bar(&mut self, label: &str) -> Result<()> {
        match self.bar {
            Some(bar) if self.is_terminal => {
                self.raw(&format!("{CLEAR_LINE}{}", bar.render(label)))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // An error message may follow. A failure here means that the terminal is gone.
        let _ = self.end();
    }
}

impl Bar {
    fn render(self, label: &str) -> String {
        let full = BAR_WIDTH * self.done.min(self.total) / self.total.max(1);
        let (full_part, rest) = ("█".repeat(full), "░".repeat(BAR_WIDTH - full));
        let label = escape::line(label);
        format!("{:<9} {full_part}{rest} {}/{} {label}", "building", self.done, self.total)
    }
}

fn line(label: &str, text: &str) -> String {
    format!("{label:<9} {}\n", escape::line(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_grows_up_to_its_width() {
        let check = |done: usize, total: usize, full: usize| {
            let shown = Bar { done, total }.render("pod1");
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
