// SPDX-License-Identifier: Apache-2.0
//! `podwire-cni` as a program: how it is installed, what it prints, what it starts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use plugins::registry::PLUGINS;
use serde_json::{Value, json};
use testkit::{in_netns, not_run, plugin_program, require, run, test_name, try_run, wait_for};

use crate::call::{Answer, Call};
use crate::conf::{bridge, dual, ptp, with};
use crate::world::{Plugins, World};

fn plugin_names() -> Vec<&'static str> {
    PLUGINS.iter().map(|plugin| plugin.name).collect()
}

fn program() -> String {
    let path = plugin_program(env!("CARGO_BIN_EXE_podwire-cni"));
    path.to_str().expect("the program's path is text").to_owned()
}

/// The usual network starts no other program: `execve` is called once, by whoever starts it.
#[test]
fn no_program_is_started() {
    in_netns(|| {
        require!(Program("strace"));
        let ours = Plugins::ours();
        for config in [bridge(&json!({"isGateway": true, "ipam": dual()})), ptp(&json!({}))] {
            let world = World::new(&ours, 1);
            let call = world.call(&config, 1);
            assert_eq!(started(&call, "ADD"), 1, "ADD");
            call.run("DEL").ok();
            let result = call.add().result();
            for verb in ["CHECK", "STATUS", "DEL"] {
                assert_eq!(started(&call.with_prev_result(&result), verb), 1, "{verb}");
            }
            let call = call.always_exec();
            assert_eq!(started(&call, "ADD"), 2, "the IPAM plugin, where it is asked for");
        }
    });
}

/// How many programs a verb starts, itself included.
pub fn started(call: &Call, verb: &str) -> usize {
    let wrapper = ["strace", "-f", "-qq", "-e", "trace=execve,execveat", "-o", "/run/exec.log"];
    let child = call.start_under(&wrapper, verb, call.config.to_string().as_bytes());
    let output = child.wait_with_output().expect("strace can be waited for");
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stdout));
    let log = fs::read_to_string("/run/exec.log").expect("strace has written its log");
    log.lines().filter(|line| line.contains("execve") && line.ends_with("= 0")).count()
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("an installed plugin").ino()
}

#[test]
fn install_replaces_what_is_there() {
    in_netns(|| {
        let (program, directory) = (program(), Path::new("/run/cni-bin/deep"));
        fs::create_dir_all(directory).expect("a directory below /run");
        let go = Plugins::go();
        fs::copy(go.directory().join("bridge"), directory.join("bridge")).expect("a copy");
        fs::write(directory.join("ptp"), "old").expect("a file");
        fs::write(directory.join("theirs"), "kept").expect("a file");
        for _ in 0..2 {
            let told = run(&program, &["--install", "/run/cni-bin/deep"]);
            let count = plugin_names().len();
            assert!(told.contains(&format!("{count} plugins in /run/cni-bin/deep")), "{told}");
            let installed = inode(&directory.join("podwire-cni"));
            for name in plugin_names() {
                assert_eq!(inode(&directory.join(name)), installed, "{name} is a hard link");
            }
        }
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("the directory")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        let mut expected = [&plugin_names()[..], &["podwire-cni", "theirs"]].concat();
        expected.sort_unstable();
        assert_eq!(names, expected, "no temporary file is left");
        let mode = fs::metadata(directory.join("bridge")).expect("a plugin").mode();
        assert_eq!(mode & 0o777, 0o755);
        let listed = run("/run/cni-bin/deep/podwire-cni", &["--list"]);
        assert_eq!(listed.lines().count(), plugin_names().len());
    });
}

/// A running plugin does not stop the installation of a new one, nor the other way round.
#[test]
fn install_works_from_its_own_place_and_while_in_use() {
    in_netns(|| {
        let ours = Plugins::ours();
        let directory = ours.directory().to_str().expect("a path of ours is text");
        let world = World::new(&ours, 1);
        let call = world.call(&bridge(&json!({})), 1);
        let mut child = call.start(&[], "ADD");
        let exe = format!("/proc/{}/exe", child.id());
        let is_running = || fs::read_link(&exe).is_ok_and(|path| path.starts_with(directory));
        wait_for("the plugin to start", Duration::from_secs(30), is_running);
        run(&format!("{directory}/podwire-cni"), &["--install", directory]);
        let mut stdin = child.stdin.take().expect("stdin is piped");
        stdin.write_all(call.config.to_string().as_bytes()).expect("the plugin reads its input");
        drop(stdin);
        let output = child.wait_with_output().expect("the plugin ends");
        let result = Answer::of(&output).result();
        call.check(&result).ok();
        call.del(&result).ok();
    });
}

