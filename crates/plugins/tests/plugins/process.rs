// SPDX-License-Identifier: Apache-2.0
//! `podwire-cni` as a program: installation, output, and programs that it starts.

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
    path.to_str().expect("the program's path is UTF-8").to_owned()
}

/// A typical network starts no other program: `execve` is called once, to start the plugin itself.
#[test]
fn plugin_of_any_verb_starts_no_program() {
    in_netns(|| {
        require!(Program("strace"));
        let ours = Plugins::ours();
        for config in [bridge(&json!({"isGateway": true, "ipam": dual()})), ptp(&json!({}))] {
            let world = World::new(&ours, 1);
            let call = world.call(&config, 1);
            assert_eq!(count_programs(&call, "ADD"), 1, "ADD");
            call.run("DEL").ok();
            let result = call.add().result();
            for verb in ["CHECK", "STATUS", "DEL"] {
                assert_eq!(count_programs(&call.with_prev_result(&result), verb), 1, "{verb}");
            }
            let call = call.always_exec();
            assert_eq!(count_programs(&call, "ADD"), 2, "always exec starts the IPAM plugin");
        }
    });
}

/// Number of programs that a verb starts, including the plugin.
pub fn count_programs(call: &Call, verb: &str) -> usize {
    let wrapper = ["strace", "-f", "-qq", "-e", "trace=execve,execveat", "-o", "/run/exec.log"];
    let child = call.start_under(&wrapper, verb, call.config.to_string().as_bytes());
    let output = child.wait_with_output().expect("wait for strace");
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stdout));
    let log = fs::read_to_string("/run/exec.log").expect("read strace's log");
    log.lines().filter(|line| line.contains("execve") && line.ends_with("= 0")).count()
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("an installed plugin").ino()
}

#[test]
fn install_replaces_plugins_and_keeps_other_files() {
    in_netns(|| {
        let (program, directory) = (program(), Path::new("/run/cni-bin/deep"));
        fs::create_dir_all(directory).expect("create a directory in /run");
        let go = Plugins::go();
        fs::copy(go.directory().join("bridge"), directory.join("bridge")).expect("copy a plugin");
        fs::write(directory.join("ptp"), "old").expect("write a file in /run");
        fs::write(directory.join("theirs"), "kept").expect("write a file in /run");
        for _ in 0..2 {
            let printed = run(&program, &["--install", "/run/cni-bin/deep"]);
            let count = plugin_names().len();
            assert!(
                printed.contains(&format!("{count} plugins in /run/cni-bin/deep")),
                "{printed}"
            );
            let installed = inode(&directory.join("podwire-cni"));
            for name in plugin_names() {
                assert_eq!(inode(&directory.join(name)), installed, "{name} is not a hard link");
            }
        }
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("read the directory")
            .map(|entry| {
                entry.expect("read a directory entry").file_name().to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        let mut expected = [&plugin_names()[..], &["podwire-cni", "theirs"]].concat();
        expected.sort_unstable();
        assert_eq!(names, expected, "unexpected files in the directory");
        let mode = fs::metadata(directory.join("bridge")).expect("a plugin").mode();
        assert_eq!(mode & 0o777, 0o755);
        let listed = run("/run/cni-bin/deep/podwire-cni", &["--list"]);
        assert_eq!(listed.lines().count(), plugin_names().len());
    });
}

/// A running plugin does not prevent the installation of a new version, and continues to run.
#[test]
fn install_over_running_plugin_works() {
    in_netns(|| {
        let ours = Plugins::ours();
        let directory = ours.directory().to_str().expect("the path is UTF-8");
        let world = World::new(&ours, 1);
        let call = world.call(&bridge(&json!({})), 1);
        let mut child = call.start(&[], "ADD");
        let exe = format!("/proc/{}/exe", child.id());
        let is_running = || fs::read_link(&exe).is_ok_and(|path| path.starts_with(directory));
        wait_for("the plugin to start", Duration::from_secs(30), is_running);
        run(&format!("{directory}/podwire-cni"), &["--install", directory]);
        let mut stdin = child.stdin.take().expect("stdin is piped");
        stdin.write_all(call.config.to_string().as_bytes()).expect("write the plugin's input");
        drop(stdin);
        let output = child.wait_with_output().expect("wait for the plugin");
        let result = Answer::of(&output).result();
        call.check(&result).ok();
        call.del(&result).ok();
    });
}

#[test]
fn plugins_installed_as_symlinks_work() {
    in_netns(|| {
        let ours = Plugins::ours();
        let directory = Path::new("/run/links");
        fs::create_dir_all(directory).expect("create a directory in /run");
        for name in plugin_names() {
            symlink(ours.directory().join("podwire-cni"), directory.join(name))
                .expect("create a symlink in /run");
        }
        let linked = Plugins(directory.to_owned());
        let world = World::new(&linked, 1);
        let call = world.call(&bridge(&json!({})), 1);
        assert_eq!(count_programs(&call, "ADD"), 1, "the IPAM plugin was started as a process");
        call.del(&Value::Null).ok();
    });
}

#[test]
fn command_line_prints_list_version_and_usage() {
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
fn install_without_parent_directory_fails() {
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

/// Users may find the plugin `podwire` when they look for the command-line tool of the same name.
#[test]
fn plugin_podwire_with_tool_arguments_fails() {
    in_netns(|| {
        let podwire = Plugins::ours().directory().join("podwire");
        let why =
            try_run(podwire.to_str().expect("path is UTF-8"), &["status"]).expect_err("no tool");
        assert!(why.contains("exit status: 2"), "{why}");
        assert!(why.contains("is the CNI plugin \"podwire\", not the command-line tool"), "{why}");
        assert!(why.contains("/opt/podwire/bin/podwire"), "{why}");
    });
}

/// Nomad starts plugins without arguments and takes the first version number in the output as the
/// plugin's version. Jobs with network mode `bridge` need 0.4.0, with newer Nomads 1.0.0.
#[test]
fn plugin_without_verb_prints_version_for_nomad() {
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

/// A node switched to podwire keeps every plugin.
#[test]
fn registry_contains_every_go_plugin() {
    let programs = fs::read_dir(Plugins::go().directory()).expect("read the Go plugins' directory");
    let names = programs.map(|entry| entry.expect("read a directory entry").file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 17, "{names:?}");
    let missing: Vec<_> =
        names.iter().filter(|name| !plugin_names().contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A network with the program's name as type must fail.
#[test]
fn plugin_called_as_podwire_cni_fails() {
    in_netns(|| {
        let world = World::new(&Plugins::ours(), 1);
        let config = with(bridge(&json!({})), &json!({"type": "podwire-cni"}));
        for verb in ["ADD", "DEL", "CHECK", "VERSION"] {
            let answer = world.call(&config, 1).run(verb);
            answer.fails_with(7, "this program has no plugin \"podwire-cni\"");
        }
    });
}

/// The shipped program is statically linked and small.
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
