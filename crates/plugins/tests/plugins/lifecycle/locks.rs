// SPDX-License-Identifier: Apache-2.0
//! Locks of namespaces: an unprivileged process cannot block a plugin, and a plugin that waits too
//! long reports that.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Ns, in_netns, require, wait_for};

use crate::conf::bridge;
use crate::rules::elements;
use crate::world::{Plugins, World};

const UNPRIVILEGED: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Returns the lock file of a namespace, created if missing.
pub fn lock_file(purpose: &str, ns: &Ns) -> File {
    fs::create_dir_all("/run/podwire/locks").expect("create a directory in /run");
    let inode = fs::metadata(ns.path()).expect("stat the namespace").ino();
    let path = format!("/run/podwire/locks/{purpose}-{}", inode % 256);
    File::create(path).expect("create a file in /run")
}

#[test]
fn unprivileged_lock_holder_does_not_block_plugins() {
    in_netns(|| {
        require!(Program("setpriv"), Program("flock"));
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"isGateway": true, "ipMasq": true, "macspoofchk": true}));
        // A process with the test's output open must not outlive the test.
        let waiting = ["setpriv", "--pdeathsig=KILL", "sleep", "1000"];
        let holding = [&["flock", "-o", "/proc/self/ns/net"], &waiting[..]].concat();
        let _holder = world.host.start("setpriv", &[&UNPRIVILEGED[..], &holding[..]].concat());
        let try_lock = ["-n", "/proc/self/ns/net", "true"];
        wait_for("the unprivileged process to hold the lock", Duration::from_secs(30), || {
            world.host.try_exec("flock", &try_lock).is_err()
        });
        let started = Instant::now();
        world.call(&config, 1).add().ok();
        world.call(&config, 1).add().fails_with(999, "");
        world.call(&config, 1).del(&Value::Null).ok();
        world.call(&config, 1).gc(&[]).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
        // The lock timeout is 20 s.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(
            world.host.try_exec("flock", &try_lock).is_err(),
            "the unprivileged process lost the lock"
        );
    });
}

#[test]
fn lock_files_are_accessible_to_root_only() {
    in_netns(|| {
        require!(Program("setpriv"));
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"isGateway": true, "ipMasq": true})), 1);
        call.add().ok();
        call.del(&Value::Null).ok();
        let mode = |path: &str| {
            let meta = fs::metadata(path).expect("stat the file");
            (meta.permissions().mode() & 0o777, meta.uid())
        };
        assert_eq!(mode("/run/podwire/locks"), (0o700, 0));
        let files = fs::read_dir("/run/podwire/locks").expect("read the lock directory");
        let files: Vec<String> =
            files.map(|file| file.expect("a file").path().display().to_string()).collect();
        assert_eq!(files.len(), 2, "expected locks of the attachment and of the rules: {files:?}");
        files.iter().for_each(|file| assert_eq!(mode(file), (0o600, 0)));
    });
}

#[test]
fn lock_timeout_returns_retryable_error() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"isGateway": true, "ipMasq": true})), 1);
        call.add().ok();
        let held = lock_file("rules", &world.host);
        held.lock().expect("lock the file");
        let words = format!("process {} (", std::process::id());
        let answer = call.del(&Value::Null);
        answer.fails_with(11, &words);
        answer.fails_with(11, ") has held it for 20 s");
        drop(held);
        call.del(&Value::Null).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}
