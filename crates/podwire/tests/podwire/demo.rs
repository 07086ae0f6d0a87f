// SPDX-License-Identifier: Apache-2.0
//! `podwire demo` on a single node, and its clean-up.

use std::path::Path;
use std::time::{Duration, Instant};

use testkit::{Daemon, in_netns, run, try_run, wait_for};

use super::program::{PODWIRE, fails, links, names, ok, ok_json, usage_error};

pub fn assert_nothing_left() {
    assert_eq!(names(Path::new("/run/netns")), [""; 0]);
    assert!(!Path::new("/run/podwire").exists());
    assert_eq!(names(Path::new("/var/lib/cni")), [""; 0]);
    assert_eq!(links(), [""; 0]);
}

#[test]
fn single_node_demo_leaves_nothing() {
    in_netns(|| {
        let printed = ok(&["demo", "--nodes", "1"]);
        for part in [
            "ping      IPv4: all 6 pairs answer",
            "ping      IPv6: all 6 pairs answer",
            "pod1 fetched http://10.77.0.4/ in ",
            "pod1 fetched http://[fd77::4]/ in ",
            "bridge podwire0   10.77.0.1/24   fd77::1/64",
            "pod3  10.77.0.4  fd77::4  podwire-demo-1-pod3  ",
            "removed   everything, in ",
        ] {
            assert!(printed.contains(part), "{part}:\n{printed}");
        }
        assert_nothing_left();
    });
}

#[test]
fn json_has_all_pings_and_pages() {
    in_netns(|| {
        let printed = ok_json(&["demo", "--nodes", "1", "--pods", "4"]);
        assert_eq!(printed["pods"].as_array().unwrap().len(), 4);
        assert_eq!(printed["pings"].as_array().unwrap().len(), 4 * 3 * 2);
        assert_eq!(printed["pages"][1]["page"], "hello from pod4");
        assert_nothing_left();
    });
}

#[test]
fn demo_does_not_change_the_host_network() {
    in_netns(|| {
        let forwarding = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let before = forwarding();
        ok(&["demo", "--keep"]);
        assert_eq!(links(), [""; 0]);
        assert_eq!(forwarding(), before);
        ok(&["demo", "--clean"]);
        assert_nothing_left();
    });
}

#[test]
fn kept_demo_stays_until_cleaned() {
    in_netns(|| {
        let printed = ok(&["demo", "--nodes", "1", "--keep", "--pods", "2"]);
        let command = "ip netns exec podwire-demo-1-pod1 ping -c 3 10.77.0.3";
        assert!(printed.contains(command), "{printed}");
        run("sh", &["-c", command]);
        // Another demo does not touch the kept one.
        let printed = ok(&["demo"]);
        assert!(printed.contains("podwire-demo-2-underlay"), "{printed}");
        assert_eq!(names(Path::new("/run/netns")).len(), 3);
        assert_eq!(ok(&["demo", "--clean"]), "demo 1: 3 namespaces removed\n");
        assert_eq!(ok(&["demo", "--clean"]), "nothing to remove\n");
        assert_nothing_left();
    });
}

#[test]
fn failed_removal_does_not_stop_the_others() {
    in_netns(|| {
        for _ in 0..2 {
            ok(&["demo", "--nodes", "1", "--keep", "--pods", "2"]);
        }
        // A directory cannot be removed like a namespace. Its name sorts first.
        let stuck = "/run/netns/podwire-demo-1-a";
        std::fs::create_dir(stuck).unwrap();
        let why = fails(&["demo", "--clean"]);
        assert!(why.contains("error: remove demo 1\n") && why.contains(stuck), "{why}");
        assert_eq!(names(Path::new("/run/netns")), ["podwire-demo-1-a"]);
        assert_eq!(names(Path::new("/run/podwire/demo")), ["1"], "kept for the next attempt");
        std::fs::remove_dir(stuck).unwrap();
        ok(&["demo", "--clean"]);
        assert_nothing_left();
    });
}

#[test]
fn interrupted_demo_leaves_nothing() {
    in_netns(|| {
        let started = Instant::now();
        ok(&["demo"]);
        let mut whole = started.elapsed();
        let mut interrupted = 0;
        for (moment, signal) in (1..=18).zip(["INT", "TERM", "HUP"].into_iter().cycle()) {
            let after = (whole * moment / 18).as_secs_f64().to_string();
            let started = Instant::now();
            let outcome = try_run("timeout", &["-s", signal, &after, PODWIRE, "demo"]);
            match outcome {
                Err(_) => interrupted += 1,
                // Adapts the duration to the load of the machine.
                Ok(_) => whole = started.elapsed(),
            }
            assert_nothing_left();
        }
        assert!(interrupted > 5, "only {interrupted} of 18 were interrupted");
    });
}

#[test]
fn killed_demo_is_removed_by_the_next() {
    in_netns(|| {
        let named = || names(Path::new("/run/netns"));
        let killed = Daemon::start(PODWIRE, &["demo", "--pods", "15"]);
        wait_for("more than six namespaces", Duration::from_secs(60), || named().len() > 6);
        drop(killed);
        assert!(named().len() > 6);
        ok(&["demo", "--pods", "1"]);
        assert_nothing_left();
    });
}

#[test]
fn two_demos_run_in_parallel() {
    in_netns(|| {
        let both = format!("{PODWIRE} demo & {PODWIRE} demo && wait $!");
        for _ in 0..3 {
            run("sh", &["-c", &both]);
            assert_nothing_left();
        }
    });
}

#[test]
fn closed_pipe_leaves_nothing() {
    in_netns(|| {
        run("sh", &["-c", &format!("{PODWIRE} demo | head -n 1")]);
        // `head` ends first; the demo cleans up shortly after.
        wait_for("removal of /run/podwire", Duration::from_secs(60), || {
            !Path::new("/run/podwire").exists()
        });
        assert_nothing_left();
    });
}

#[test]
fn backend_on_a_single_node_is_refused() {
    in_netns(|| {
        let why = usage_error(&["demo", "--nodes", "1", "--backend", "udp"]);
        assert!(why.contains("--backend is udp: a single node needs no backend"), "{why}");
    });
}
