// SPDX-License-Identifier: Apache-2.0
//! `podwire cleanup` with the options saved by an agent process, `podwire install`, and the paths in the
//! Kubernetes manifest.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use testkit::{Daemon, Node, Wire, in_netns, run, try_run, wait_for};

use super::program::{PODWIRE, fails, ok, ok_json, usage_error};

const TIMEOUT: Duration = Duration::from_secs(60);
const CONF: &str = r#"{"Network": "10.5.0.0/16", "Backend": {"Type": "host-gw"}}"#;
const CONFLIST: &str = "/etc/cni/net.d/10-podwire.conflist";

/// Starts an agent in its own mount namespace with another path for the host's directory, as in a container.
fn in_container(node: &Node) -> Daemon {
    let script = "mount -t tmpfs tmpfs /run/host; mkdir -p /run/host/etc/cni/net.d
        mount --bind /etc/cni/net.d /run/host/etc/cni/net.d; cd /run/lab; exec \"$@\"";
    let words = ["--mount", "sh", "-ec", script, "sh", PODWIRE, "agent", "--net-config", CONF];
    let more = ["--cni-conf-dir", "/run/host/etc/cni/net.d", "--store-file", "relative.db"];
    let flags = node.flags();
    let words: Vec<&str> =
        words.into_iter().chain(more).chain(flags.iter().map(String::as_str)).collect();
    let daemon = node.ns.start("unshare", &words);
    wait_for("the CNI configuration file", TIMEOUT, || Path::new(CONFLIST).exists());
    daemon
}

/// Creates a node and a private /etc.
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

/// The option that tells cleanup where the saved options are.
fn state_dir(node: &Node) -> String {
    format!("--state-dir={}", node.dir().join("state").display())
}

#[test]
fn cleanup_finds_files_of_a_containerized_agent() {
    in_netns(|| {
        let node = node();
        drop(in_container(&node));
        let text = fs::read_to_string(CONFLIST).unwrap();
        let state = state_dir(&node);
        let state = state.as_str();
        // The file of another agent, with another socket.
        fs::write(CONFLIST, text.replace("agent.sock", "other.sock")).unwrap();
        let printed = ok_json(&["cleanup", state, "--dry-run"]);
        let left = printed["left"].to_string();
        assert!(left.contains("/run/host/etc/cni/net.d/10-podwire.conflist"), "{left}");
        assert!(left.contains("--cni-conf-dir"), "{left}");
        fs::write(CONFLIST, text).unwrap();
        // A directory of the container's name that has nothing to do with the agent.
        fs::create_dir_all("/run/host/etc/cni/net.d").unwrap();
        let printed = ok(&["cleanup", state]);
        assert!(printed.contains("remove /etc/cni/net.d/10-podwire.conflist\n"), "{printed}");
        assert!(printed.contains("release lease 10.5."), "a store with a relative path: {printed}");
        assert!(!Path::new(CONFLIST).exists());
    });
}

#[test]
fn dry_run_is_refused_while_the_agent_runs() {
    in_netns(|| {
        let node = node();
        let agent = in_container(&node);
        let state = state_dir(&node);
        let state = state.as_str();
        let refused = fails(&["cleanup", state]);
        assert!(refused.contains("another agent runs with the directory"), "{refused}");
        let printed = fails(&["cleanup", state, "--dry-run"]);
        assert!(printed.contains("another agent runs with the directory"), "{printed}");
        drop(agent);
        let lock = node.dir().join("run/agent.lock");
        fs::remove_file(&lock).unwrap();
        let printed = ok(&["cleanup", state, "--dry-run"]);
        assert!(printed.contains("release lease 10.5."), "{printed}");
        assert!(!lock.exists(), "the dry run creates no file");
    });
}

