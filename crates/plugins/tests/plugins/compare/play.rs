// SPDX-License-Identifier: Apache-2.0
//! Runs a case with one set of plugins and records the observed state after each step, with random
//! names replaced.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::case::{Case, Step};
use crate::call::{Answer, Call};
use crate::snapshot::Snapshot;
use crate::world::{Plugins, World};

/// Observed state after a step.
#[derive(Debug)]
pub struct Moment {
    pub step: Step,
    /// True if the plugin succeeded.
    pub success: bool,
    /// Changes made by this step, in the kernel and on disk.
    pub changes: Vec<String>,
    pub message: String,
    pub facts: BTreeMap<String, String>,
}

/// Runs all steps in a new world.
pub fn play(case: &Case, plugins: &Plugins) -> Vec<Moment> {
    let pods = case.steps.iter().map(|step| step.container()).max().unwrap_or(1);
    let world = World::new(plugins, pods);
    prepare_all(&world, &case.before);
    let mut results = vec![Value::Null; pods + 1];
    let observe = || if case.gives_addresses_only() { world.disk() } else { world.snapshot() };
    let mut last = observe();
    let mut moments = Vec::new();
    for (at, step) in case.steps.iter().copied().enumerate() {
        let Some(answer) = perform(case, &world, step, &mut results) else {
            prepare(&world, step);
            last = observe();
            continue;
        };
        // CHECK and a repeated DEL change nothing, so no new snapshot is needed.
        let is_unchanged = matches!(step, Step::Check(_)) || (at > 0 && case.steps[at - 1] == step);
        let now = if is_unchanged { last.clone() } else { observe() };
        let changes = last.without_bookkeeping().changes_to(&now.clone().without_bookkeeping());
        let mut facts = if is_unchanged { Snapshot::default() } else { now.clone() };
        describe(&answer, &mut facts);
        last = now;
        let message =
            answer.values.last().map(|value| format!("{} {}", value["msg"], value["details"]));
        moments.push(Moment {
            step,
            success: answer.success,
            changes,
            message: message.unwrap_or_default() + &answer.stderr,
            facts: without_random_values(case, &facts.0, &results),
        });
    }
    moments
}

impl Step {
    fn container(self) -> usize {
        match self {
            Step::Add(n) | Step::Check(n) | Step::Del(n) => n,
            _ => 1,
        }
    }
}

/// Runs consecutive `ip` lines for the same namespace in one process; see `snapshot::observe`.
fn prepare_all(world: &World, steps: &[Step]) {
    const BATCH: &str = "/run/before";
    // Lines that start with an option cannot be part of a batch.
    let batched = |step: &Step| match *step {
        Step::Host(line) if !line.starts_with('-') => Some((&world.host, line)),
        Step::Pod(line) if !line.starts_with('-') => Some((world.pod(1), line)),
        _ => None,
    };
    let place = |step: &Step| batched(step).map(|(place, _)| place.name());
    for group in steps.chunk_by(|one, next| place(one).is_some() && place(one) == place(next)) {
        let lines: Vec<&str> = group.iter().filter_map(batched).map(|(_, line)| line).collect();
        match group.first().and_then(batched) {
            Some((place, _)) => {
                fs::write(BATCH, lines.join("\n")).expect("write a file in /run");
                place.ip(&["-batch", BATCH]);
            }
            None => group.iter().for_each(|step| prepare(world, *step)),
        }
    }
    steps.iter().for_each(|step| wait_for_local_route(world, *step));
}

