// SPDX-License-Identifier: Apache-2.0
//! Tables and JSON on standard output.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use cni::{CniResult, Route};
use comfy_table::{Table, presets};
use serde_json::Value;
use text::escape;

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// Prints and flushes. Escapes control characters: the text may quote untrusted input.
pub(crate) fn print(text: &str) -> Result<()> {
    print_raw(&escape::lines(text))
}

/// Prints text with control characters for the terminal. Not `println!`, which panics on a broken pipe.
pub(crate) fn print_raw(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("write to standard output")
}

/// Prints each text as one line; newlines inside are escaped.
pub(crate) fn print_lines(lines: &[String]) -> Result<()> {
    print(&lines.iter().map(|line| format!("{}\n", escape::line(line))).collect::<String>())
}

/// Whether printing failed because the reader closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Prints JSON as CNI plugins do, with a newline.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    let document = gojson::to_pretty(value);
    print(&format!("{}\n", escape::json(&String::from_utf8_lossy(&document))))
}

/// A table with a header line and without borders, easy to process with `cut` and `awk`.
pub(crate) fn table<const N: usize>(
    headers: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(headers);
    for row in rows {
        table.add_row(row.map(|cell| match cell.is_empty() {
            true => "-".to_owned(),
            false => escape::line(&cell).into_owned(),
        }));
    }
    render(table)
}

/// A table without a header line.
pub(crate) fn grid(rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for row in rows {
        table.add_row(row.into_iter().map(|cell| escape::line(&cell).into_owned()));
    }
    render(table)
}

fn render(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}

/// Formats a duration in seconds, milliseconds or microseconds.
pub(crate) fn duration(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 0.001 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{:.0} µs", seconds * 1e6),
    }
}

/// Formats a duration in whole units.
pub(crate) fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 2 * 3600 => format!("{} min", seconds / 60),
        seconds if seconds < 2 * 86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Tables of the result of an ADD: interfaces, addresses, routes, name servers.
pub(crate) fn result(result: &CniResult) -> String {
    let interfaces = table(
        ["INTERFACE", "WHERE", "MAC", "MTU"],
        result.interfaces.iter().map(|interface| {
            let place = if interface.sandbox.is_empty() { "host" } else { &interface.sandbox };
            let mtu = if interface.mtu == 0 { String::new() } else { interface.mtu.to_string() };
            [interface.name.clone(), place.to_owned(), interface.mac.clone(), mtu]
        }),
    );
    let addresses = table(
        ["ADDRESS", "INTERFACE", "GATEWAY"],
        result.ips.iter().map(|ip| {
            let interface = ip.interface.and_then(|at| result.interfaces.get(at));
            let name = interface.map(|interface| interface.name.clone()).unwrap_or_default();
            [ip.address.to_string(), name, shown(ip.gateway)]
        }),
    );
    let routes = table(
        ["ROUTE", "GATEWAY", "MORE"],
        result
            .routes
            .iter()
            .map(|route| [route.dst.to_string(), shown(route.gw), route_attributes(route)]),
    );
    let mut text = String::new();
    let parts = [
        (result.interfaces.is_empty(), interfaces),
        (result.ips.is_empty(), addresses),
        (result.routes.is_empty(), routes),
        (result.dns.is_empty(), dns(result)),
    ];
    for (_, part) in parts.iter().filter(|(empty, _)| !empty) {
        if !text.is_empty() {
            text.push('\n');
        }
        text += part;
    }
    text
}

/// Route attributes that are rarely set.
fn route_attributes(route: &Route) -> String {
    let number = |name: &str, value: u32| (value != 0).then(|| format!("{name} {value}"));
    let parts = [
        number("mtu", route.mtu),
        number("advmss", route.advmss),
        number("priority", route.priority),
        route.table.map(|table| format!("table {table}")),
        route.scope.map(|scope| format!("scope {scope}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn dns(result: &CniResult) -> String {
    let dns = &result.dns;
    table(
        ["NAME SERVERS", "DOMAIN", "SEARCH", "OPTIONS"],
        [[
            dns.nameservers.join(" "),
            dns.domain.clone(),
            dns.search.join(" "),
            dns.options.join(" "),
        ]],
    )
}

fn shown(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn result_is_printed_as_tables() {
        let value = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": "cni0", "mac": "02:00:00:00:00:01"},
                {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/a",
                 "mtu": 1500},
            ],
            "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0", "table": 0, "mtu": 1400}],
        });
        let read = CniResult::parse(value, cni::Version::LATEST).unwrap();
        let expected = "\
INTERFACE  WHERE         MAC                MTU
cni0       host          02:00:00:00:00:01  -
eth0       /run/netns/a  02:00:00:00:00:02  1500

ADDRESS      INTERFACE  GATEWAY
10.1.0.2/24  eth0       10.1.0.1

ROUTE      GATEWAY  MORE
0.0.0.0/0  -        mtu 1400, table 0
";
        assert_eq!(result(&read), expected);
        assert_eq!(result(&CniResult::default()), "");
    }

    #[test]
    fn duration_has_a_suitable_unit() {
        let check = |micros: u64, text: &str| {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        };
        check(7, "7 µs");
        check(1_234, "1.23 ms");
        check(2_500_000, "2.50 s");
        let check =
            |seconds: u64, text: &str| assert_eq!(rough(Duration::from_secs(seconds)), text);
        check(119, "119 s");
        check(7_199, "119 min");
        check(86_399, "23 h");
        check(400_000, "4 days");
    }
}
