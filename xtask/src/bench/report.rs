// SPDX-License-Identifier: Apache-2.0
//! Tables of the results, for the terminal and for docs/benchmark.md.

use super::agent_tables;
use super::chain::AT_ONCE;
use super::facts::Facts;
use super::mappings::LEVELS;
use super::parallel::PARALLEL;
use super::results::{
    BRIDGE_ADD, CHAIN_ADD, CHAIN_DEL, Results, Who, grouped, host_local, mappings,
};
use super::stats::summary;
use super::table::Table;
use super::targets::{Bound, ratio, targets};

/// All tables. Times are medians in milliseconds, unless a column says otherwise.
pub(crate) fn tables(results: &Results) -> Vec<Table> {
    let [starts, crowds, pools, tcp] = agent_tables::tables(&results.agents);
    vec![
        calls(results),
        chain(results),
        present(results),
        taken(results),
        many(results),
        udp(results),
        starts,
        crowds,
        pools,
        tcp,
        round_trips(results),
        amounts(results),
        spread(results),
        target_table(results),
    ]
}

pub(crate) fn for_terminal(results: &Results) -> String {
    let tables: Vec<String> = tables(results).iter().map(Table::text).collect();
    format!("\n{}\n\n{}", facts(&results.facts).join("\n"), tables.join("\n"))
}

pub(crate) fn markdown(results: &Results) -> String {
    let facts: Vec<String> =
        facts(&results.facts).iter().map(|fact| format!("- {fact}\n")).collect();
    let tables: Vec<String> = tables(results).iter().map(Table::markdown).collect();
    let notes: Vec<String> = NOTES.iter().map(|note| format!("- {note}\n")).collect();
    format!(
        "# Benchmark\n\nWritten by `{}`. Times are in milliseconds.\n\n\
         ![podwire and the Go plugins](benchmark.svg)\n\n\
         ## Machine\n\n{}\n{}\n## Method\n\n{}",
        results.facts.command,
        facts.concat(),
        tables.join("\n"),
        notes.concat(),
    )
}

const NOTES: [&str; 14] = [
    "All programs run in one private network and mount namespace. They run in turn, and the order changes \
     each round, so that all see the same noise. Programs are on one disk and in its cache; configurations \
     and address files are on one tmpfs.",
    "A call lasts from the start of the process (vfork, as in a runtime) until it is reaped. Namespaces exist \
     before the call, and every bridge has one port that is up, as on a busy node. Between two calls the \
     bench waits until every process of the previous call has ended.",
    "podwire's DEL returns when the interface is no longer visible; a background child waits for the kernel's \
     grace periods. \"Until the kernel is done\" and \"until done\" include that child. The bench checks for \
     it twice per millisecond.",
    "The floor is a static program, built like podwire-cni. It reads its input, writes one address file, \
     creates the same veth pair, address and default route, and prints an answer of the same length. The \
     loop makes the same kernel changes in a process that is already running.",
    "host-local: the reserved addresses are files in the format of the Go plugin. Each directory has seen \
     one call before, in which podwire has built its index.",
    "Parallel calls: time from the first start to the last end, median of the rounds.",
    "Full chain: the bench acts as the runtime. It starts the plugins in turn with the previous result for \
     ADD, and in reverse order for DEL, and adds up their times. The container has one port mapping and is \
     shaped in both directions. Ten containers are added one after the other and then removed. podwire's \
     first ADD, after other programs have used the CPU, takes a quarter longer than the following ones. The \
     Go plugins use iptables, their default.",
    "UDP tunnel: flannel's packet format between two namespaces that are connected by a veth pair, with one \
     TCP connection of two seconds at a time. The naive loop sends one packet per system call, as flannel \
     does.",
    "Agents are `podwire agent` as shipped. Their nodes are namespaces that are connected by a veth pair. The \
     start time begins before the first process, and a ping is sent every half millisecond. etcd runs on the \
     other node all the time; the embedded store and etcd write to a disk.",
    "Many peers: the peers are in the embedded store (here in memory) when the agent starts. \"List to \
     kernel\" is reported by the agent: from the leases to the last route, neighbour and forwarding entry. \
     \"Start to kernel\" is measured from outside: from the start of the process to the last route. \"One \
     more peer\" lasts from the write of its lease to its route. No peer answers, so that the agent keeps \
     probing their paths; this is part of its idle CPU usage.",
    "Routed pods: ADD of calico with calico-ipam asks an agent that runs beside it; its store and its journal \
     are in memory, like the address files of ptp with host-local, which runs in turn. Round trips: one UDP \
     packet of 56 bytes and its answer, between two namespaces connected by a veth pair, by podwire's bridge, \
     and by calico.",
    "Blocks of pools: nodes and blocks are Calico's objects in the embedded store. An assignment lasts from \
     the request at the agent's socket to its answer; all other addresses are assigned on the same node.",
    "TCP between nodes: one connection between nodes that are configured by hand and one between nodes with \
     agents, measured in turn for half a second each. Both run at normal priority, like the kernel threads \
     that carry the packets. By hand means: `ip` and `bridge` create the same device, address, neighbour, \
     forwarding entry and route.",
    "Memory of plugins is the resident peak (VmHWM) when the program prints its answer. In the bridge ADD of \
     the Go plugins, host-local is a second process; in podwire it is a function.",
];

