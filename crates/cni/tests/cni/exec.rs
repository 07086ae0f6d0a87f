// SPDX-License-Identifier: Apache-2.0
//! Plugins as processes: pipes, deadlines, what they leave behind, and what their failure means.

use std::path::Path;
use std::time::{Duration, Instant};

use cni::exec::{Variables, run};
use cni::{Code, Error};

use crate::lab::{Lab, eventually};

const ADD: Variables = Variables {
    command: "ADD",
    container_id: "c1",
    netns: "/run/netns/c1",
    ifname: "eth0",
    args: "A=b",
    path: "/opt/cni/bin",
    depth: 0,
};

fn run_plainly(program: &Path, stdin: &[u8]) -> Result<Vec<u8>, Error> {
    run(program, &ADD, stdin, Some(Duration::from_secs(60)))
}

#[test]
fn a_megabyte_goes_in_and_out() {
    let lab = Lab::new();
    let program = lab.program("echo", "#!/bin/sh\nexec cat\n");
    let text = "x".repeat(1 << 20);
    assert_eq!(run_plainly(&program, text.as_bytes()).unwrap(), text.as_bytes());
}

#[test]
fn a_plugin_may_leave_its_input_unread() {
    let lab = Lab::new();
    let program = lab.program("deaf", "#!/bin/sh\necho done\n");
    assert_eq!(run_plainly(&program, &vec![b'x'; 1 << 20]).unwrap(), b"done\n");
}

#[test]
fn a_plugin_may_close_its_outputs_and_still_read() {
    let lab = Lab::new();
    let copy = lab.path("copy");
    let script = format!("#!/bin/sh\nexec >&- 2>&-\ncat > {}\n", copy.display());
    let text = vec![b'x'; 1 << 20];
    run_plainly(&lab.program("mute", &script), &text).unwrap();
    assert_eq!(std::fs::read(copy).unwrap().len(), text.len());
}

#[test]
fn what_stays_in_the_background_is_not_waited_for() {
    let lab = Lab::new();
    let pid = lab.path("pid");
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $! > {}\necho done\n", pid.display());
    let started = Instant::now();
    assert_eq!(run_plainly(&lab.program("daemon", &script), b"").unwrap(), b"done\n");
    assert!(started.elapsed() < Duration::from_secs(50));
    let pid = lab.read("pid").trim().parse().unwrap();
    assert!(is_running(pid), "it was not ended either");
    kill(pid);
}

#[test]
fn the_deadline_ends_the_whole_group() {
    let lab = Lab::new();
    let pid = lab.path("pid");
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $! > {}\nwait\n", pid.display());
    let program = lab.program("slow", &script);
    let timeout = Duration::from_secs(5);
    let error = run(&program, &ADD, b"{}", Some(timeout)).unwrap_err();
    assert_eq!(error.code, Code::TRY_LATER);
    assert_eq!(error.msg, format!("plugin {} did not finish ADD in 5 s", program.display()));
    let child = lab.read("pid").trim().parse().unwrap();
    eventually("the child of the plugin is gone", || !is_running(child));
}

#[test]
fn only_a_plugin_with_a_deadline_has_a_group_of_its_own() {
    let lab = Lab::new();
    let program = lab.program("group", "#!/bin/sh\necho $$; cut -d' ' -f5 /proc/$$/stat\n");
    let pid_and_group = |timeout: Option<Duration>| {
        let printed = String::from_utf8(run(&program, &ADD, b"", timeout).unwrap()).unwrap();
        let numbers: Vec<i32> = printed.lines().map(|line| line.parse().unwrap()).collect();
        (numbers[0], numbers[1])
    };
    let (pid, group) = pid_and_group(Some(Duration::from_secs(60)));
    assert_eq!(group, pid);
    let ours = rustix::process::getpgrp().as_raw_nonzero().get();
    assert_eq!(pid_and_group(None).1, ours, "as a delegate, which ends with its plugin's group");
}

#[test]
fn a_plugin_without_a_deadline_is_ended_alone() {
    let lab = Lab::new();
    let pid = lab.path("pid");
    // What it printed too much is what ends it; our own group lives on to tell.
    let script = format!("#!/bin/sh\necho $$ > {}\nexec yes\n", pid.display());
    run(&lab.program("mad", &script), &ADD, b"", None).unwrap_err();
    let pid = lab.read("pid").trim().parse().unwrap();
    eventually("the plugin is gone", || !is_running(pid));
}

#[test]
fn output_without_end_is_cut_off() {
    let lab = Lab::new();
    let error = run_plainly(&lab.program("mad", "#!/bin/sh\nexec yes\n"), b"").unwrap_err();
    assert!(error.msg.contains("it printed more than"), "{error}");
}

#[test]
fn a_file_being_written_is_waited_for() {
    let lab = Lab::new();
    let program = lab.program("busy", "#!/bin/sh\necho done\n");
    let writer = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    let error = run(&program, &ADD, b"", Some(Duration::from_millis(150))).unwrap_err();
    assert!(error.msg.contains("Text file busy"), "{error}");
    let closer = std::thread::spawn(move || drop(writer));
    assert_eq!(run_plainly(&program, b"").unwrap(), b"done\n");
    closer.join().unwrap();
}

#[test]
fn the_environment_is_ours_with_the_specifications_variables() {
    let lab = Lab::new();
    let program = lab.program("env", "#!/bin/sh\nenv | grep -e ^CNI_ -e ^PATH= | sort\n");
    let printed = String::from_utf8(run_plainly(&program, b"").unwrap()).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    let expected = [
        "CNI_ARGS=A=b",
        "CNI_COMMAND=ADD",
        "CNI_CONTAINERID=c1",
        "CNI_IFNAME=eth0",
        "CNI_NETNS=/run/netns/c1",
        "CNI_PATH=/opt/cni/bin",
    ];
    assert_eq!(lines[..6], expected);
    assert!(lines[6].starts_with("PATH="));
}

#[test]
fn failure_is_explained() {
    let lab = Lab::new();
    let check = |name: &str, script: &str, code: u32, msg: &str, details: &str| {
        let program = lab.program(name, &format!("#!/bin/sh\n{script}\n"));
        let error = run_plainly(&program, b"{}").unwrap_err();
        let msg = msg.replace("FILE", &program.display().to_string());
        assert_eq!((error.code.0, &*error.msg), (code, &*msg));
        assert_eq!(error.details, details);
    };
    let error = r#"{"code": 11, "msg": "later", "details": "full"}"#;
    check("told", &format!("echo '{error}'; exit 1"), 11, "later", "full");
    // Go's skeleton, where the namespace turns out to be its own after the work.
    let both = format!("echo '{{\"cniVersion\": \"1.0.0\"}}{error}'; exit 1");
    check("both", &both, 11, "later", "full");
    let msg = "plugin FILE failed: exit status: 3";
    check("silent", "exit 3", 999, msg, "it printed nothing");
    check("stderr", "echo no >&2; exit 3", 999, msg, "it said: no");
    check("junk", "echo '{oops'; exit 3", 999, msg, "it printed what is no CNI error: {oops");
    check(
        "result",
        "echo '{\"ips\": []}'; exit 3",
        999,
        msg,
        "it printed what is no CNI error: {\"ips\": []}",
    );
    let killed = "plugin FILE failed: signal: 9 (SIGKILL)";
    check("killed", "kill -9 $$", 999, killed, "it printed nothing");

    let missing = run_plainly(&lab.path("bin/nowhere"), b"").unwrap_err();
    assert!(missing.msg.starts_with("start plugin "), "{missing}");
}

fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name in parentheses stands the state; a zombie is gone for all that matters.
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
