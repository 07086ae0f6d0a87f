// SPDX-License-Identifier: Apache-2.0
//! What the demo built, drawn with lines: a bridge above, and what hangs on it below.

/// What is to be drawn.
#[derive(Debug)]
pub struct Picture {
    /// Stands above the bridge.
    pub title: String,
    /// Stands in the bridge's box.
    pub bridge: String,
    pub below: Vec<Hung>,
}

/// A pod or a node.
#[derive(Debug)]
pub struct Hung {
    /// Stands beside its wire.
    pub wire: String,
    /// What stands in its box.
    pub lines: Vec<String>,
}

/// More do not fit beside each other on a usual screen.
const MOST: usize = 4;
/// Where on a box its wire ends.
const WIRE_AT: usize = 4;

/// The drawing; every line ends in a newline.
pub fn draw(picture: &Picture) -> String {
    let shown = &picture.below[..picture.below.len().min(MOST)];
    let width = box_width(&picture.bridge, shown);
    // Each box with its two sides, and a space between boxes.
    let inner = (shown.len() * (width + 3)).saturating_sub(3);
    let mut text = format!("  {}\n", picture.title);
    text += &format!("  ┌{}┐\n", "─".repeat(inner));
    text += &format!("  │{}│\n", padded(&format!(" {}", picture.bridge), inner));
    let ends = row(shown, |_| edge(width, '─', '┬'), "─");
    text += &format!("  └{}┘\n", inside(&ends));
    text += &row_line(shown, |pod| wire(pod, width));
    text += &row_line(shown, |_| format!("┌{}┐", edge_inner(width, '┴')));
    let height = shown.iter().map(|pod| pod.lines.len()).max().unwrap_or(0);
    for at in 0..height {
        text += &row_line(shown, |pod| {
            let line = pod.lines.get(at).map_or("", String::as_str);
            format!("│{}│", padded(&format!(" {line}"), width))
        });
    }
    text += &row_line(shown, |_| format!("└{}┘", "─".repeat(width)));
    match picture.below.len() - shown.len() {
        0 => {}
        more => text += &format!("  … and {more} more\n"),
    }
    text
}

/// Wide enough for every line, for a wire's name beside the wire, and for the bridge's line over
/// all of them.
fn box_width(bridge: &str, pods: &[Hung]) -> usize {
    let lines = pods.iter().flat_map(|pod| &pod.lines).map(|line| length(line) + 2);
    let wires = pods.iter().map(|pod| length(&pod.wire) + WIRE_AT);
    let share = (length(bridge) + 2).div_ceil(pods.len().max(1));
    lines.chain(wires).max().unwrap_or(0).max(share).max(WIRE_AT + 2)
}

fn row(pods: &[Hung], cell: impl Fn(&Hung) -> String, between: &str) -> String {
    pods.iter().map(cell).collect::<Vec<_>>().join(between)
}

fn row_line(pods: &[Hung], cell: impl Fn(&Hung) -> String) -> String {
    let line = format!("  {}", row(pods, cell, " "));
    format!("{}\n", line.trim_end())
}

/// A cell's line with a mark where its wire is.
fn edge(width: usize, line: char, mark: char) -> String {
    (0..width + 2).map(|at| if at == WIRE_AT { mark } else { line }).collect()
}

fn edge_inner(width: usize, mark: char) -> String {
    (1..=width).map(|at| if at == WIRE_AT { mark } else { '─' }).collect()
}

fn wire(pod: &Hung, width: usize) -> String {
    padded(&format!("{}│ {}", " ".repeat(WIRE_AT), pod.wire), width + 2)
}

/// The same without its two ends, where the corners go.
fn inside(line: &str) -> String {
    let count = length(line);
    line.chars().skip(1).take(count.saturating_sub(2)).collect()
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(length(text))))
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(pods: usize) -> Picture {
        let pod = |at: usize| Hung {
            wire: format!("veth0000000{at}"),
            lines: vec![format!("pod{at}"), format!("10.77.0.{}/24", at + 1)],
        };
        Picture {
            title: "node".into(),
            bridge: "bridge br0  10.77.0.1/24".into(),
            below: (1..=pods).map(pod).collect(),
        }
    }

    #[test]
    fn two_pods_hang_on_a_bridge() {
        let drawn = draw(&picture(2));
        // Widths first: a box that is off by one is seen at once.
        let boxed: Vec<usize> =
            drawn.lines().filter(|line| line.ends_with(['│', '┐', '┘'])).map(length).collect();
        assert!(boxed.iter().all(|width| *width == boxed[0]), "{drawn}");
        assert_eq!(drawn.matches('┬').count(), 2, "{drawn}");
        assert_eq!(drawn.matches('┴').count(), 2, "{drawn}");
    }

    #[test]
    fn wires_meet_bridge_and_box() {
        for pods in 1..=5 {
            let drawn = draw(&picture(pods));
            let lines: Vec<&str> = drawn.lines().collect();
            let marks = |line: usize, mark: char| -> Vec<usize> {
                let found = lines[line].chars().enumerate().filter(|(_, c)| *c == mark);
                found.map(|(at, _)| at).collect()
            };
            assert_eq!(marks(3, '┬').len(), pods.min(MOST), "{drawn}");
            assert_eq!(marks(3, '┬'), marks(4, '│'), "{drawn}");
            assert_eq!(marks(4, '│'), marks(5, '┴'), "{drawn}");
            assert_eq!(drawn.contains("… and 1 more"), pods == 5);
        }
    }
}
