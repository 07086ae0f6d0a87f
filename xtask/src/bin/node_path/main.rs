// SPDX-License-Identifier: Apache-2.0
//! Measures `podwire agent` for `cargo xtask bench`, with namespaces as nodes: time until a node is
//! reachable (`start`), cost of many peers (`peers`) and blocks (`blocks`), of assignments (`assign`), TCP
//! throughput between nodes (`tcp`), round trips between namespaces (`rtt`). Prints JSON.

mod agent;
mod etcd;
mod mover;
mod node;
mod peer;
mod peers;
mod pools;
mod process;
mod rtt;
mod start;
mod tcp;
mod wait;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [verb, program, dir, rest @ ..] = args.as_slice() else {
        return Err("node-path is run by `cargo xtask bench` only".into());
    };
    let (program, dir) = (Path::new(program), Path::new(dir));
    let printed = match (*verb, rest) {
        ("start", [store, together]) => {
            let millis = start::measure(program, dir, store, *together == "together")?;
            serde_json::to_string(&millis)?
        }
        ("peers", [count, changes, idle]) => {
            let idle = Duration::from_secs(idle.parse()?);
            let measured = peers::measure(program, dir, count.parse()?, changes.parse()?, idle)?;
            serde_json::to_string(&measured)?
        }
        ("blocks", [count, changes, idle]) => {
            let idle = Duration::from_secs(idle.parse()?);
            let measured = pools::blocks(program, dir, count.parse()?, changes.parse()?, idle)?;
            serde_json::to_string(&measured)?
        }
        ("assign", [taken, calls]) => {
            let measured = pools::assign(program, dir, taken.parse()?, calls.parse()?)?;
            serde_json::to_string(&measured)?
        }
        ("rtt", [from, to, address, count]) => {
            let micros = rtt::measure(Path::new(from), Path::new(to), address, count.parse()?)?;
            serde_json::to_string(&micros)?
        }
        ("tcp", [backend, seconds, turns]) => {
            let time = Duration::from_secs_f64(seconds.parse()?);
            serde_json::to_string(&tcp::measure(program, dir, backend, time, turns.parse()?)?)?
        }
        _ => return Err("expected start, peers, blocks, assign, rtt or tcp".into()),
    };
    println!("{printed}");
    Ok(())
}
