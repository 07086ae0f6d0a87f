// SPDX-License-Identifier: Apache-2.0
//! containerd, and its own client `ctr` with `--cni`, which calls the plugins by itself.

use std::fs;
use std::path::Path;

use cni::Host;
use cni::runtime::{NetworkList, Runtime};
use testkit::{Daemon, cgroup_parent, in_node, require, run, try_run, wait_for, wait_some};

use super::image::{self, IMAGE, PAGE, SERVER};
use super::node::{NETWORKS, Node, PAGE_OUTSIDE, PATIENCE, gets, wget_here};
use crate::docs;

/// What a node of a test needs beyond docs/clients.md: an image that is there, no AppArmor, no
/// overlay above an overlay, and no right to lower the score for the killer of processes.
const IN_A_TEST: &str = r#"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/box:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
"#;

pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// The namespace that CRI has its images in.
pub const OF_CRI: &str = "k8s.io";

/// A running containerd, with the image. It has no network yet.
pub fn start(namespace: &str) -> Daemon {
    require!(Program("containerd"), Program("ctr"), Program("runc"));
    let printed = docs::of_clients("toml", "# /etc/containerd/config.toml");
    let file = "/etc/containerd/config.toml";
    fs::create_dir_all("/etc/containerd").expect("a directory of the node's own");
    fs::write(file, format!("{printed}{IN_A_TEST}")).expect("a file of the node's own");
    let daemon = Daemon::start("containerd", &["--config", file, "--log-level", "warn"]);
    wait_for("containerd's answer", PATIENCE, || try_run("ctr", &["version"]).is_ok());
    let archive = image::archive(Path::new("/run/image"));
    let import = ["image", "import", "--snapshotter", "native", &archive];
    run("ctr", &[&["--namespace", namespace], &import[..]].concat());
    daemon
}

/// The network of docs/clients.md.
pub fn network() -> String {
    docs::of_clients("json", "{ \"cniVersion\": \"1.0.0\", \"name\": \"pods\"")
}

/// Puts the network in place as a program should: containerd sees a rename, and never half a file.
pub fn install_network() {
    let (part, whole) = (format!("{NETWORKS}/.pods"), format!("{NETWORKS}/10-pods.conflist"));
    fs::write(&part, network()).expect("a file of the node's own");
    fs::rename(part, whole).expect("a file of the node's own");
}

/// `ctr run --cni`, with options and a command in one line each.
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

/// The one address that is taken, once it is.
fn address() -> String {
    let taken = || {
        let entries = fs::read_dir("/var/lib/cni/networks/pods").into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| name.starts_with("10."))
    };
    wait_some(PATIENCE, taken).expect("a container has an address")
}

#[test]
fn ctr_run_connects_and_leaves_nothing() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), start("default"));
        install_network();
        let server = words("--rm", "server", SERVER);
        let server: Vec<&str> = server.iter().map(String::as_str).collect();
        let _server = Daemon::start("ctr", &server);
        let url = format!("http://{}/", address());
        gets(&url, PAGE, wget_here);
        for (at, (url, page)) in [(url.as_str(), PAGE), PAGE_OUTSIDE].into_iter().enumerate() {
            let command = format!("wget -q -O - {url}");
            assert_eq!(ctr(&words("--rm", &format!("client{at}"), &command)), Ok(page.to_owned()));
        }
        // The client in the foreground notices, and sends DEL.
        run("ctr", &["task", "kill", "--signal", "SIGKILL", "server"]);
        node.is_clean_but(&["pods0"]);
    });
}

/// `ctr run -d --cni` never sends DEL. GC is what helps.
#[test]
fn gc_removes_what_ctr_leaves_behind() {
    in_node(|| {
        let (node, _containerd) = (Node::new(), start("default"));
        install_network();
        ctr(&words("--detach", "server", SERVER)).expect("it starts");
        gets(&format!("http://{}/", address()), PAGE, wget_here);
        run("ctr", &["task", "rm", "--force", "server"]);
        run("ctr", &["container", "rm", "server"]);
        assert!(Path::new("/var/lib/cni/networks/pods").join(address()).exists());
        let list = NetworkList::parse(network().as_bytes(), None).expect("the list is valid");
        let stranger = Host::of_this_program(&[]);
        Runtime::new(&stranger, "/opt/cni/bin").gc(&list, &[]).expect("GC");
        node.is_clean_but(&["pods0"]);
    });
}
