// SPDX-License-Identifier: Apache-2.0
//! Runs one test on a node of its own, for container runtimes. In addition to the namespaces of
//! `in_netns` it has its own processes, host name and file systems.
//!
//! A runtime leaves daemons behind. The kernel kills them together with the test's process namespace,
//! whether the test passes, fails or hangs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use crate::in_netns::{Sandbox, in_sandbox, is_root};
use crate::need::test_name;
use crate::wait::wait_some;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Passes the name of the control group to the inner process.
const CGROUP: &str = "PODWIRE_TEST_CGROUP";

/// Mounts an overlay over `/etc` and similar directories, so that writes of the node do not reach the
/// machine. The directories of runtimes, plugins and network configurations are empty. The shell stays
/// as the first process, which inherits orphans and waits for them.
const PREPARE: &str = "
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netns /run/cni /run/lock /run/node/cgroup
mount --rbind /sys/fs/cgroup /run/node/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/node/cgroup /sys/fs/cgroup
umount --lazy --recursive /run/node/cgroup
for dir in /etc /opt /usr/lib /var/lib /var/log; do
    layer=/run/node/layers$dir
    mkdir -p $dir $layer/upper $layer/work
    mount -t overlay -o lowerdir=$dir,upperdir=$layer/upper,workdir=$layer/work overlay $dir
done
for dir in cni containers containerd; do
    mkdir -p /etc/$dir /opt/cni /usr/lib/cni /var/lib/$dir
    mount -t tmpfs -o mode=755 tmpfs /var/lib/$dir
done
for dir in /etc/cni /opt/cni /usr/lib/cni /var/tmp; do
    mount -t tmpfs -o mode=755 tmpfs $dir
done
mount --make-rshared /
hostname node
ip link set lo up
# With `|| exit` the shell does not replace itself by the last command.
\"$@\" || exit $?
";

const NODE: Sandbox = Sandbox {
    unshare: &["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"],
    prepare: PREPARE,
};

/// Runs `body` as [`in_netns`](crate::in_netns()) does, on a node without state of runtimes or plugins.
/// Requires root.
#[track_caller]
pub fn in_node(body: impl FnOnce()) {
    assert!(is_root(), "container runtimes need root");
    let cgroup = Cgroup::of_test();
    in_sandbox(&NODE, &[(CGROUP, &cgroup.0)], body);
}

/// Returns the control group for this node's containers, `/podwire-…`, which is removed after the test.
#[track_caller]
pub fn cgroup_parent() -> String {
    env::var(CGROUP).expect("call cgroup_parent inside testkit::in_node")
}

/// A control group, by its path from the root of every hierarchy.
struct Cgroup(String);

impl Cgroup {
    fn of_test() -> Cgroup {
        let test = test_name().replace("::", "-");
        Cgroup(format!("/podwire-{}-{test}", process::id()))
    }

    /// Returns its directories in the hierarchies of version 1 and in that of version 2.
    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
        let hierarchies = entries.map(|entry| entry.path()).chain([CGROUPS.into()]);
        hierarchies.map(|top| top.join(&self.0[1..])).filter(|dir| dir.is_dir()).collect()
    }
}

impl Drop for Cgroup {
    /// All processes in the group have ended, but the kernel may need a moment to notice. The inner
    /// process drops such a value too; the name there has another process ID, so nothing is removed.
    fn drop(&mut self) {
        for dir in self.directories() {
            // A panic here would hide that of the test.
            let _ = wait_some(Duration::from_secs(30), || remove(&dir));
        }
    }
}

/// Removes a control group. The kernel removes the files together with the directory.
fn remove(dir: &Path) -> Option<()> {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(dir).ok()
}