fn facts(facts: &Facts) -> Vec<String> {
    vec![
        format!("Linux {}, {} CPUs ({})", facts.kernel, facts.cpus, facts.cpu),
        format!(
            "{} GiB of memory, load {} at the start; {} priority, except for TCP between nodes",
            facts.memory_kib >> 20,
            facts.load,
            if facts.is_real_time { "real-time" } else { "normal" },
        ),
        format!("podwire {}, {}", facts.podwire, facts.rustc),
        format!("Go plugins {} (Debian)", facts.go_plugins),
        format!("{}, `{}`", facts.date, facts.command),
    ]
}

fn calls(results: &Results) -> Table {
    let header = ["call", "Go", "podwire", "Go ÷ podwire", "floor", "podwire ÷ floor"];
    let mut table = Table::new("One call", &header);
    let elsewhere = ["host-local", "portmap", "full chain"];
    let is_elsewhere = |case: &str| elsewhere.iter().any(|word| case.starts_with(word));
    for case in cases(results).into_iter().filter(|case| !is_elsewhere(case)) {
        let at = |who| results.median(case, who);
        let (go, ours, floor) = (at(Who::Go), at(Who::Ours), at(Who::Floor));
        let ratios = [ratio(go, ours), ratio(ours, floor)].map(times);
        let [to_go, to_floor] = ratios;
        table.row([case.to_owned(), ms(go), ms(ours), to_go, ms(floor), to_floor]);
    }
    let (ours, floor) =
        (results.median(BRIDGE_ADD, Who::Ours), results.median(BRIDGE_ADD, Who::Loop));
    let blank = || "–".to_owned();
    let to_floor = times(ratio(ours, floor));
    let title = format!("{BRIDGE_ADD}, kernel changes in a loop");
    table.row([title, blank(), blank(), blank(), ms(floor), to_floor]);
    table
}

fn chain(results: &Results) -> Table {
    let header = ["", "Go", "podwire", "÷", "podwire as one plugin", "÷"];
    let title = "Full chain: bridge, host-local, masquerading, portmap, bandwidth, firewall";
    let mut table = Table::new(title, &header);
    for case in [CHAIN_ADD, CHAIN_DEL] {
        let at = |who| results.median(case, who);
        let (go, ours, whole) = (at(Who::Go), at(Who::Ours), at(Who::Whole));
        let (to_ours, to_whole) = (times(ratio(go, ours)), times(ratio(go, whole)));
        table.row([case.to_owned(), ms(go), ms(ours), to_ours, ms(whole), to_whole]);
    }
    let at = |who| results.bulk(CHAIN_ADD, AT_ONCE, who);
    let rate = |who| at(who).and_then(|bulk| bulk.per_second());
    let shown = |who| match (rate(who), at(who)) {
        (Some(rate), Some(bulk)) => {
            format!("{rate:.0}/s, {} of {} failed", bulk.failures, bulk.count)
        }
        _ => "–".to_owned(),
    };
    let faster = |who| times(ratio(rate(who), rate(Who::Go)));
    table.row([
        format!("ADD, {AT_ONCE} in parallel"),
        shown(Who::Go),
        shown(Who::Ours),
        faster(Who::Ours),
        shown(Who::Whole),
        faster(Who::Whole),
    ]);
    table
}

