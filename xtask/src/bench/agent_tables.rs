// SPDX-License-Identifier: Apache-2.0
//! Tables of the node agent's measurements.

use super::agent::{ASSIGNED, Agent, Agents, BACKENDS, BLOCKS, PEERS};
use super::report::{ms, times};
use super::results::{Who, grouped};
use super::stats::summary;
use super::table::Table;
use super::targets::ratio;

pub(crate) fn tables(agents: &Agents) -> [Table; 4] {
    [starts(agents), crowds(agents), pools(agents), tcp(agents)]
}

fn pools(agents: &Agents) -> Table {
    let header = ["", "flannel's peers", "blocks of pools"];
    let mut table = Table::new("An agent with 1 000 peers or blocks, and assignments", &header);
    let millis = |millis: Option<f64>| ms(millis.map(|millis| millis * 1e3));
    let listed = |agent: &Agent| agent.listed;
    let started = |agent: &Agent| agent.started;
    table.row([
        "list to kernel".to_owned(),
        millis(agents.crowd(BLOCKS, listed)),
        millis(agents.block(listed)),
    ]);
    table.row([
        "start to kernel".to_owned(),
        millis(agents.crowd(BLOCKS, started)),
        millis(agents.block(started)),
    ]);
    table.row([
        "one more".to_owned(),
        millis(agents.change(BLOCKS)),
        millis(agents.block_change()),
    ]);
    let memory =
        |kib: Option<f64>| kib.map_or("–".to_owned(), |kib| format!("{:.1}", kib * 1024.0 / 1e6));
    table.row([
        "memory, MB".to_owned(),
        memory(agents.crowd(BLOCKS, |agent| agent.memory as f64)),
        memory(agents.block(|agent| agent.memory as f64)),
    ]);
    for (is_full, count) in [(false, 0), (true, ASSIGNED)] {
        let what = format!("one assignment, {} assigned", grouped(count as u64));
        table.row([what, "–".to_owned(), ms(agents.assignment(is_full))]);
    }
    table
}

fn starts(agents: &Agents) -> Table {
    let title = "Agents without any state, until the first ping from node to node";
    let mut table = Table::new(title, &["", "n", "min", "median", "p95"]);
    for start in &agents.starts {
        let Some(of) = summary(&start.millis) else { continue };
        let how = if start.together { "two start together" } else { "one joins another" };
        let [min, median, p95] = [of.min, of.median, of.p95].map(|millis| ms(Some(millis * 1e3)));
        table.row([format!("{how}, {}", start.store), of.n.to_string(), min, median, p95]);
    }
    table
}

fn crowds(agents: &Agents) -> Table {
    let header = ["peers", "list to kernel", "start to kernel", "one more peer", "in the kernel"];
    let header = [&header[..], &["memory, MB", "idle, % of a CPU"]].concat();
    let mut table = Table::new("An agent with many peers", &header);
    for peers in PEERS {
        let millis = |millis: Option<f64>| ms(millis.map(|millis| millis * 1e3));
        let number = |number: Option<f64>, digits: usize| {
            number.map_or("–".to_owned(), |number| format!("{number:.digits$}"))
        };
        table.row([
            grouped(peers as u64),
            millis(agents.crowd(peers, |agent| agent.listed)),
            millis(agents.crowd(peers, |agent| agent.started)),
            millis(agents.change(peers)),
            millis(agents.bare(peers)),
            number(agents.memory(peers), 1),
            number(agents.crowd(peers, |agent| agent.idle), 3),
        ]);
    }
    table
}

fn tcp(agents: &Agents) -> Table {
    let header = ["", "least", "median", "most", "÷ by hand"];
    let mut table = Table::new("TCP between two nodes, Gbit/s", &header);
    for backend in BACKENDS {
        let by_hand = agents.tcp(backend, Who::ByHand).map(|[_, median, _]| median);
        for who in [Who::ByHand, Who::Ours] {
            let Some(of @ [_, median, _]) = agents.tcp(backend, who) else { continue };
            let [least, middle, most] = of.map(|gbit| format!("{gbit:.2}"));
            let to_hand =
                ratio(Some(median), by_hand).map_or_else(|| times(None), |r| format!("{r:.3}×"));
            table.row([format!("{backend}, {}", who.name()), least, middle, most, to_hand]);
        }
    }
    table
}