#[test]
fn symbolic_links_work_as_well() {
    in_netns(|| {
        let ours = Plugins::ours();
        let directory = Path::new("/run/links");
        fs::create_dir_all(directory).expect("a directory below /run");
        for name in plugin_names() {
            symlink(ours.directory().join("podwire-cni"), directory.join(name)).expect("a link");
        }
        let linked = Plugins(directory.to_owned());
        let world = World::new(&linked, 1);
        let call = world.call(&bridge(&json!({})), 1);
        assert_eq!(started(&call, "ADD"), 1, "IPAM by function call");
        call.del(&Value::Null).ok();
    });
}

#[test]
fn command_line_tells_what_it_is() {
    let program = program();
    let list = run(&program, &["--list"]);
    let names: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, plugin_names());
    let version = run(&program, &["--version"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    assert!(version.contains("0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"), "{version}");
    assert!(run(&program, &["--help"]).contains("--install DIR"));
    for bad in [&["--nonsense"][..], &["--install"], &["--list", "x"], &["bridge"]] {
        let why = try_run(&program, bad).expect_err("not a command");
        assert!(why.contains("exit status: 1") && why.contains("Usage"), "{why}");
    }
    let why = try_run(&program, &["--install"]).expect_err("no directory");
    assert!(why.contains("--install: the directory is missing"), "{why}");
    let why = try_run(&program, &["--install", "/proc/nowhere"]).expect_err("no such place");
    assert!(why.contains("/proc/nowhere"), "{why}");
}

#[test]
fn install_makes_no_parent_directories() {
    in_netns(|| {
        let program = program();
        let why = try_run(&program, &["--install", "/run/optt/cni/bin"]).expect_err("no parent");
        assert!(
            why.contains("create /run/optt/cni/bin: its parent /run/optt/cni does not"),
            "{why}"
        );
        assert!(!Path::new("/run/optt").exists());
        run(&program, &["--install", "/run/bin"]);
        assert!(Path::new("/run/bin/bridge").exists());
    });
}

/// The plugin `podwire` lies where users look for the command-line tool of this name.
#[test]
fn a_plugin_refuses_the_words_of_the_tool() {
    in_netns(|| {
        let podwire = Plugins::ours().directory().join("podwire");
        let why = try_run(podwire.to_str().expect("text"), &["status"]).expect_err("no tool");
        assert!(why.contains("exit status: 2"), "{why}");
        assert!(why.contains("is the CNI plugin \"podwire\", not the command-line tool"), "{why}");
        assert!(why.contains("/opt/podwire/bin/podwire"), "{why}");
    });
}

/// Nomad starts plugins without arguments, takes the first word of what they print that is a version
/// as theirs, and places jobs by it: those with `bridge` need 0.4.0, and newer Nomads 1.0.0.
#[test]
fn nomad_finds_a_version_that_is_high_enough() {
    in_netns(|| {
        let plugins = Plugins::ours();
        for name in ["bridge", "firewall", "host-local", "loopback", "portmap"] {
            let script = format!("exec {}/{name} </dev/null 2>&1", plugins.directory().display());
            let printed = run("env", &["-u", "CNI_COMMAND", "sh", "-c", &script]);
            let is_version = |word: &&str| {
                let parts: Vec<&str> = word.split('.').collect();
                parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok())
            };
            let version = printed.split_whitespace().find(is_version);
            assert_eq!(version, Some("1.1.0"), "{printed}");
        }
    });
}

/// A node that changes over misses none.
#[test]
fn every_go_plugin_is_here() {
    let programs = fs::read_dir(Plugins::go().directory()).expect("the Go plugins' directory");
    let names = programs.map(|entry| entry.expect("an entry").file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 17, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|name| !plugin_names().contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A network whose type is the program's own name must not seem to work.
#[test]
fn under_its_own_name_it_is_no_plugin() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = with(bridge(&json!({})), &json!({"type": "podwire-cni"}));
        for verb in ["ADD", "DEL", "CHECK", "VERSION"] {
            let answer = world.call(&config, 1).run(verb);
            answer.fails_with(7, "this program has no plugin \"podwire-cni\"");
        }
    });
}

/// The shipped program needs no dynamic linker, and is small.
#[test]
fn shipped_program_is_static_and_small() {
    require!(Program("readelf"));
    let program = program();
    if program == env!("CARGO_BIN_EXE_podwire-cni") {
        not_run(&test_name(), "not the shipped program; `cargo xtask test` builds it");
        return;
    }
    let headers = run("readelf", &["-lW", &program]);
    assert!(!headers.contains("INTERP"), "{headers}");
    let size = fs::metadata(&program).expect("the program").len();
    assert!(size < 2_500_000, "{size} bytes");
}
