// SPDX-License-Identifier: Apache-2.0
//! `podwire cleanup` and the record that an agent leaves for it, with the agent as a process of its own; and what a
//! node of Kubernetes needs to run it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use testkit::{Daemon, Node, Wire, in_netns, run, try_run, wait_for};

use super::program::{PODWIRE, fails, misused, ok, ok_json};

const PATIENCE: Duration = Duration::from_secs(60);
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;
const CONFLIST: &str = "/etc/cni/net.d/10-podwire.conflist";

/// An agent in a mount namespace of its own, in which the host's directory has another path, as in a container.
fn in_container(node: &Node) -> Daemon {
    let script = "mount -t tmpfs tmpfs /run/host; mkdir -p /run/host/etc/cni/net.d
        mount --bind /etc/cni/net.d /run/host/etc/cni/net.d; cd /run/lab; exec \"$@\"";
    let words = ["--mount", "sh", "-ec", script, "sh", PODWIRE, "agent", "--net-config", CONF];
    let more = ["--cni-conf-dir", "/run/host/etc/cni/net.d", "--store-file", "relative.db"];
    let flags = node.flags();
    let words: Vec<&str> =
        words.into_iter().chain(more).chain(flags.iter().map(String::as_str)).collect();
    let daemon = node.ns.start("unshare", &words);
    wait_for("the CNI configuration", PATIENCE, || Path::new(CONFLIST).exists());
    daemon
}

/// A node, and an /etc of its own.
fn node() -> Node {
    run(
        "sh",
        &[
            "-ec",
            "cp -a /etc /run/etc; mount --bind /run/etc /etc
        mkdir -p /etc/cni/net.d /run/host",
        ],
    );
    Wire::new().node(1, true, false)
}

/// The flag by which cleanup finds the rest.
fn state_dir(node: &Node) -> String {
    format!("--state-dir={}", node.dir().join("state").display())
}

#[test]
fn cleanup_on_the_host_removes_the_configuration_of_an_agent_in_a_container() {
    in_netns(|| {
        let node = node();
        drop(in_container(&node));
        let text = fs::read_to_string(CONFLIST).unwrap();
        let state = state_dir(&node);
        let state = state.as_str();
        // Of another agent, with another socket.
        fs::write(CONFLIST, text.replace("agent.sock", "other.sock")).unwrap();
        let told = ok_json(&["cleanup", state, "--dry-run"]);
        let left = told["left"].to_string();
        assert!(left.contains("/run/host/etc/cni/net.d/10-podwire.conflist"), "{left}");
        assert!(left.contains("--cni-conf-dir"), "{left}");
        fs::write(CONFLIST, text).unwrap();
        let told = ok(&["cleanup", state]);
        assert!(told.contains("remove /etc/cni/net.d/10-podwire.conflist\n"), "{told}");
        assert!(told.contains("release lease 10.5."), "a store with a relative path: {told}");
        assert!(!Path::new(CONFLIST).exists());
    });
}

#[test]
fn a_dry_run_is_refused_where_cleanup_is() {
    in_netns(|| {
        let node = node();
        let agent = in_container(&node);
        let state = state_dir(&node);
        let state = state.as_str();
        let refused = fails(&["cleanup", state]);
        assert!(refused.contains("another agent runs with the directory"), "{refused}");
        let told = fails(&["cleanup", state, "--dry-run"]);
        assert!(told.contains("another agent runs with the directory"), "{told}");
        drop(agent);
        let lock = node.dir().join("run/agent.lock");
        fs::remove_file(&lock).unwrap();
        let told = ok(&["cleanup", state, "--dry-run"]);
        assert!(told.contains("release lease 10.5."), "{told}");
        assert!(!lock.exists(), "it makes nothing");
    });
}

/// The lease would stay in the store for a day, and nobody would know.
#[test]
fn damaged_options_of_the_agent_are_reported() {
    in_netns(|| {
        let node = node();
        drop(in_container(&node));
        let state = state_dir(&node);
        let state = state.as_str();
        let record = node.dir().join("state/podwire.toml");
        let whole = fs::read_to_string(&record).unwrap();
        let store = whole.find("store-file").unwrap();
        let garbage: [&[u8]; 5] =
            [b"\xff\xfe\0", b"", b"store = [", b"store = \"xx\"\n", &whole.as_bytes()[store..]];
        for garbage in garbage {
            fs::write(&record, garbage).unwrap();
            let why = fails(&["cleanup", state]);
            assert!(why.contains("release lease 10.5."), "{garbage:?}: {why}");
            assert!(why.contains(record.to_str().unwrap()), "{garbage:?}: {why}");
            assert!(why.contains("--etcd-endpoints or --store-file"), "{garbage:?}: {why}");
            assert!(record.exists() && record.with_extension("lease").exists());
        }
        // Advice that is followed.
        let store = "--store-file=/run/lab/relative.db";
        let conf = "--cni-conf-dir=/etc/cni/net.d";
        let told = ok(&["cleanup", state, store, conf]);
        assert!(told.contains("release lease 10.5."), "{told}");
        assert!(!record.exists() && !Path::new(CONFLIST).exists());
    });
}