/// Waits for the local route of an IPv6 address without duplicate address detection. The kernel adds it
/// from a work queue, so on a busy machine it would appear in a later step.
fn wait_for_local_route(world: &World, step: Step) {
    let (place, line) = match step {
        Step::Host(line) => (&world.host, line),
        Step::Pod(line) => (world.pod(1), line),
        _ => return,
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["addr", "add", address, .., "nodad"] = words[..] else { return };
    let address = address.split('/').next().unwrap_or(address);
    testkit::wait_for("the local route of an address", Duration::from_secs(30), || {
        !place.ip(&["-6", "route", "show", "table", "local", address]).trim().is_empty()
    });
}

fn prepare(world: &World, step: Step) {
    let words = |line: &'static str| line.split_whitespace().collect::<Vec<_>>();
    match step {
        Step::Host(line) => drop(world.host.ip(&words(line))),
        Step::Pod(line) => drop(world.pod(1).ip(&words(line))),
        Step::File(path, content) => {
            let directory = std::path::Path::new(path).parent().expect("paths are absolute");
            fs::create_dir_all(directory).expect("create a directory in /run");
            fs::write(path, content).expect("write a file in /run");
        }
        other => panic!("{other:?} is not a preparation step"),
    }
}

fn perform(case: &Case, world: &World, step: Step, results: &mut [Value]) -> Option<Answer> {
    let number = step.container();
    let call = world.call(&case.config, number);
    let call = Call {
        args: case.args.to_owned(),
        ifname: case.ifname.to_owned(),
        netns: case.netns.map_or(call.netns.clone(), str::to_owned),
        ..call
    };
    match step {
        Step::Add(_) => {
            let answer = call.add();
            if answer.success {
                results[number] = answer.result();
            }
            Some(answer)
        }
        Step::Check(_) => Some(call.check(&results[number])),
        Step::Del(_) => Some(call.del(&results[number])),
        _ => None,
    }
}

/// Adds the answer to the facts. Message texts are not compared.
fn describe(answer: &Answer, facts: &mut Snapshot) {
    let mut fact = |name: &str, value: String| drop(facts.0.insert(name.to_owned(), value));
    fact("answer/exit", if answer.success { "success" } else { "failure" }.to_owned());
    fact("answer/values", answer.values.len().to_string());
    for value in &answer.values {
        if answer.success {
            facts.add("answer/result", "", value);
        } else {
            facts.add("answer/error/code", "", &value["code"]);
            facts.add("answer/error/cniVersion", "", &value["cniVersion"]);
        }
    }
}

/// Replaces random names and MAC addresses with placeholders, except those that the case sets
/// itself.
fn without_random_values(
    case: &Case,
    facts: &BTreeMap<String, String>,
    results: &[Value],
) -> BTreeMap<String, String> {
    let asked = format!("{} {} {:?}", case.config, case.args, case.before).to_lowercase();
    let plain = |text: &str| hide_macs(&hide_veths(text, results), &asked);
    facts.iter().map(|(name, value)| (plain(name), plain(value))).collect()
}

/// Replaces `veth` plus digits (eight with Go, eleven with podwire) with `<veth1>` for the first
/// container and so on.
fn hide_veths(text: &str, results: &[Value]) -> String {
    let mut parts = text.split("veth");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let length = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        if !matches!(length, 8 | 11) {
            out.push_str("veth");
            out.push_str(part);
            continue;
        }
        let (digits, rest) = part.split_at(length);
        let name = format!("\"veth{digits}\"");
        let owner = results.iter().position(|result| result.to_string().contains(&name));
        out.push_str(&format!("<veth{}>", owner.unwrap_or(0)));
        out.push_str(rest);
    }
    out
}

fn hide_macs(text: &str, asked: &str) -> String {
    const LENGTH: usize = "00:00:00:00:00:00".len();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match rest.get(..LENGTH).filter(|word| is_mac(word)) {
            Some(mac) => {
                let is_fixed = ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"].contains(&mac);
                out.push_str(if is_fixed || asked.contains(mac) { mac } else { "<mac>" });
                rest = &rest[LENGTH..];
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    out
}

fn is_mac(word: &str) -> bool {
    word.bytes().enumerate().all(|(at, byte)| match at % 3 {
        2 => byte == b':',
        _ => byte.is_ascii_hexdigit(),
    })
}
