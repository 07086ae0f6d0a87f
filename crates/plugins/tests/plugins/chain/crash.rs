// SPDX-License-Identifier: Apache-2.0
//! `kill -9` of whichever plugin of the chain runs at a random moment.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, full, left};
use crate::call::{Answer, Call};
use crate::world::{Plugins, World};

/// Kills of each verb that must hit a plugin that is under way.
const HITS: [(&str, usize); 3] = [("ADD", 50), ("DEL", 35), ("GC", 15)];
/// Longest for all of it on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs one plugin until it ends, or kills it when the time is over.
fn run_until(call: &Call, verb: &str, end: Instant) -> Option<Answer> {
    let mut child = call.start_under(&[], verb, call.config.to_string().as_bytes());
    while child.try_wait().expect("a child can be waited for").is_none() {
        if Instant::now() >= end {
            child.kill().expect("a child not waited for can be killed");
            child.wait().expect("a child can be waited for");
            return None;
        }
        std::hint::spin_loop();
    }
    Some(Answer::of(&child.wait_with_output().expect("its output can be read")))
}

/// Runs a verb of the chain; whether the time was over before its end.
fn is_cut_off(chain: &Chain, verb: &str, result: &Value, time: Duration) -> bool {
    let end = Instant::now() + time;
    let mut calls = chain.calls(1);
    if verb == "DEL" {
        calls.reverse();
    }
    let mut result = result.clone();
    for call in calls {
        let mut call = call.with_prev_result(&result);
        if verb == "GC" {
            call.config["cni.dev/valid-attachments"] = json!([]);
        }
        match run_until(&call, verb, end) {
            None => return true,
            Some(answer) if verb == "ADD" => result = answer.result(),
            Some(answer) => answer.ok(),
        }
    }
    false
}

/// xorshift64: numbers that only need to differ, from a seed that a person can repeat.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn any_plugin_of_the_chain_may_die_at_any_moment() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let chain = Chain::new(&world, &ours, full(&json!({})));
        chain.del(1, &chain.add(1));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let mut state = u64::from(now.subsec_nanos()) | 1;
        println!("seed {state}");
        let deadline = Instant::now() + PATIENCE;
        for (verb, hits) in HITS {
            let mut hit = 0;
            let mut usual = Duration::from_millis(20);
            while hit < hits {
                assert!(Instant::now() < deadline, "{hit} of {hits} kills of {verb}");
                let result = if verb == "ADD" { Value::Null } else { chain.add(1) };
                let micros =
                    next(&mut state) % u64::try_from(usual.as_micros()).unwrap_or(u64::MAX);
                let time = Duration::from_micros(micros);
                let start = Instant::now();
                if is_cut_off(&chain, verb, &result, time) {
                    hit += 1;
                } else {
                    // So long does it take; kills come before that.
                    usual = start.elapsed();
                }
                chain.del_blindly(1);
                chain.gc(&[]);
                let found = left(&world);
                assert_eq!(found, Vec::<String>::new(), "{verb} killed after {time:?}");
            }
        }
        let result = chain.add(1);
        chain.check(1, &result);
    });
}
