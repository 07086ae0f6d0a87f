// SPDX-License-Identifier: Apache-2.0
//! Runs one test in its own network and mount namespaces.
//!
//! The tests of one program share a process, but mounts belong to a process. So the test starts its own
//! program again under `unshare`, for this test alone.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Output;

use crate::command::command;
use crate::need::test_name;

/// Set in the process inside the namespaces.
const INSIDE: &str = "PODWIRE_TEST_INSIDE";

/// Printed by the inner process after the body has returned. Without it a name that matches no test would
/// look like success, because the harness reports "0 passed".
const DONE: &str = "testkit: the body in the namespace has returned";

/// A test that hangs fails after this many seconds and shows its output. The longest test takes a fraction
/// of it on a busy machine. `timeout` kills the whole process group, so no program of the test survives.
const DEADLINE: &str = "900";

/// Overrides the deadline, for slow machines such as the emulated one.
const OTHER_DEADLINE: &str = "PODWIRE_TEST_DEADLINE";

/// `/sys` shows the network namespace in which it was mounted, so it is mounted again. An empty `/run`
/// has no namespaces, results or locks of the machine. An unprivileged user cannot create `/var/lib/cni`;
/// then the directory does not exist.
const PREPARE: &str = "
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/cni /run/lock
for dir in /var/lib/cni /etc/cni; do
    test $dir = /etc/cni || mkdir -p $dir || true
    test ! -d $dir || mount -t tmpfs -o mode=755 tmpfs $dir
done
ip link set lo up
exec \"$@\"
";

/// Runs `body` in fresh network and mount namespaces with `lo` up, an empty `/run` (so no
/// named namespaces) and an empty `/var/lib/cni`.
///
/// Call it from the test's own thread. Statements before the call run twice. Do not combine it with
/// `#[should_panic]`.
#[track_caller]
pub fn in_netns(body: impl FnOnce()) {
    in_sandbox(&LAB, &[], body);
}

/// Options of `unshare`, and a shell script that prepares the namespaces and then runs `"$@"`.
pub(crate) struct Sandbox {
    pub unshare: &'static [&'static str],
    pub prepare: &'static str,
}

const LAB: Sandbox = Sandbox { unshare: &["--net", "--mount"], prepare: PREPARE };

/// Runs `body` in a sandboxed process with these environment variables.
#[track_caller]
pub(crate) fn in_sandbox(sandbox: &Sandbox, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside() {
        body();
        println!("{DONE}");
        return;
    }
    let name = test_name();
    let output = run_again(&name, sandbox, variables);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The test harness shows this if the test fails, or with --nocapture.
    print!("{stdout}");
    eprint!("{stderr}");
    let deadline = deadline();
    let hung = output.status.code() == Some(124) || output.status.code() == Some(137);
    assert!(!hung, "{name} did not end within {deadline} s; its output is above");
    assert!(
        output.status.success(),
        "{name} failed in its namespace ({}); its output is above",
        output.status
    );
    assert!(stdout.contains(DONE), "{name} was not found by its own program; its output is above");
}

/// Returns whether this process runs inside the namespaces.
pub fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs this program again in the namespaces, for one test.
fn run_again(name: &str, sandbox: &Sandbox, variables: &[(&str, &str)]) -> Output {
    let program = env::current_exe().expect("the path of the test program");
    let mut child = command("timeout");
    child.args(["-k", "5", &deadline(), "unshare"]).args(sandbox.unshare);
    if !is_root() {
        child.arg("--map-root-user");
    }
    child.args(["sh", "-ec", sandbox.prepare, "sh"]).arg(program);
    child.args(["--exact", name, "--nocapture"]);
    child.env(INSIDE, "1").envs(variables.iter().copied());
    match child.output() {
        Ok(output) => output,
        Err(cause) => panic!("cannot start `timeout` (run `cargo xtask setup`): {cause}"),
    }
}

fn deadline() -> String {
    env::var(OTHER_DEADLINE).unwrap_or_else(|_| DEADLINE.to_owned())
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}
