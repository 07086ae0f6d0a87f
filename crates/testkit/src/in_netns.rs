// SPDX-License-Identifier: Apache-2.0
//! One test in a network and mount namespace of its own.
//!
//! The tests of one program share a process, and namespaces belong to threads and mounts to
//! processes; so the test starts its own program again, for itself alone, under `unshare`.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Output;

use crate::command::command;
use crate::need::test_name;

/// Set in the process inside the namespaces.
const INSIDE: &str = "PODWIRE_TEST_INSIDE";

/// Printed by the inner process when the body has returned. Without it a name that matches
/// no test would be "0 passed", and look like success.
const DONE: &str = "testkit: the body in the namespace has returned";

/// A test that hangs fails after this many seconds, and shows what it had said: several times what the
/// longest takes on a busy machine. `timeout` kills the whole process group, so that no program of the
/// test outlives it.
const DEADLINE: &str = "900";

/// Where tests are slower, as in the emulated machine, the number is here.
const OTHER_DEADLINE: &str = "PODWIRE_TEST_DEADLINE";

/// `/sys` shows the network namespace it was mounted in, so it needs a new mount. An empty
/// `/run` holds no namespaces, results or locks of the machine. A plain user cannot make
/// `/var/lib/cni` and then has none, which is just as clean.
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
/// Call it from the test's own thread, as the whole of the test: what stands before it runs
/// twice. Do not combine it with `#[should_panic]`.
#[track_caller]
pub fn in_netns(body: impl FnOnce()) {
    in_place(&LAB, &[], body);
}

/// Which namespaces, and the shell script that furnishes them and then runs `"$@"`.
pub(crate) struct Place {
    pub unshare: &'static [&'static str],
    pub prepare: &'static str,
}

const LAB: Place = Place { unshare: &["--net", "--mount"], prepare: PREPARE };

/// Runs `body` in a process of its own in `place`, with these variables.
#[track_caller]
pub(crate) fn in_place(place: &Place, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside() {
        body();
        println!("{DONE}");
        return;
    }
    let name = test_name();
    let output = again(&name, place, variables);
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
    assert!(stdout.contains(DONE), "{name} was not found by its own program; output is above");
}

/// Whether this process is the inner one, with namespaces of its own.
pub fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// This program again, in namespaces, for the one test.
fn again(name: &str, place: &Place, variables: &[(&str, &str)]) -> Output {
    let program = env::current_exe().expect("the test's own program has a path");
    let mut child = command("timeout");
    child.args(["-k", "5", &deadline(), "unshare"]).args(place.unshare);
    if !is_root() {
        child.arg("--map-root-user");
    }
    child.args(["sh", "-ec", place.prepare, "sh"]).arg(program);
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