fn present(results: &Results) -> Table {
    let header = ["existing mappings", "podwire ADD", "podwire DEL"];
    let mut table = Table::new("portmap with existing mappings of other containers", &header);
    for level in LEVELS {
        let at = |verb| ms(results.median(&mappings(verb, level), Who::Ours));
        table.row([grouped(level as u64), at("ADD"), at("DEL")]);
    }
    table
}

fn taken(results: &Results) -> Table {
    let header = ["reserved addresses", "Go ADD", "podwire ADD", "on disk", "÷", "Go DEL"];
    let header = [&header[..], &["podwire DEL", "on disk", "÷"]].concat();
    let mut table = Table::new("host-local with reserved addresses", &header);
    for taken in levels(results) {
        let mut row = vec![grouped(taken as u64)];
        for verb in ["ADD", "DEL"] {
            let at = |who| results.median(&host_local(verb, taken), who);
            let (go, ours) = (at(Who::Go), at(Who::Ours));
            row.extend([ms(go), ms(ours), ms(at(Who::OursOnDisk)), times(ratio(go, ours))]);
        }
        table.row(row);
    }
    table
}

/// Measured numbers of reserved addresses.
pub(crate) fn levels(results: &Results) -> Vec<usize> {
    let all = [0, 1_000, 10_000, 50_000];
    let is_measured =
        |taken: &usize| results.median(&host_local("ADD", *taken), Who::Ours).is_some();
    all.into_iter().filter(is_measured).collect()
}

fn many(results: &Results) -> Table {
    let header =
        ["calls", "in parallel", "Go s", "podwire s", "until done s", "Go /s", "podwire /s"];
    let header = [&header[..], &["÷", "failures"]].concat();
    let mut table = Table::new("Parallel calls", &header);
    let number = |number: Option<f64>, digits: usize| {
        number.map_or("–".to_owned(), |number| format!("{number:.digits$}"))
    };
    for verb in ["ADD", "DEL"] {
        for parallel in PARALLEL {
            let at = |who| results.bulk(verb, parallel, who);
            let (Some(go), Some(ours)) = (at(Who::Go), at(Who::Ours)) else { continue };
            table.row([
                format!("{} {verb}", go.count),
                parallel.to_string(),
                number(go.seconds(), 2),
                number(ours.seconds(), 2),
                number(ours.settled_seconds(), 2),
                number(go.per_second(), 0),
                number(ours.per_second(), 0),
                times(ratio(go.seconds(), ours.seconds())),
                format!("{} / {}", go.failures, ours.failures),
            ]);
        }
    }
    table
}

fn udp(results: &Results) -> Table {
    let header = ["", "min", "median", "max", "÷ naive loop"];
    let mut table = Table::new("TCP over a UDP tunnel, Gbit/s", &header);
    let naive = results.udp(Who::Naive).map(|[_, median, _]| median);
    for who in [Who::Naive, Who::Ours] {
        let Some(of @ [_, median, _]) = results.udp(who) else { continue };
        let [least, middle, most] = of.map(|gbit| format!("{gbit:.2}"));
        let to_naive = times(ratio(Some(median), naive));
        table.row([who.name().to_owned(), least, middle, most, to_naive]);
    }
    table
}

fn round_trips(results: &Results) -> Table {
    let title = "Round trips between two pods on one node, µs";
    let mut table = Table::new(title, &["", "n", "min", "median", "p95"]);
    for trips in &results.round_trips {
        let Some(of) = summary(&trips.micros) else { continue };
        let [min, median, p95] = [of.min, of.median, of.p95].map(|micros| format!("{micros:.1}"));
        table.row([trips.what.clone(), of.n.to_string(), min, median, p95]);
    }
    table
}

