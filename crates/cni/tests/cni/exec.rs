// SPDX-License-Identifier: Apache-2.0
//! Plugin processes: pipes, deadlines, background processes, and errors.

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

fn run_add(program: &Path, stdin: &[u8]) -> Result<Vec<u8>, Error> {
    run(program, &ADD, stdin, Some(Duration::from_secs(60)))
}

#[test]
fn large_input_and_output_are_passed() {
    let lab = Lab::new();
    let program = lab.program("echo", "#!/bin/sh\nexec cat\n");
    let text = "x".repeat(1 << 20);
    assert_eq!(run_add(&program, text.as_bytes()).unwrap(), text.as_bytes());
}

#[test]
fn plugin_may_ignore_its_input() {
    let lab = Lab::new();
    let program = lab.program("ignoring", "#!/bin/sh\necho done\n");
    assert_eq!(run_add(&program, &vec![b'x'; 1 << 20]).unwrap(), b"done\n");
}

#[test]
fn plugin_may_close_its_output_and_read_on() {
    let lab = Lab::new();
    let copy = lab.path("copy");
    let script = format!("#!/bin/sh\nexec >&- 2>&-\ncat > {}\n", copy.display());
    let text = vec![b'x'; 1 << 20];
    run_add(&lab.program("silent", &script), &text).unwrap();
    assert_eq!(std::fs::read(copy).unwrap().len(), text.len());
}

#[test]
fn background_process_is_neither_awaited_nor_killed() {
    let lab = Lab::new();
    let pid = lab.path("pid");
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $! > {}\necho done\n", pid.display());
    let started = Instant::now();
    assert_eq!(run_add(&lab.program("daemon", &script), b"").unwrap(), b"done\n");
    assert!(started.elapsed() < Duration::from_secs(50));
    let pid = lab.read("pid").trim().parse().unwrap();
    assert!(is_running(pid), "the background process was killed");
    kill(pid);
}

#[test]
fn deadline_kills_the_process_group() {
    let lab = Lab::new();
    let pid = lab.path("pid");
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $! > {}\nwait\n", pid.display());
    let program = lab.program("slow", &script);
    let timeout = Duration::from_secs(5);
    let error = run(&program, &ADD, b"{}", Some(timeout)).unwrap_err();
    assert_eq!(error.code, Code::TRY_LATER);
    assert_eq!(error.msg, format!("plugin {} did not finish ADD in 5 s", program.display()));
    let child = lab.read("pid").trim().parse().unwrap();
    eventually("the child of the plugin still runs", || !is_running(child));
}

#[test]
fn plugin_has_its_own_group_only_with_a_deadline() {
    let lab = Lab::new();
    let program = lab.program("group", "#!/bin/sh\necho $$; cut -d' ' -f5 /proc/$$/stat\n");
    let pid_and_group = |timeout: Option<Duration>| {
        let printed = String::from_utf8(run(&program, &ADD, b"", timeout).unwrap()).unwrap();
        let numbers: Vec<i32> = printed.lines().map(|line| line.parse().unwrap()).collect();
        (numbers[0], numbers[1])
    };
    let (pid, group) = pid_and_group(Some(Duration::from_secs(60)));
    assert_eq!(group, pid);
    let own = rustix::process::getpgrp().as_raw_nonzero().get();
    assert_eq!(pid_and_group(None).1, own, "a delegate shares the group of its caller");
}

#[test]
fn plugin_without_a_deadline_is_killed_alone() {
    let lab = Lab::new();
    let pid = lab.path("pid");
    // Its endless output ends the plugin. This test shares its group, so the test passes only if it survives.
    let script = format!("#!/bin/sh\necho $$ > {}\nexec yes\n", pid.display());
    run(&lab.program("endless", &script), &ADD, b"", None).unwrap_err();
    let pid = lab.read("pid").trim().parse().unwrap();
    eventually("the plugin still runs", || !is_running(pid));
}

#[test]
fn endless_output_is_an_error() {
    let lab = Lab::new();
    let error = run_add(&lab.program("endless", "#!/bin/sh\nexec yes\n"), b"").unwrap_err();
    assert!(error.msg.contains("it printed more than"), "{error}");
}

#[test]
fn program_being_written_is_awaited() {
    let lab = Lab::new();
    let program = lab.program("busy", "#!/bin/sh\necho done\n");
    let writer = std::fs::OpenOptions::new().append(true).open(&program).unwrap();
    let error = run(&program, &ADD, b"", Some(Duration::from_millis(150))).unwrap_err();
    assert!(error.msg.contains("Text file busy"), "{error}");
    let closer = std::thread::spawn(move || drop(writer));
    assert_eq!(run_add(&program, b"").unwrap(), b"done\n");
    closer.join().unwrap();
}

#[test]
fn environment_is_inherited_and_extended() {
    let lab = Lab::new();
    let program = lab.program("env", "#!/bin/sh\nenv | grep -e ^CNI_ -e ^PATH= | sort\n");
    let printed = String::from_utf8(run_add(&program, b"").unwrap()).unwrap();
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
fn failure_of_a_plugin_is_explained() {
    let lab = Lab::new();
    let check = |name: &str, script: &str, code: u32, msg: &str, details: &str| {
        let program = lab.program(name, &format!("#!/bin/sh\n{script}\n"));
        let error = run_add(&program, b"{}").unwrap_err();
        let msg = msg.replace("FILE", &program.display().to_string());
        assert_eq!((error.code.0, &*error.msg), (code, &*msg));
        assert_eq!(error.details, details);
    };
    let error = r#"{"code": 11, "msg": "later", "details": "full"}"#;
    check("error", &format!("echo '{error}'; exit 1"), 11, "later", "full");
    // Go's skeleton prints both if it notices after the ADD that the namespace is its own.
    let both = format!("echo '{{\"cniVersion\": \"1.0.0\"}}{error}'; exit 1");
    check("both", &both, 11, "later", "full");
    let msg = "plugin FILE failed: exit status: 3";
    check("silent", "exit 3", 999, msg, "it printed nothing");
    check("stderr", "echo no >&2; exit 3", 999, msg, "standard error: no");
    check("junk", "echo '{oops'; exit 3", 999, msg, "its output is not a CNI error: {oops");
    check(
        "result",
        "echo '{\"ips\": []}'; exit 3",
        999,
        msg,
        "its output is not a CNI error: {\"ips\": []}",
    );
    let killed = "plugin FILE failed: signal: 9 (SIGKILL)";
    check("killed", "kill -9 $$", 999, killed, "it printed nothing");

    let missing = run_add(&lab.path("bin/nowhere"), b"").unwrap_err();
    assert!(missing.msg.starts_with("start plugin "), "{missing}");
}

fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name in parentheses. A zombie counts as not running.
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
