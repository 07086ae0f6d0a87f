// SPDX-License-Identifier: Apache-2.0
//! The agent is killed at system calls while it assigns and releases.

use std::collections::BTreeMap;
use std::fs;

use testkit::{Daemon, EtcdServer, Wire, in_netns};

use super::{Host, RoutedPod, calico, etcd, pod_allocations, wait_until};

/// System calls whose order matters: between others, nothing happens outside of the agent.
const CALLS: [&str; 12] = [
    "accept4",
    "recvfrom",
    "read",
    "openat",
    "ftruncate",
    "write",
    "writev",
    "rename",
    "unlink",
    "sendto",
    "shutdown",
    "close",
];

/// Most kills per verb and call: the connection to etcd alone makes dozens of calls.
const MOST: usize = 7;

/// Kills that must have happened.
const ENOUGH: usize = 20;

/// Traces all threads of the agent with these options.
fn trace(host: &Host, options: &[&str]) -> Daemon {
    let process = host.process().to_string();
    let words = [&["-f", "-qq", "-p", &process][..], options].concat();
    let tracer = testkit::Ns::here().start("strace", &words);
    let tasks = format!("/proc/{process}/task");
    let is_traced = |task: &str| {
        let status = fs::read_to_string(format!("{tasks}/{task}/status")).unwrap_or_default();
        status.contains(&format!("TracerPid:\t{}\n", tracer.id()))
    };
    wait_until("the trace of all threads", || {
        let all: Vec<String> = super::names(tasks.as_ref());
        !all.is_empty() && all.iter().all(|task| is_traced(task))
    });
    tracer
}

/// Returns how often one thread of the agent makes each of [`CALLS`] during a verb.
fn counts(host: &Host, pod: &RoutedPod<'_>, verb: &str) -> BTreeMap<String, usize> {
    let log = "/run/lab/trace";
    let tracer = trace(host, &["-o", log, "-e", &format!("trace={}", CALLS.join(","))]);
    pod.call(verb).unwrap();
    drop(tracer);
    let mut by_thread: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(call)) = (words.next(), words.next()) else { continue };
        let Some((name, _)) = call.split_once('(') else { continue };
        if CALLS.contains(&name) {
            *by_thread.entry((thread.to_owned(), name.to_owned())).or_default() += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((_, name), count) in by_thread {
        let most: &mut usize = most.entry(name).or_default();
        *most = count.max(*most);
    }
    most
}

/// Runs a verb while the agent is killed at a system call. Returns whether it was killed.
fn kill_at(host: &Host, pod: &RoutedPod<'_>, verb: &str, name: &str, count: usize) -> bool {
    let inject = format!("inject={name}:signal=SIGKILL:when={count}");
    let tracer = trace(host, &["-o", "/dev/null", "-e", &inject]);
    // The plugin may fail or succeed.
    let _ = pod.call(verb);
    drop(tracer);
    !host.is_ready()
}

/// Returns the journal and the handles in the store of a pod.
fn check_single(host: &Host, server: &EtcdServer, pod: &RoutedPod<'_>, when: &str) {
    let file = format!("net.{}:eth0", pod.container);
    assert_eq!(host.journal(), [file], "{when}");
    let handle = format!("net.{}", pod.container);
    wait_until(&format!("one address in the store: {when}"), || {
        let found = pod_allocations(server);
        found == [(pod.addresses()[0], handle.clone(), "node-1".to_owned())]
    });
}

#[test]
fn agent_killed_while_it_assigns_loses_no_address() {
    in_netns(|| {
        testkit::require!(Program("strace"));
        let wire = Wire::new();
        let server = etcd();
        let endpoint = server.endpoint();
        let flags = ["--etcd-endpoints", &endpoint, "--pool-cidr", "10.6.0.0/24"];
        let flags = [&flags[..], &["--pool-encapsulation", "none"]].concat();
        let host = Host::start(wire.node(1, true, false), &flags);
        let mut pod = RoutedPod::new(&host, "one", &calico(true, false));
        let (mut killed, mut runs) = (0, 0);
        for verb in ["ADD", "DEL"] {
            pod.call("DEL").unwrap();
            if verb == "DEL" {
                pod.add();
            }
            let counts = counts(&host, &pod, verb);
            println!("{verb}: {counts:?}");
            assert!(counts.contains_key("rename") || counts.contains_key("unlink"), "{counts:?}");
            let all = counts
                .iter()
                .flat_map(|(name, most)| (1..=MOST.min(*most)).map(move |n| (name, n)));
            for (at, (name, count)) in all.enumerate() {
                pod.call("DEL").unwrap();
                if verb == "DEL" {
                    pod.add();
                }
                runs += 1;
                if kill_at(&host, &pod, verb, name, count) {
                    killed += 1;
                    host.kill();
                    host.run();
                    host.wait_ready();
                }
                let when = format!("killed at {verb} {name} {count}");
                // Runtimes repeat ADD after a DEL. An ADD without one finds the address of the first.
                if verb == "ADD" && at % 2 == 0 && host.host_ends().is_empty() {
                    pod.add();
                    check_single(&host, &server, &pod, &when);
                }
                pod.del();
                assert_eq!(host.journal(), [""; 0], "{when}");
                wait_until(&format!("nothing in the store: {when}"), || {
                    pod_allocations(&server).is_empty()
                });
            }
        }
        println!("{killed} of {runs} runs were killed");
        assert!(killed >= ENOUGH, "{killed} of {runs} were killed");
    });
}
