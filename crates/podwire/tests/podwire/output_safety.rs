// SPDX-License-Identifier: Apache-2.0
//! Secrets and control characters in the output of an agent and its commands, with a real etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use testkit::{Daemon, EtcdServer, Node, Wire, in_netns, run, try_run, wait_for};

use super::program::PODWIRE;

const TIMEOUT: Duration = Duration::from_secs(60);
const LOG: &str = "/run/lab/log";
const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets/";

fn etcd() -> EtcdServer {
    testkit::require!(Program("etcd"), Program("etcdctl"));
    let mut server = EtcdServer::at("/run/lab/etcd".as_ref(), Wire::HOST);
    server.start();
    server.wait();
    server
}

fn start(node: &Node, more: &[&str]) -> Daemon {
    let flags = node.flags();
    let words = ["-c", "exec \"$@\" 2>>/run/lab/log", "sh", PODWIRE, "agent"].iter().chain(more);
    let words: Vec<&str> = words.copied().chain(flags.iter().map(String::as_str)).collect();
    node.ns.start("sh", &words)
}

/// Output of a command, even if it fails.
fn output(words: &[&str]) -> String {
    try_run(PODWIRE, words).unwrap_or_else(|why| why)
}

fn page(socket: &str, page: &str) -> String {
    run("curl", &["-sS", "--unix-socket", socket, &format!("http://agent{page}")])
}

/// All outputs of the agent of a node, by name.
fn outputs(node: &Node, store: &[&str]) -> Vec<(String, String)> {
    let below = |name: &str| node.dir().join(name).to_str().unwrap().to_owned();
    let (run_dir, state) = (below("run"), below("state"));
    let mut outputs = vec![("log".to_owned(), fs::read_to_string(LOG).unwrap())];
    for command in ["status", "peers"] {
        for format in ["text", "json"] {
            let words = [command, "--run-dir", &run_dir, "-o", format];
            outputs.push((format!("{command} as {format}"), output(&words)));
        }
    }
    let socket = format!("{run_dir}/agent.sock");
    for name in ["/healthz", "/readyz", "/metrics", "/status", "/peers"] {
        outputs.push((name.to_owned(), page(&socket, name)));
    }
    let flags = node.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    for command in ["agent", "cleanup"] {
        let words = [&[command, "--dry-run"], store, &flags].concat();
        let printed = node.ns.try_exec(PODWIRE, &words).unwrap_or_else(|why| why);
        outputs.push((format!("{command} --dry-run"), printed));
    }
    let words = ["cleanup", "--dry-run", "--state-dir", &state, "--run-dir", &run_dir];
    outputs.push(("cleanup with the saved options".to_owned(), output(&words)));
    outputs
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn secrets_are_not_printed_or_world_readable() {
    in_netns(|| {
        let wire = Wire::new();
        let mut server = etcd();
        let node = wire.node(1, true, false);
        let psk = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let conf = format!(
            r#"{{"Network": "10.5.0.0/16", "Backend": {{"Type": "host-gw", "PSK": "{psk}"}}}}"#
        );
        let endpoint = server.endpoint().replace("http://", "http://root:hush@");
        let store =
            ["--etcd-endpoints", &endpoint, "--etcd-username", "a", "--etcd-password", "hush"];
        // Files with the permissions of an earlier version.
        let state = node.dir().join("state");
        fs::create_dir_all(&state).unwrap();
        let written = ["podwire.toml", "podwire.view"].map(|name| state.join(name));
        for path in &written {
            fs::write(path, "").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let _agent = start(&node, &[&store[..], &["--v=5", "--net-config", &conf]].concat());
        let log = || fs::read_to_string(LOG).unwrap_or_default();
        wait_for("readiness", TIMEOUT, || log().contains("node ready"));
        let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in &written {
            wait_for("a written file", TIMEOUT, || fs::metadata(path).unwrap().len() > 0);
            assert_eq!(mode(path), 0o600, "{}", path.display());
        }
        assert!(log().contains("ignoring user name and password in a URL"));
        // The log quotes an invalid configuration and an unreachable store.
        let wrong = conf.replace("host-gw", "wireguard").replace(psk, &format!("{psk}{psk}"));
        server.ctl(&["put", CONFIG, &wrong]);
        wait_for("the rejected configuration", TIMEOUT, || log().contains("Backend.PSK"));
        server.kill();
        wait_for("the unreachable store", TIMEOUT, || log().contains("store unreachable"));
        let readable = files(node.dir()).into_iter().filter(|path| {
            let is_file = fs::symlink_metadata(path).unwrap().is_file();
            is_file && mode(path) & 0o077 != 0
        });
        let readable = readable.map(|path| {
            (path.display().to_string(), String::from_utf8_lossy(&fs::read(&path).unwrap()).into())
        });
        for (name, text) in outputs(&node, &store).into_iter().chain(readable) {
            let text: String = text;
            // The error of a failed command quotes its own command line.
            let text = text.replace(&endpoint, "").replace("--etcd-password hush", "");
            assert!(!text.contains("hush") && !text.contains(psk), "{name}: {text}");
        }
    });
}

/// Whether a terminal interprets the character instead of printing it.
fn is_control(letter: char) -> bool {
    letter != '\n' && (letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}'))
}

#[test]
fn control_characters_of_the_store_are_escaped() {
    in_netns(|| {
        let wire = Wire::new();
        let server = etcd();
        let node = wire.node(1, true, false);
        let endpoint = server.endpoint();
        let store = ["--etcd-endpoints", &endpoint];
        // In keys and values: colours, a window title, C1 codes, a direction override, a newline.
        let conf = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"},
            "\u001b[31mKey\u009b\u202e\nready": 1}"#;
        server.ctl(&["put", CONFIG, conf]);
        let evil = "10.5.9.0-24\u{1b}[31m\u{9b}2J\u{202e}\nready: evil";
        let value = |backend: &str| {
            format!(
                r#"{{"PublicIP":"192.168.90.9","PublicIPv6":null,"BackendType":"{backend}","BackendData":null}}"#
            )
        };
        let put = |key: &str, value: &str| server.ctl(&["put", &format!("{SUBNETS}{key}"), value]);
        put(evil, &value("host-gw"));
        put("10.5.10.0-24", &value(r"\u001b]0;title\u0007\u009b\u202e\nready"));
        put("10.5.11.0-24", "{\"PublicIP\":\"\\u001b[5m\\u202e\\nready\"}");
        put("10.5.12.0-24", "\u{1b}[5m\u{9b}no JSON");
        let _agent = start(&node, &[&store[..], &["--v=5"]].concat());
        let log = || fs::read_to_string(LOG).unwrap_or_default();
        wait_for("readiness", TIMEOUT, || log().contains("node ready"));
        let socket = node.dir().join("run/agent.sock").to_str().unwrap().to_owned();
        wait_for("all four leases", TIMEOUT, || {
            let readyz = page(&socket, "/readyz");
            ["10.5.9.0", "10.5.10.0", "10.5.11.0", "10.5.12.0"]
                .iter()
                .all(|key| readyz.contains(key))
        });
        for (name, text) in outputs(&node, &store) {
            assert!(!text.contains(is_control), "{name}: {text:?}");
            let forged = text.lines().any(|line| line.starts_with("ready: evil"));
            assert!(!forged, "{name}: {text:?}");
        }
        let peers: Value = serde_json::from_str(&page(&socket, "/peers")).unwrap();
        let names = peers.as_array().unwrap().iter().map(|peer| peer["name"].as_str().unwrap());
        assert!(names.into_iter().any(|name| name == evil), "JSON has the unchanged name");
    });
}
