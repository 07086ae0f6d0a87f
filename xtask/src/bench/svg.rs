// SPDX-License-Identifier: Apache-2.0
//! The results as a bar chart with a logarithmic scale, with a light and a dark style.

use std::fmt::Write;

use super::parallel::PARALLEL;
use super::report::{levels, ms, times};
use super::results::{
    BRIDGE_ADD, BRIDGE_DEL, BRIDGE_DEL_DONE, LOOPBACK_ADD, Results, VERSION, Who, grouped,
    host_local,
};
use super::targets::ratio;

const WIDTH: f64 = 860.0;
/// Horizontal range of the bars.
const LEFT: f64 = 210.0;
const RIGHT: f64 = 730.0;
const TOP: f64 = 92.0;
const BAR: f64 = 13.0;
const GROUP: f64 = 40.0;

const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .soft { fill: #59636e; font-size: 11px }
  .ratio { font-weight: 600 }
  .back { fill: #ffffff; stroke: #d1d9e0 }
  .grid { stroke: #d1d9e0 }
  .go { fill: #9aa4af }
  .ours { fill: #d9622b }
  .floor { stroke: #1f2328; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .soft { fill: #9198a1 }
    .back { fill: #0d1117; stroke: #3d444d }
    .grid { stroke: #3d444d }
    .go { fill: #656d76 }
    .ours { fill: #f0883e }
    .floor { stroke: #e6edf3 }
  }
";

const HEADING: &str = r#"<text class="title" x="20" y="32">Time of a CNI call, median</text>
<text class="soft" x="20" y="52">Logarithmic scale, shorter is better; right column: Go ÷ podwire</text>
<rect class="ours" x="400" y="23" width="12" height="12" rx="2"/><text x="418" y="33">podwire</text>
<rect class="go" x="480" y="23" width="12" height="12" rx="2"/><text x="498" y="33">Go plugins</text>
<line class="floor" x1="581" x2="581" y1="22" y2="36"/>
<text x="590" y="33">floor: the kernel changes only</text>
"#;

/// Bars of one case, in microseconds.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    label: String,
    go: f64,
    ours: f64,
    floor: Option<f64>,
}

/// Renders the chart.
pub(crate) fn chart(results: &Results) -> String {
    let groups = groups(results);
    let scale = Scale::of(&groups);
    let bottom = TOP + GROUP * groups.len() as f64;
    let height = bottom + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <title>Time of a CNI call: podwire and the Go plugins</title>\n<style>{STYLE}</style>\n\
         <rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
        WIDTH - 1.0,
        height - 1.0,
    );
    svg.push_str(HEADING);
    svg.push_str(&grid(&scale, bottom));
    for (at, group) in groups.iter().enumerate() {
        svg.push_str(&bars(group, &scale, TOP + GROUP * at as f64));
    }
    svg.push_str("</svg>\n");
    svg
}

fn groups(results: &Results) -> Vec<Group> {
    let call = |label: String, case: &str| {
        let at = |who| results.median(case, who);
        Some(Group { label, go: at(Who::Go)?, ours: at(Who::Ours)?, floor: at(Who::Floor) })
    };
    let many = |parallel: usize| {
        let each = |who| Some(1e6 / results.bulk("ADD", parallel, who)?.per_second()?);
        let label = format!("ADD, {parallel} in parallel, each");
        Some(Group { label, go: each(Who::Go)?, ours: each(Who::Ours)?, floor: None })
    };
    let singles = [
        (VERSION, VERSION),
        (LOOPBACK_ADD, LOOPBACK_ADD),
        (BRIDGE_ADD, BRIDGE_ADD),
        (BRIDGE_DEL, BRIDGE_DEL),
        ("… until the kernel is done", BRIDGE_DEL_DONE),
    ];
    let singles = singles.iter().map(|(label, case)| call((*label).to_owned(), case));
    let taken = levels(results).into_iter().map(|taken| {
        let label = format!("host-local ADD, {} reserved", grouped(taken as u64));
        call(label, &host_local("ADD", taken))
    });
    singles
        .chain(PARALLEL[1..].iter().map(|parallel| many(*parallel)))
        .chain(taken)
        .flatten()
        .collect()
}

/// Range of the scale in powers of ten of microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn of(groups: &[Group]) -> Scale {
        let all =
            || groups.iter().flat_map(|group| [Some(group.go), Some(group.ours), group.floor]);
        let low = all().flatten().fold(f64::INFINITY, f64::min);
        let high = all().flatten().fold(1.0, f64::max);
        let low = if low.is_finite() { low } else { 1.0 };
        let [low, high] = [low.log10().floor(), high.log10().ceil()].map(|power| power as i32);
        Scale { low, high: high.max(low + 1) }
    }

    fn x(&self, micros: f64) -> f64 {
        let part = (micros.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LEFT + part * (RIGHT - LEFT)
    }
}

fn grid(scale: &Scale, bottom: f64) -> String {
    let mut svg = String::new();
    for power in scale.low..=scale.high {
        let micros = 10_f64.powi(power);
        let (x, label) = (scale.x(micros), decade(power));
        // Writing to a String does not fail.
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom}\"/>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            TOP - 8.0,
            bottom + 18.0,
        );
    }
    svg
}

/// Label of a power of ten of microseconds.
fn decade(power: i32) -> String {
    match power {
        ..3 => format!("{} µs", 10_f64.powi(power)),
        3..6 => format!("{} ms", 10_f64.powi(power - 3)),
        _ => format!("{} s", 10_f64.powi(power - 6)),
    }
}

fn bars(group: &Group, scale: &Scale, y: f64) -> String {
    let bar = |class: &str, micros: f64, y: f64| {
        let end = scale.x(micros);
        format!(
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" \
             rx=\"2\"/><text class=\"soft\" x=\"{:.1}\" y=\"{}\">{} ms</text>\n",
            (end - LEFT).max(1.0),
            end + 6.0,
            y + BAR - 3.0,
            ms(Some(micros)),
        )
    };
    let middle = y + BAR + 5.0;
    let mut svg = format!(
        "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>\n",
        LEFT - 12.0,
        group.label
    );
    svg.push_str(&bar("ours", group.ours, y));
    svg.push_str(&bar("go", group.go, y + BAR + 2.0));
    if let Some(floor) = group.floor.map(|micros| scale.x(micros)) {
        let (from, to) = (y - 2.0, y + BAR + 2.0);
        let _ = writeln!(
            svg,
            "<line class=\"floor\" x1=\"{floor:.1}\" x2=\"{floor:.1}\" y1=\"{from}\" y2=\"{to}\"/>"
        );
    }
    let label = times(ratio(Some(group.go), Some(group.ours)));
    let _ = writeln!(
        svg,
        "<text class=\"ratio\" x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{label}</text>",
        WIDTH - 24.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(go: f64, ours: f64) -> Group {
        Group { label: "ADD".to_owned(), go, ours, floor: None }
    }

    #[test]
    fn scale_covers_all_bars() {
        let scale = Scale::of(&[group(9000.0, 900.0), group(400_000.0, 150.0)]);
        assert_eq!(scale, Scale { low: 2, high: 6 });
        assert_eq!([scale.x(100.0), scale.x(1e6)], [LEFT, RIGHT]);
        assert_eq!(Scale::of(&[]), Scale { low: 0, high: 1 });
    }

    #[test]
    fn decades_are_labelled() {
        assert_eq!([2, 3, 5, 6].map(decade), ["100 µs", "1 ms", "100 ms", "1 s"]);
    }

    #[test]
    fn bars_show_time_and_ratio() {
        let scale = Scale { low: 2, high: 4 };
        let svg = bars(&group(10_000.0, 1000.0), &scale, 0.0);
        for part in
            ["class=\"ours\" x=\"210\" y=\"0\" width=\"260.0\"", ">1.00 ms<", ">10.0 ms<", ">10×<"]
        {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
    }
}
