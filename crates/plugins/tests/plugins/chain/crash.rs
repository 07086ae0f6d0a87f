// SPDX-License-Identifier: Apache-2.0
//! Kills the plugin of the chain that is running at a random moment.

use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use testkit::in_netns;

use super::{Chain, full, left};
use crate::call::{Answer, Call};
use crate::world::{Plugins, World};

/// Number of kills per verb that must hit a running plugin.
const HITS: [(&str, usize); 3] = [("ADD", 50), ("DEL", 35), ("GC", 15)];
/// Time limit for the whole test on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs one plugin until it exits, or kills it at the instant `end`.
fn run_until(call: &Call, verb: &str, end: Instant) -> Option<Answer> {
    let mut child = call.start_under(&[], verb, call.config.to_string().as_bytes());
    while child.try_wait().expect("wait for the child").is_none() {
        if Instant::now() >= end {
            child.kill().expect("kill the child");
            child.wait().expect("wait for the child");
            return None;
        }
        std::hint::spin_loop();
    }
    Some(Answer::of(&child.wait_with_output().expect("read the plugin's output")))
}

/// Runs a verb for the whole chain. Returns true if the time ran out and a plugin was killed.
fn is_killed(chain: &Chain, verb: &str, result: &Value, time: Duration) -> bool {
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

/// xorshift64: pseudo-random numbers from a seed that the test prints, so that a run can be
/// repeated.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn chain_killed_at_random_moments_is_cleaned_up() {
    in_netns(|| {
        let ours = Plugins::ours();
        let world = World::new(&ours, 1);
        let chain = Chain::new(&world, &ours, full(&json!({})));
        chain.del(1, &chain.add(1));
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("clock is after 1970");
        let mut state = u64::from(now.subsec_nanos()) | 1;
        println!("seed {state}");
        let deadline = Instant::now() + TIMEOUT;
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
                if is_killed(&chain, verb, &result, time) {
                    hit += 1;
                } else {
                    // Time of an undisturbed run; later kills happen earlier than that.
                    usual = start.elapsed();
                }
                chain.del_without_netns_and_result(1);
                chain.gc(&[]);
                let found = left(&world);
                assert_eq!(found, Vec::<String>::new(), "{verb} killed after {time:?}");
            }
        }
        let result = chain.add(1);
        chain.check(1, &result);
    });
}
