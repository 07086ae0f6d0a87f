// SPDX-License-Identifier: Apache-2.0
//! The plugins are killed at every system call of ADD and DEL.

use std::collections::HashMap;
use std::fs;

use testkit::{Wire, in_netns};

use super::{Host, RoutedPod, STORE, calico};

/// A system call: its name, and its number among the calls of that name, from 1.
type Syscall = (String, usize);

/// Lists the system calls of a verb, starting when the plugin reads its input.
fn syscalls(pod: &RoutedPod<'_>, verb: &str) -> Vec<Syscall> {
    let log = "/run/lab/strace.log";
    pod.call_under(&["strace", "-qq", "-o", log], verb).unwrap();
    let text = fs::read_to_string(log).unwrap();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut has_read_input = false;
    let mut syscalls = Vec::new();
    for line in text.lines() {
        let Some((name, _)) = line.split_once('(') else { continue };
        let count = counts.entry(name).or_default();
        *count += 1;
        has_read_input |= line.starts_with("read(0,");
        if has_read_input && name != "exit_group" {
            syscalls.push((name.to_owned(), *count));
        }
    }
    syscalls
}

/// Runs a verb and kills the plugin at the start of this system call. Returns whether it was killed.
fn kill_at(pod: &RoutedPod<'_>, verb: &str, (name, count): &Syscall) -> bool {
    let inject = format!("inject={name}:signal=SIGKILL:when={count}");
    pod.call_under(&["strace", "-qq", "-o", "/dev/null", "-e", &inject], verb).is_err()
}

#[track_caller]
fn assert_clean(pod: &RoutedPod<'_>, when: &str) {
    let host = pod.host;
    assert_eq!(host.host_ends(), [""; 0], "{when}: interface left on the host");
    let routes = host.node.sh("ip route show proto boot; ip route | grep cali || true");
    assert!(!routes.contains("cali"), "{when}: {routes}");
    let links = pod.ns.ip(&["-o", "link", "show", "type", "veth"]);
    assert_eq!(links, "", "{when}: interface left in the pod");
    assert_eq!(host.journal(), [""; 0], "{when}: address left");
}

#[test]
fn routed_pod_with_killed_plugins_leaves_nothing() {
    in_netns(|| {
        testkit::require!(Program("strace"), Program("curl"));
        let wire = Wire::new();
        let flags = ["--store-file", STORE, "--pool-cidr", "10.6.0.0/16"];
        let flags = [&flags[..], &["--pool-encapsulation", "none"]].concat();
        let host = Host::start(wire.node(1, true, false), &flags);
        let pod = RoutedPod::new(&host, "one", &calico(true, false));
        for verb in ["ADD", "DEL"] {
            let runs = (0..3).map(|_| {
                pod.call("DEL").unwrap();
                pod.call(if verb == "ADD" { "DEL" } else { "ADD" }).unwrap();
                syscalls(&pod, verb)
            });
            // The number of waits for the kernel differs between runs.
            let all = runs.min_by_key(Vec::len).unwrap();
            assert!(all.len() > 20, "{} system calls", all.len());
            pod.del();
            let mut killed = 0;
            for syscall in &all {
                if verb == "DEL" {
                    pod.call("ADD").unwrap();
                }
                killed += usize::from(kill_at(&pod, verb, syscall));
                pod.del();
                assert_clean(&pod, &format!("{verb} killed at {syscall:?}"));
            }
            println!("{verb}: {killed} of {} runs were killed", all.len());
            assert!(killed * 2 >= all.len(), "{killed} of {} were killed", all.len());
        }
        // The agent answers, and has not run out of addresses.
        let pod = host.pod("two", &calico(true, false));
        pod.call("CHECK").unwrap();
    });
}
