// SPDX-License-Identifier: Apache-2.0
//! Tests of testkit itself, on which the kernel tests of other crates rely.

use std::fs;
use std::net::IpAddr;
use std::panic;
use std::time::Duration;

use testkit::{
    Need, Ns, can_ping, cgroup_parent, in_netns, in_node, is_inside, json, missing, ping, run,
    wait_for,
};

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

fn panics(body: impl FnOnce() + panic::UnwindSafe) -> String {
    let cause = panic::catch_unwind(body).expect_err("a panic");
    match cause.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("a panic message")).to_owned(),
    }
}

#[test]
fn namespace_starts_empty() {
    in_netns(|| {
        let links = json("ip", &["-j", "link"]);
        let names: Vec<_> = links.as_array().unwrap().iter().map(|l| &l["ifname"]).collect();
        assert_eq!(names, ["lo"]);
        assert!(links[0]["flags"].to_string().contains("\"UP\""), "{links}");
        assert!(fs::exists("/sys/class/net/lo").unwrap());
        assert_eq!(fs::read_dir("/sys/class/net").unwrap().count(), 1);
        assert_eq!(run("ip", &["netns", "list"]), "");
        for dir in ["/run/netns", "/run/cni", "/var/lib/cni"] {
            // An unprivileged user cannot create /var/lib/cni.
            assert_eq!(fs::read_dir(dir).map_or(0, Iterator::count), 0, "{dir}");
        }
    });
}

#[test]
fn mounts_stay_inside() {
    let mark = "/run/netns/testkit-mark";
    in_netns(|| fs::write(mark, "").unwrap());
    assert!(is_inside() || !fs::exists(mark).unwrap());
}

#[test]
fn node_is_empty_and_writes_stay_inside() {
    let files = ["/etc", "/opt", "/usr/lib", "/var/lib", "/var/log"]
        .map(|dir| format!("{dir}/testkit-mark"));
    in_node(|| {
        for dir in ["/etc/cni", "/opt/cni", "/usr/lib/cni", "/var/lib/cni", "/var/lib/containers"] {
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "{dir}");
        }
        assert!(fs::exists("/etc/passwd").unwrap(), "files of the machine are visible");
        assert_eq!(fs::read_dir("/sys/class/net").unwrap().count(), 1);
        assert!(fs::read_dir("/sys/fs/cgroup").unwrap().count() > 0);
        for file in &files {
            fs::write(file, "").unwrap();
        }
    });
    for file in &files {
        assert!(is_inside() || !fs::exists(file).unwrap(), "{file}");
    }
}

/// A runtime leaves orphans in control groups when a test fails. A control group with processes cannot be
/// removed.
#[test]
fn orphans_and_control_groups_are_removed() {
    let failed = panic::catch_unwind(|| in_node(leave_an_orphan)).is_err();
    assert!(failed, "the inner panic must fail the outer test");
    // The inner process ends here too and must report the failure itself.
    assert!(!is_inside(), "failed inside, as intended");
    let of_ours = format!("podwire-{}-orphans", std::process::id());
    // Other tests create and remove groups at the same time. `find` must ignore that.
    let below = ["/sys/fs/cgroup", "-ignore_readdir_race", "-maxdepth", "2"];
    let left = run("find", &[&below[..], &["-name", &format!("{of_ours}*")]].concat());
    assert_eq!(left, "");
}

fn leave_an_orphan() {
    let script = format!(
        "top=/sys/fs/cgroup; test ! -d $top/pids || top=$top/pids; group=$top{}/inner; mkdir -p $group
        setsid sleep 1000 >/dev/null 2>&1 & echo $! > $group/cgroup.procs; cat $group/cgroup.procs",
        cgroup_parent()
    );
    assert_ne!(run("sh", &["-c", &script]), "", "the orphan is in the group");
    panic!("as intended");
}

/// Several tests create namespaces of the same name.
#[test]
fn labs_are_isolated() {
    in_netns(|| {
        let pod = Ns::new("pod");
        assert!(pod.path().exists());
        assert_eq!(pod.ip_json(&["link"])[0]["ifname"], "lo");
        drop(pod);
        assert_eq!(run("ip", &["netns", "list"]), "");
    });
}

