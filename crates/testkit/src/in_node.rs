// SPDX-License-Identifier: Apache-2.0
//! One test on a node of its own, for container runtimes: beyond the namespaces of `in_netns` it has
//! its own processes, host name and file systems.
//!
//! A runtime leaves daemons behind that outlive the test. Here they end with the test's own process
//! namespace, whether it passes, fails or hangs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use crate::in_netns::{Place, in_place, is_root};
use crate::need::test_name;
use crate::wait::wait_some;

const CGROUPS: &str = "/sys/fs/cgroup";

/// Tells the inner process its control group.
const CGROUP: &str = "PODWIRE_TEST_CGROUP";

/// `/etc` and its like show what the machine has and take what the node writes in a layer above.
/// What runtimes keep, and where they look for plugins and networks, is empty. The shell stays as
/// the first process, which inherits orphans and waits for them.
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
# Not the last word of the script, which a shell may become.
\"$@\" || exit $?
";

const NODE: Place = Place {
    unshare: &["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"],
    prepare: PREPARE,
};

/// Runs `body` as [`in_netns`](crate::in_netns()) does, on a node that has nothing of what a runtime
/// or a plugin keeps. Needs root.
#[track_caller]
pub fn in_node(body: impl FnOnce()) {
    assert!(is_root(), "container runtimes need root");
    let cgroup = Cgroup::of_test();
    in_place(&NODE, &[(CGROUP, &cgroup.0)], body);
}

/// The control group that this node's containers are to be put below, `/podwire-…`. It is removed
/// after the test.
#[track_caller]
pub fn cgroup_parent() -> String {
    env::var(CGROUP).expect("a node has a control group: call this inside testkit::in_node")
}

/// By name, from the root of every hierarchy.
struct Cgroup(String);

impl Cgroup {
    fn of_test() -> Cgroup {
        let test = test_name().replace("::", "-");
        Cgroup(format!("/podwire-{}-{test}", process::id()))
    }

    /// Where it is in each hierarchy of version 1, and in the one of version 2.
    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
        let hierarchies = entries.map(|entry| entry.path()).chain([CGROUPS.into()]);
        hierarchies.map(|top| top.join(&self.0[1..])).filter(|dir| dir.is_dir()).collect()
    }
}

impl Drop for Cgroup {
    /// Nobody is in there any more, though the kernel may need a moment to see that. In the inner
    /// process, where this is dropped too, the name is another: it has its own process id.
    fn drop(&mut self) {
        for dir in self.directories() {
            // A panic here would hide the test's own.
            let _ = wait_some(Duration::from_secs(30), || remove(&dir));
        }
    }
}

/// The files of a control group go with its directory.
fn remove(dir: &Path) -> Option<()> {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(dir).ok()
}
