// SPDX-License-Identifier: Apache-2.0
//! Many attachments by several parallel callers, like a starting node.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use super::call::Call;
use super::lab::{Lab, Pods, Subject, place};
use super::latency::in_turn;
use super::plan::Effort;
use super::print_step;
use super::results::{Bulk, Results};

/// Numbers of parallel callers.
pub(crate) const PARALLEL: [usize; 3] = [1, 8, 32];

pub(crate) fn measure(lab: &Lab, effort: &Effort, results: &mut Results) -> Result<()> {
    let pods = lab.make_pods("many-", effort.pods)?;
    for round in 0..effort.rounds {
        for parallel in PARALLEL {
            print_step(&format!("{} attachments, {parallel} at once", effort.pods));
            for subject in in_turn(&lab.subjects(), round) {
                for verb in ["ADD", "DEL"] {
                    let start = Instant::now();
                    let mut made = all_at_once(subject, verb, &pods, effort.pods, parallel);
                    lab.settle()?;
                    made.settled_seconds.push(start.elapsed().as_secs_f64());
                    record(results, made);
                }
            }
        }
    }
    pods.remove()
}

/// Prints the first failure and counts all of them.
fn all_at_once(
    subject: &Subject,
    verb: &str,
    pods: &Pods<'_>,
    count: usize,
    parallel: usize,
) -> Bulk {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = |worker: usize| {
        let answer = place(&format!("answer-{worker}"));
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            if let Err(cause) = Call::bridge(subject, verb, &pods.path(at)).time_into(&answer) {
                let mut failures = failures.lock().expect("no worker panics");
                failures.push(cause);
            }
        }
    };
    let start = Instant::now();
    thread::scope(|scope| {
        for worker in 0..parallel {
            let work = &work;
            scope.spawn(move || work(worker));
        }
    });
    let seconds = vec![start.elapsed().as_secs_f64()];
    let failures = failures.into_inner().expect("no worker panics");
    if let Some(first) = failures.first() {
        eprintln!(
            "{} of {count} {verb}s by {} failed: {first:#}",
            failures.len(),
            subject.who.name()
        );
    }
    let (verb, who, failures) = (verb.to_owned(), subject.who, failures.len());
    Bulk { verb, who, count, parallel, seconds, settled_seconds: Vec::new(), failures }
}

pub(crate) fn record(results: &mut Results, made: Bulk) {
    let same = |bulk: &&mut Bulk| {
        bulk.verb == made.verb && bulk.parallel == made.parallel && bulk.who == made.who
    };
    match results.bulk.iter_mut().find(same) {
        Some(bulk) => {
            bulk.seconds.extend(made.seconds);
            bulk.settled_seconds.extend(made.settled_seconds);
            bulk.failures += made.failures;
        }
        None => results.bulk.push(made),
    }
}
