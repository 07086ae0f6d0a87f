// SPDX-License-Identifier: Apache-2.0
//! containerd, and its client `ctr`, which calls the plugins itself with `--cni`.

use std::fs;
use std::path::Path;

use cni::Host;
use cni::runtime::{NetworkList, Runtime};
use testkit::{Daemon, cgroup_parent, in_node, require, run, try_run, wait_for, wait_some};

use super::image::{self, IMAGE, PAGE, SERVER};
use super::node::{NETWORKS, Node, PAGE_OUTSIDE, TIMEOUT, assert_gets, wget_here};
use crate::docs;

/// Settings for a test node in addition to docs/clients.md: a preloaded image, no AppArmor, no
/// overlay on top of an overlay, and no permission to lower the OOM score.
const TEST_SETTINGS: &str = r#"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/box:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
"#;

pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// containerd namespace of the CRI images.
pub const CRI_NAMESPACE: &str = "k8s.io";

/// Starts containerd and loads the image, without a network configuration.
pub fn start(namespace: &str) -> Daemon {
    require!(Program("containerd"), Program("ctr"), Program("runc"));
    let printed = docs::of_clients("toml", "# /etc/containerd/config.toml");
    let file = "/etc/containerd/config.toml";
    fs::create_dir_all("/etc/containerd").expect("create a directory on the node");
    fs::write(file, format!("{printed}{TEST_SETTINGS}")).expect("write a file on the node");
    let daemon = Daemon::start("containerd", &["--config", file, "--log-level", "warn"]);
    wait_for("containerd to answer", TIMEOUT, || try_run("ctr", &["version"]).is_ok());
    let archive = image::archive(Path::new("/run/image"));
    let import = ["image", "import", "--snapshotter", "native", &archive];
    run("ctr", &[&["--namespace", namespace], &import[..]].concat());
    daemon
}

/// The network of docs/clients.md.
pub fn network() -> String {
    docs::of_clients("json", "{ \"cniVersion\": \"1.0.0\", \"name\": \"pods\"")
}

/// Installs the network with a rename, so that containerd never reads a partial file.
pub fn install_network() {
    let (part, whole) = (format!("{NETWORKS}/.pods"), format!("{NETWORKS}/10-pods.conflist"));
    fs::write(&part, network()).expect("write a file on the node");
    fs::rename(part, whole).expect("write a file on the node");
}

/// Arguments of `ctr run --cni`; `options` and `command` are split at spaces.
fn words(options: &str, name: &str, command: &str) -> Vec<String> {
    let cgroup = format!("{}/{name}", cgroup_parent());
    let line = format!(
        "run --snapshotter native --cni --cgroup {cgroup} {options} {IMAGE} {name} /bin/busybox {command}"
    );
    line.split_whitespace().map(str::to_owned).collect()
}

fn ctr(words: &[String]) -> Result<String, String> {
    try_run("ctr", &words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Waits for the first reserved address and returns it.
fn address() -> String {
    let taken = || {
        let entries = fs::read_dir("/var/lib/cni/networks/pods").into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| name.starts_with("10."))
    };
    wait_some(TIMEOUT, taken).expect("host-local reserved an address")
}

#[test]
fn ctr_run_connects_and_exit_removes_everything() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), start("default"));
        install_network();
        let server = words("--rm", "server", SERVER);
        let server: Vec<&str> = server.iter().map(String::as_str).collect();
        let _server = Daemon::start("ctr", &server);
        let url = format!("http://{}/", address());
        assert_gets(&url, PAGE, wget_here);
        for (at, (url, page)) in [(url.as_str(), PAGE), PAGE_OUTSIDE].into_iter().enumerate() {
            let command = format!("wget -q -O - {url}");
            assert_eq!(ctr(&words("--rm", &format!("client{at}"), &command)), Ok(page.to_owned()));
        }
        // The foreground client notices the kill and sends DEL.
        run("ctr", &["task", "kill", "--signal", "SIGKILL", "server"]);
        node.assert_clean_except(&["pods0"]);
    });
}

/// `ctr run -d --cni` never sends DEL, so GC has to clean up.
#[test]
fn gc_after_detached_ctr_run_removes_stale_pod() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), start("default"));
        install_network();
        ctr(&words("--detach", "server", SERVER)).expect("start the container");
        assert_gets(&format!("http://{}/", address()), PAGE, wget_here);
        run("ctr", &["task", "rm", "--force", "server"]);
        run("ctr", &["container", "rm", "server"]);
        assert!(Path::new("/var/lib/cni/networks/pods").join(address()).exists());
        let list = NetworkList::parse(network().as_bytes(), None).expect("the list is valid");
        let no_builtin_plugins = Host::of_this_program(&[]);
        Runtime::new(&no_builtin_plugins, "/opt/cni/bin").gc(&list, &[]).expect("GC");
        node.assert_clean_except(&["pods0"]);
    });
}
