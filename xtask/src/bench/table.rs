// SPDX-License-Identifier: Apache-2.0
//! A table for the terminal and for Markdown.

use std::fmt::Write;

/// The first column is left-aligned, all others right-aligned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) title: &'static str,
    pub(crate) header: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &'static str, header: &[&'static str]) -> Table {
        Table { title, header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    pub(crate) fn text(&self) -> String {
        let header: Vec<String> = self.header.iter().map(|&cell| cell.to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        let mut text = format!("{}\n", self.title);
        for line in lines {
            text.push_str(&padded(line, &widths));
        }
        text
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n| {} |\n| ---", self.title, self.header.join(" | "));
        text.push_str(&" | --:".repeat(self.header.len().saturating_sub(1)));
        text.push_str(" |\n");
        for row in &self.rows {
            // Writing to a String does not fail.
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }
}

fn padded(line: &[String], widths: &[usize]) -> String {
    let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, &width))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    let text = cells.collect::<Vec<_>>().join("  ");
    format!("  {}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned() {
        let mut table = Table::new("times", &["case", "ms"]);
        table.row(["VERSION".to_owned(), "0.15".to_owned()]);
        table.row(["ADD".to_owned(), "10.20".to_owned()]);
        let text = "times\n  case        ms\n  VERSION   0.15\n  ADD      10.20\n";
        assert_eq!(table.text(), text);
        let markdown =
            "## times\n\n| case | ms |\n| --- | --: |\n| VERSION | 0.15 |\n| ADD | 10.20 |\n";
        assert_eq!(table.markdown(), markdown);
    }
}
