// SPDX-License-Identifier: Apache-2.0
//! `podwire demo`: what it leaves, and its single node.

use std::path::Path;
use std::time::{Duration, Instant};

use testkit::{Daemon, in_netns, run, try_run, wait_for};

use super::program::{PODWIRE, fails, links, misused, names, ok, ok_json};

pub fn nothing_is_left() {
    assert_eq!(names(Path::new("/run/netns")), [""; 0]);
    assert!(!Path::new("/run/podwire").exists());
    assert_eq!(names(Path::new("/var/lib/cni")), [""; 0]);
    assert_eq!(links(), [""; 0]);
}

#[test]
fn single_node_runs_and_leaves_nothing() {
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
        nothing_is_left();
    });
}

#[test]
fn json_tells_all() {
    in_netns(|| {
        let told = ok_json(&["demo", "--nodes", "1", "--pods", "4"]);
        assert_eq!(told["pods"].as_array().unwrap().len(), 4);
        assert_eq!(told["pings"].as_array().unwrap().len(), 4 * 3 * 2);
        assert_eq!(told["pages"][1]["page"], "hello from pod4");
        nothing_is_left();
    });
}

#[test]
fn host_network_is_not_touched() {
    in_netns(|| {
        let forwarding = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        let before = forwarding();
        ok(&["demo", "--keep"]);
        assert_eq!(links(), [""; 0]);
        assert_eq!(forwarding(), before);
        ok(&["demo", "--clean"]);
        nothing_is_left();
    });
}

#[test]
fn kept_stays_until_cleaned() {
    in_netns(|| {
        let printed = ok(&["demo", "--nodes", "1", "--keep", "--pods", "2"]);
        let command = "ip netns exec podwire-demo-1-pod1 ping -c 3 10.77.0.3";
        assert!(printed.contains(command), "{printed}");
        run("sh", &["-c", command]);
        // Another demo leaves the kept one alone.
        let printed = ok(&["demo"]);
        assert!(printed.contains("podwire-demo-2-underlay"), "{printed}");
        assert_eq!(names(Path::new("/run/netns")).len(), 3);
        assert_eq!(ok(&["demo", "--clean"]), "demo 1: removed with 3 namespaces\n");
        assert_eq!(ok(&["demo", "--clean"]), "nothing to remove\n");
        nothing_is_left();
    });
}

#[test]
fn what_cannot_be_removed_does_not_keep_the_rest() {
    in_netns(|| {
        for _ in 0..2 {
            ok(&["demo", "--nodes", "1", "--keep", "--pods", "2"]);
        }
        // A directory is no namespace, and its name comes first.
        let stuck = "/run/netns/podwire-demo-1-a";
        std::fs::create_dir(stuck).unwrap();
        let why = fails(&["demo", "--clean"]);
        assert!(why.contains("error: remove demo 1\n") && why.contains(stuck), "{why}");
        assert_eq!(names(Path::new("/run/netns")), ["podwire-demo-1-a"]);
        assert_eq!(names(Path::new("/run/podwire/demo")), ["1"], "to be found the next time");
        std::fs::remove_dir(stuck).unwrap();
        ok(&["demo", "--clean"]);
        nothing_is_left();
    });
}

#[test]
fn interrupted_at_any_moment_leaves_nothing() {
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
                // So long does it take, as busy as the machine is now.
                Ok(_) => whole = started.elapsed(),
            }
            nothing_is_left();
        }
        assert!(interrupted > 5, "only {interrupted} of 18 were interrupted");
    });
}

#[test]
fn killed_demo_is_cleaned_by_the_next() {
    in_netns(|| {
        let named = || names(Path::new("/run/netns"));
        let killed = Daemon::start(PODWIRE, &["demo", "--pods", "15"]);
        wait_for("some pods", Duration::from_secs(60), || named().len() > 6);
        drop(killed);
        assert!(named().len() > 6);
        ok(&["demo", "--pods", "1"]);
        nothing_is_left();
    });
}

#[test]
fn two_at_once_do_not_collide() {
    in_netns(|| {
        let both = format!("{PODWIRE} demo & {PODWIRE} demo && wait $!");
        for _ in 0..3 {
            run("sh", &["-c", &both]);
            nothing_is_left();
        }
    });
}

#[test]
fn reader_that_leaves_is_no_trouble() {
    in_netns(|| {
        run("sh", &["-c", &format!("{PODWIRE} demo | head -n 1")]);
        // `head` ends first; the demo cleans up a moment later.
        wait_for("an end", Duration::from_secs(60), || !Path::new("/run/podwire").exists());
        nothing_is_left();
    });
}

#[test]
fn backend_without_another_node_is_refused() {
    in_netns(|| {
        let why = misused(&["demo", "--nodes", "1", "--backend", "udp"]);
        assert!(why.contains("--backend is udp; with 1 node"), "{why}");
    });
}