fn amounts(results: &Results) -> Table {
    let mut table = Table::new("Size and memory, KiB", &["", "Go", "podwire", "÷", "floor"]);
    let all = results.sizes.iter().chain(&results.memory);
    for what in unique(all.clone().map(|amount| amount.what.as_str())) {
        let at = |who| {
            let found = all.clone().find(|amount| amount.what == what && amount.who == who);
            found.map(|amount| amount.bytes as f64 / 1024.0)
        };
        let kib = |amount: Option<f64>| amount.map_or("–".to_owned(), |kib| format!("{kib:.0}"));
        let (go, ours) = (at(Who::Go), at(Who::Ours));
        table.row([
            what.to_owned(),
            kib(go),
            kib(ours),
            times(ratio(go, ours)),
            kib(at(Who::Floor)),
        ]);
    }
    table
}

fn spread(results: &Results) -> Table {
    let mut table = Table::new("All times", &["call", "program", "n", "min", "median", "p95"]);
    for case in cases(results) {
        for who in [Who::Go, Who::Ours, Who::Whole, Who::OursOnDisk, Who::Floor, Who::Loop] {
            let Some(of) = results.summary(case, who) else { continue };
            let times = [of.min, of.median, of.p95].map(|micros| ms(Some(micros)));
            let [min, median, p95] = times;
            table.row([case.to_owned(), who.name().to_owned(), of.n.to_string(), min, median, p95]);
        }
    }
    table
}

fn target_table(results: &Results) -> Table {
    let mut table = Table::new("Targets", &["target", "required", "measured", ""]);
    for target in targets(results) {
        let bound = match target.bound {
            Bound::AtLeast(least) => format!("≥ {least}"),
            Bound::AtMost(most) => format!("≤ {most}"),
        };
        let mark = if target.is_met() { "met" } else { "MISSED" };
        let measured = target.measured.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        table.row([target.what, bound, measured, mark.to_owned()]);
    }
    table
}

fn cases(results: &Results) -> Vec<&str> {
    unique(results.latency.iter().map(|series| series.case.as_str()))
}

/// Without duplicates, in the order of first occurrence.
fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut unique = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique
}

/// Milliseconds with three significant digits.
pub(crate) fn ms(micros: Option<f64>) -> String {
    let Some(ms) = micros.map(|micros| micros / 1000.0) else { return "–".to_owned() };
    match ms {
        ..1.0 => format!("{ms:.3}"),
        ..10.0 => format!("{ms:.2}"),
        ..100.0 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

pub(crate) fn times(ratio: Option<f64>) -> String {
    match ratio {
        None => "–".to_owned(),
        Some(ratio) if ratio < 10.0 => format!("{ratio:.1}×"),
        Some(ratio) => format!("{ratio:.0}×"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_significant_digits() {
        let check = |micros: f64, expected: &str| assert_eq!(ms(Some(micros)), expected);
        check(151.2, "0.151");
        check(1512.0, "1.51");
        check(15_120.0, "15.1");
        check(515_120.0, "515");
        assert_eq!(ms(None), "–");
        assert_eq!([times(Some(1.44)), times(Some(14.4))], ["1.4×", "14×"]);
    }

    #[test]
    fn report_has_a_row_for_each_case_and_target() {
        let mut results = Results::default();
        results.push(BRIDGE_ADD, Who::Go, 9000.0);
        results.push(BRIDGE_ADD, Who::Ours, 900.0);
        results.push(BRIDGE_ADD, Who::Floor, 600.0);
        let text = markdown(&results);
        let row = "| bridge+host-local ADD | 9.00 | 0.900 | 10× | 0.600 | 1.5× |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("≥ 8 | 10.00 | met |"), "{text}");
        assert!(text.contains("≤ 1.5 | – | MISSED |"), "{text}");
    }
}
