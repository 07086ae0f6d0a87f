// SPDX-License-Identifier: Apache-2.0
//! Locks of namespaces: nobody without rights can hold up a container, and whoever waits too long is told.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Ns, in_netns, require, wait_for};

use crate::conf::bridge;
use crate::rules::elements;
use crate::world::{Plugins, World};

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// The file that is locked for a namespace, made where it is missing.
pub fn lock_file(purpose: &str, ns: &Ns) -> File {
    fs::create_dir_all("/run/podwire/locks").expect("a directory below /run");
    let inode = fs::metadata(ns.path()).expect("the namespace's file").ino();
    let path = format!("/run/podwire/locks/{purpose}-{}", inode % 256);
    File::create(path).expect("a file below /run")
}

#[test]
fn a_stranger_holds_up_nobody() {
    in_netns(|| {
        require!(Program("setpriv"), Program("flock"));
        let world = World::new(&Plugins::ours(), 1);
        let config = bridge(&json!({"isGateway": true, "ipMasq": true, "macspoofchk": true}));
        // What holds the test's output must not outlive it.
        let waiting = ["setpriv", "--pdeathsig=KILL", "sleep", "1000"];
        let holding = [&["flock", "-o", "/proc/self/ns/net"], &waiting[..]].concat();
        let _stranger = world.host.start("setpriv", &[&NOBODY[..], &holding[..]].concat());
        let try_lock = ["-n", "/proc/self/ns/net", "true"];
        wait_for("the stranger to hold it", Duration::from_secs(30), || {
            world.host.try_exec("flock", &try_lock).is_err()
        });
        let started = Instant::now();
        world.call(&config, 1).add().ok();
        world.call(&config, 1).add().fails_with(999, "");
        world.call(&config, 1).del(&Value::Null).ok();
        world.call(&config, 1).gc(&[]).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
        // Whoever waits for a lock does so for 20 s.
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(world.host.try_exec("flock", &try_lock).is_err(), "the stranger has it still");
    });
}

#[test]
fn the_files_are_for_root_alone() {
    in_netns(|| {
        require!(Program("setpriv"));
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"isGateway": true, "ipMasq": true})), 1);
        call.add().ok();
        call.del(&Value::Null).ok();
        let mode = |path: &str| {
            let meta = fs::metadata(path).expect("it is there");
            (meta.permissions().mode() & 0o777, meta.uid())
        };
        assert_eq!(mode("/run/podwire/locks"), (0o700, 0));
        let files = fs::read_dir("/run/podwire/locks").expect("the locks' directory");
        let files: Vec<String> =
            files.map(|file| file.expect("a file").path().display().to_string()).collect();
        assert_eq!(files.len(), 2, "of the attachment and of the rules: {files:?}");
        files.iter().for_each(|file| assert_eq!(mode(file), (0o600, 0)));
    });
}

#[test]
fn who_waits_too_long_is_told_to_come_again() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let call = world.call(&bridge(&json!({"isGateway": true, "ipMasq": true})), 1);
        call.add().ok();
        let held = lock_file("rules", &world.host);
        held.lock().expect("nobody else holds it");
        let words = format!("process {} (", std::process::id());
        let answer = call.del(&Value::Null);
        answer.fails_with(11, &words);
        answer.fails_with(11, ") has held it for 20 s");
        drop(held);
        call.del(&Value::Null).ok();
        assert_eq!(elements(&world.host), Vec::<String>::new());
    });
}