/// Otherwise the lease would stay in the store for a day without notice.
#[test]
fn damaged_saved_options_are_reported() {
    in_netns(|| {
        let node = node();
        drop(in_container(&node));
        let state = state_dir(&node);
        let state = state.as_str();
        let record = node.dir().join("state/podwire.toml");
        let intact = fs::read_to_string(&record).unwrap();
        let store = intact.find("store-file").unwrap();
        let garbage: [&[u8]; 5] =
            [b"\xff\xfe\0", b"", b"store = [", b"store = \"xx\"\n", &intact.as_bytes()[store..]];
        for garbage in garbage {
            fs::write(&record, garbage).unwrap();
            let why = fails(&["cleanup", state]);
            assert!(why.contains("release lease 10.5."), "{garbage:?}: {why}");
            assert!(why.contains(record.to_str().unwrap()), "{garbage:?}: {why}");
            assert!(why.contains("--etcd-endpoints or --store-file"), "{garbage:?}: {why}");
            assert!(record.exists() && record.with_extension("lease").exists());
        }
        // With the options that the error asks for.
        let store = "--store-file=/run/lab/relative.db";
        let conf = "--cni-conf-dir=/etc/cni/net.d";
        let printed = ok(&["cleanup", state, store, conf]);
        assert!(printed.contains("release lease 10.5."), "{printed}");
        assert!(!record.exists() && !Path::new(CONFLIST).exists());
    });
}

#[test]
fn missing_capability_is_named() {
    in_netns(|| {
        let node = node();
        let state = state_dir(&node);
        let state = state.as_str();
        let confined = |dropped: &str, args: &[&str]| {
            let drop = format!("--bounding-set=-{dropped}");
            let words: Vec<&str> =
                [&drop, PODWIRE].into_iter().chain(args.iter().copied()).collect();
            try_run("setpriv", &words).expect_err("a missing capability")
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
        for args in [
            &agent[..],
            &["net", "add", "mynet", "/run/netns/blue", conf],
            &["pod", "up", "default/web", conf],
            &["demo"],
            &["cleanup", state],
        ] {
            let why = confined("net_admin", args);
            assert!(why.contains("hint: this process lacks CAP_NET_ADMIN"), "{args:?}: {why}");
            assert!(why.contains("--cap-add NET_ADMIN"), "{args:?}: {why}");
        }
        let why = confined("sys_admin", &["demo"]);
        assert!(why.contains("hint: this process lacks CAP_SYS_ADMIN"), "{why}");
    });
}

#[test]
fn invalid_net_config_is_a_usage_error() {
    in_netns(|| {
        let why = usage_error(&["agent", "--net-config", "xx"]);
        assert!(why.contains("flag --net-config: "), "{why}");
        let why = usage_error(&["agent", "--net-config", "{}"]);
        assert!(why.contains("flag --net-config: "), "{why}");
    });
}

#[test]
fn install_copies_the_program() {
    in_netns(|| {
        assert_eq!(ok(&["install", "/run/bin"]), "installed /run/bin/podwire\n");
        let version = run("/run/bin/podwire", &["--version"]);
        assert!(version.starts_with("podwire "), "{version}");
        ok(&["install", "/run/bin"]);
        assert_eq!(fs::read_dir("/run/bin").unwrap().count(), 1, "only one file is left");
        let why = fails(&["install", "/run/nowhere/bin"]);
        assert!(why.contains("its parent /run/nowhere does not exist"), "{why}");
        fs::create_dir("/run/plugins").unwrap();
        fs::write("/run/plugins/podwire-cni", "").unwrap();
        let why = fails(&["install", "/run/plugins"]);
        assert!(why.contains("holds the CNI plugin \"podwire\""), "{why}");
    });
}

/// The agent saves paths that must be valid on the node, outside of its container.
#[test]
fn manifest_mounts_host_paths_unchanged() {
    for name in ["podwire.yaml", "podwire-routed.yaml"] {
        check_mounts(name);
    }
}

fn check_mounts(manifest: &str) {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
    let text = fs::read_to_string(deploy.join(manifest)).unwrap();
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