#[test]
fn a_missing_capability_is_named() {
    in_netns(|| {
        let node = node();
        let state = state_dir(&node);
        let state = state.as_str();
        let confined = |dropped: &str, words: &[&str]| {
            let drop = format!("--bounding-set=-{dropped}");
            let words: Vec<&str> =
                [&drop, PODWIRE].into_iter().chain(words.iter().copied()).collect();
            try_run("setpriv", &words).expect_err("it lacks a capability")
        };
        drop(in_container(&node));
        let flags = node.flags();
        let agent: Vec<&str> = ["agent", "--net-config", CONF, "--store-file", "/run/lab/s"]
            .into_iter()
            .chain(flags.iter().map(String::as_str))
            .collect();
        fs::create_dir_all("/run/conf").unwrap();
        let bridge = json!({"cniVersion": "1.1.0", "name": "mynet", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]});
        fs::write("/run/conf/10-mynet.conflist", bridge.to_string()).unwrap();
        let conf = "--conf-dir=/run/conf";
        run("ip", &["netns", "add", "blue"]);
        for words in [
            &agent[..],
            &["net", "add", "mynet", "/run/netns/blue", conf],
            &["pod", "up", "default/web", conf],
            &["demo"],
            &["cleanup", state],
        ] {
            let why = confined("net_admin", words);
            assert!(why.contains("hint: this process lacks CAP_NET_ADMIN"), "{words:?}: {why}");
            assert!(why.contains("--cap-add NET_ADMIN"), "{words:?}: {why}");
        }
        let why = confined("sys_admin", &["demo"]);
        assert!(why.contains("hint: this process lacks CAP_SYS_ADMIN"), "{why}");
    });
}

#[test]
fn a_configuration_that_is_none_is_a_wrong_command_line() {
    in_netns(|| {
        let why = misused(&["agent", "--net-config", "xx"]);
        assert!(why.contains("flag --net-config: "), "{why}");
        let why = misused(&["agent", "--net-config", "{}"]);
        assert!(why.contains("flag --net-config: "), "{why}");
    });
}

#[test]
fn the_program_installs_itself() {
    in_netns(|| {
        assert_eq!(ok(&["install", "/run/bin"]), "installed /run/bin/podwire\n");
        let version = run("/run/bin/podwire", &["--version"]);
        assert!(version.starts_with("podwire "), "{version}");
        ok(&["install", "/run/bin"]);
        assert_eq!(fs::read_dir("/run/bin").unwrap().count(), 1, "nothing else is left");
        let why = fails(&["install", "/run/nowhere/bin"]);
        assert!(why.contains("its parent /run/nowhere does not exist"), "{why}");
        fs::create_dir("/run/plugins").unwrap();
        fs::write("/run/plugins/podwire-cni", "").unwrap();
        let why = fails(&["install", "/run/plugins"]);
        assert!(why.contains("holds the CNI plugin \"podwire\""), "{why}");
    });
}

/// Paths that the agent writes down are the node's, and the program that cleans up is there.
#[test]
fn the_manifest_has_the_paths_of_the_node() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(package.join("../../deploy/kubernetes/podwire.yaml")).unwrap();
    let (_, agent) = text.split_once("- name: agent\n").unwrap();
    let (agent, volumes) = agent.split_once("      volumes:\n").unwrap();
    let (_, mounts) = agent.split_once("volumeMounts:\n").unwrap();
    let pair = |text: &str, key: &str| -> Vec<(String, String)> {
        let items = text.split("- name: ").skip(1);
        let value = |item: &str| item.split_once(key).map(|(_, rest)| rest.trim().to_owned());
        let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
        items.filter_map(|item| Some((first(item.to_owned()), first(value(item)?)))).collect()
    };
    let paths = pair(volumes, "path: ");
    let mounts = pair(mounts, "mountPath: ");
    let mut count = 0;
    for (name, mounted) in &mounts {
        let Some((_, path)) = paths.iter().find(|(volume, _)| volume == name) else { continue };
        assert_eq!(mounted, path, "{name}");
        count += 1;
    }
    assert!(count >= 5, "{mounts:?} {paths:?}");
    assert!(agent.contains("--cni-conf-dir=/etc/cni/net.d\n"), "{agent}");
    let tool = plugins::install::TOOL;
    let directory = Path::new(tool).parent().unwrap().display().to_string();
    assert!(paths.iter().any(|(_, path)| *path == directory), "{tool} in {paths:?}");
    assert!(text.contains(&format!("command: [\"/podwire\", \"install\", \"/host{directory}\"]")));
}
