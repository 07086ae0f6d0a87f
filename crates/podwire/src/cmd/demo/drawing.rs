// SPDX-License-Identifier: Apache-2.0
//! Draws a bridge with the nodes or pods connected to it, in box-drawing characters.

#[derive(Debug)]
pub(crate) struct Picture {
    /// Line above the bridge.
    pub(crate) title: String,
    /// Text in the box of the bridge.
    pub(crate) bridge: String,
    pub(crate) nodes: Vec<Node>,
}

/// A pod or a node below the bridge.
#[derive(Debug)]
pub(crate) struct Node {
    /// Text beside the line to the bridge.
    pub(crate) link: String,
    /// Text in the box.
    pub(crate) lines: Vec<String>,
}

/// Maximum number of boxes side by side on a screen.
const MAX_BOXES: usize = 4;
/// Column of a box at which the line to the bridge ends.
const LINK_AT: usize = 4;

/// Renders the picture; every line ends with a newline.
pub(crate) fn draw(picture: &Picture) -> String {
    let shown = &picture.nodes[..picture.nodes.len().min(MAX_BOXES)];
    let width = box_width(&picture.bridge, shown);
    // Each box has two sides, and there is a space between boxes.
    let inner = (shown.len() * (width + 3)).saturating_sub(3);
    let mut text = format!("  {}\n", picture.title);
    text += &format!("  ┌{}┐\n", "─".repeat(inner));
    text += &format!("  │{}│\n", padded(&format!(" {}", picture.bridge), inner));
    let ends = row(shown, |_| edge(width, '─', '┬'), "─");
    text += &format!("  └{}┘\n", inside(&ends));
    text += &row_line(shown, |pod| link(pod, width));
    text += &row_line(shown, |_| format!("┌{}┐", edge_inner(width, '┴')));
    let height = shown.iter().map(|pod| pod.lines.len()).max().unwrap_or(0);
    for at in 0..height {
        text += &row_line(shown, |pod| {
            let line = pod.lines.get(at).map_or("", String::as_str);
            format!("│{}│", padded(&format!(" {line}"), width))
        });
    }
    text += &row_line(shown, |_| format!("└{}┘", "─".repeat(width)));
    match picture.nodes.len() - shown.len() {
        0 => {}
        more => text += &format!("  … and {more} more\n"),
    }
    text
}

/// Width of a box: enough for its lines, for the text beside the line to the bridge, and for its share
/// of the bridge's text.
fn box_width(bridge: &str, pods: &[Node]) -> usize {
    let lines = pods.iter().flat_map(|pod| &pod.lines).map(|line| length(line) + 2);
    let links = pods.iter().map(|pod| length(&pod.link) + LINK_AT);
    let share = (length(bridge) + 2).div_ceil(pods.len().max(1));
    lines.chain(links).max().unwrap_or(0).max(share).max(LINK_AT + 2)
}

fn row(pods: &[Node], cell: impl Fn(&Node) -> String, between: &str) -> String {
    pods.iter().map(cell).collect::<Vec<_>>().join(between)
}

fn row_line(pods: &[Node], cell: impl Fn(&Node) -> String) -> String {
    let line = format!("  {}", row(pods, cell, " "));
    format!("{}\n", line.trim_end())
}

/// Edge of a cell with a mark at the line to the bridge.
fn edge(width: usize, line: char, mark: char) -> String {
    (0..width + 2).map(|at| if at == LINK_AT { mark } else { line }).collect()
}

fn edge_inner(width: usize, mark: char) -> String {
    (1..=width).map(|at| if at == LINK_AT { mark } else { '─' }).collect()
}

fn link(pod: &Node, width: usize) -> String {
    padded(&format!("{}│ {}", " ".repeat(LINK_AT), pod.link), width + 2)
}

/// The line without its two ends, which become corners.
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
        let pod = |at: usize| Node {
            link: format!("veth0000000{at}"),
            lines: vec![format!("pod{at}"), format!("10.77.0.{}/24", at + 1)],
        };
        Picture {
            title: "node".into(),
            bridge: "bridge br0  10.77.0.1/24".into(),
            nodes: (1..=pods).map(pod).collect(),
        }
    }

    #[test]
    fn two_pods_are_connected_to_the_bridge() {
        let drawn = draw(&picture(2));
        // All boxes have the same width.
        let boxed: Vec<usize> =
            drawn.lines().filter(|line| line.ends_with(['│', '┐', '┘'])).map(length).collect();
        assert!(boxed.iter().all(|width| *width == boxed[0]), "{drawn}");
        assert_eq!(drawn.matches('┬').count(), 2, "{drawn}");
        assert_eq!(drawn.matches('┴').count(), 2, "{drawn}");
    }

    #[test]
    fn lines_meet_bridge_and_boxes() {
        for pods in 1..=5 {
            let drawn = draw(&picture(pods));
            let lines: Vec<&str> = drawn.lines().collect();
            let marks = |line: usize, mark: char| -> Vec<usize> {
                let found = lines[line].chars().enumerate().filter(|(_, c)| *c == mark);
                found.map(|(at, _)| at).collect()
            };
            assert_eq!(marks(3, '┬').len(), pods.min(MAX_BOXES), "{drawn}");
            assert_eq!(marks(3, '┬'), marks(4, '│'), "{drawn}");
            assert_eq!(marks(4, '│'), marks(5, '┴'), "{drawn}");
            assert_eq!(drawn.contains("… and 1 more"), pods == 5);
        }
    }
}