#[test]
fn connected_namespaces_exchange_packets() {
    in_netns(|| {
        let pod = Ns::new("pod");
        let node = Ns::here();
        node.connect("pod0", &pod, "eth0");
        node.ip(&["addr", "add", "10.1.0.1/24", "dev", "pod0"]);
        node.ip(&["addr", "add", "fd00::1/64", "dev", "pod0"]);
        pod.ip(&["addr", "add", "10.1.0.2/24", "dev", "eth0"]);
        pod.ip(&["addr", "add", "fd00::2/64", "dev", "eth0"]);
        for (from, to) in [(&node, "10.1.0.2"), (&pod, "10.1.0.1"), (&node, "fd00::2")] {
            ping(from, addr(to));
        }
        assert!(!can_ping(&pod, addr("10.1.0.9")));
        assert!(!can_ping(&pod, addr("10.9.0.1")));
    });
}

#[test]
fn program_started_in_a_pod_runs_in_it() {
    in_netns(|| {
        let pod = Ns::new("pod");
        let daemon = pod.start("sleep", &["1000"]);
        let file = format!("/proc/{}/ns/net", daemon.id());
        let of_pod = pod.exec("readlink", &["/proc/self/ns/net"]);
        wait_for("the program's namespace to be the pod's", Duration::from_secs(10), || {
            fs::read_link(&file).is_ok_and(|link| link.to_str() == Some(of_pod.trim()))
        });
    });
}

#[test]
fn missing_link_types_are_detected() {
    in_netns(|| {
        assert_eq!(missing(Need::Link("veth")), None);
        assert_eq!(missing(Need::Link("bridge")), None);
        let why = missing(Need::Link("nonsense")).unwrap();
        assert!(why.contains("nonsense"), "{why}");
        assert_eq!(json("ip", &["-j", "link"]).as_array().unwrap().len(), 1, "probes are removed");
    });
}

#[test]
fn unmet_need_fails_with_the_reason() {
    let why = panics(|| testkit::require!(Program("sh"), Program("no-such-program")));
    assert!(why.contains("cannot run here") && why.contains("no-such-program"), "{why}");
}

#[test]
fn lab_outside_in_netns_panics() {
    if !is_inside() {
        assert!(panics(|| drop(Ns::new("stray"))).contains("in_netns"));
    }
}

/// The harness reports "0 passed" for a name that matches no test, and succeeds.
#[test]
fn unknown_test_name_is_a_failure() {
    let other = std::thread::Builder::new().name("no_such_test".to_owned());
    let outcome = other.spawn(|| in_netns(|| ())).unwrap().join();
    let why = *outcome.unwrap_err().downcast::<String>().unwrap();
    assert!(why.contains("not found by its own program"), "{why}");
}

#[test]
fn inner_failure_fails_the_outer_test() {
    let failed = panic::catch_unwind(|| in_netns(run_fails)).is_err();
    assert!(failed, "the inner panic must fail the outer test");
    // The inner process ends here too and must report the failure itself.
    assert!(!is_inside(), "failed inside, as intended");
}

fn run_fails() {
    run("sh", &["-c", "echo from the inside >&2; exit 7"]);
}

#[test]
fn wait_timeout_names_the_condition() {
    let why = panics(|| wait_for("the moon", Duration::from_millis(10), || false));
    assert!(why.contains("the moon"), "{why}");
}

/// The test starts itself again with its own list, because the real one is for tests of the product.
#[test]
fn tests_not_run_are_listed() {
    let list = testkit::target_dir().join("not-run-of-testkit.txt");
    if std::env::var_os("PODWIRE_NOT_RUN").is_some_and(|given| given == list) {
        testkit::not_run_unless!(File("/no/such/file"));
        panic!("the line above returns");
    }
    // An interrupted run may have left its list.
    let _ = fs::remove_file(&list);
    let program = std::env::current_exe().unwrap();
    let setting = format!("PODWIRE_NOT_RUN={}", list.display());
    let name = testkit::test_name();
    run("env", &[&setting, program.to_str().unwrap(), "--exact", &name]);
    let text = fs::read_to_string(&list).unwrap();
    fs::remove_file(&list).unwrap();
    assert_eq!(text, format!("{name}\tfile /no/such/file does not exist\n"));
}
