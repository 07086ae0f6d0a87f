// SPDX-License-Identifier: Apache-2.0
//! podman with its CNI backend. Its `network create` writes bridge, portmap, firewall and tuning at
//! version 0.4.0; it asks every plugin of every network for VERSION before each operation.

use std::fs;
use std::path::Path;

use serde_json::Value;
use testkit::{Ns, cgroup_parent, in_node, require, run, try_run};

use super::image::{self, IMAGE, PAGE, SERVER};
use super::node::{ADDRESS, NETWORKS, Node, PAGE_OUTSIDE, gets, wget_here};
use crate::docs;
use crate::rules::{chains, elements};

/// What a node of a test needs beyond docs/clients.md: no systemd, no registry, and limits that a
/// container may have without the right to raise them.
const IN_A_TEST: &str = r#"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"#;

const STORAGE: &str = r#"
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"#;

/// podman, with the image loaded.
struct Podman;

impl Podman {
    fn new() -> Podman {
        require!(Program("podman"), Program("conmon"), Program("runc"));
        let drop_in = Path::new("/etc/containers/containers.conf.d");
        fs::create_dir_all(drop_in).expect("a directory of the node's own");
        let printed = docs::of_clients("toml", "# /etc/containers/containers.conf");
        for (file, content) in [
            ("/etc/containers/containers.conf", printed.as_str()),
            ("/etc/containers/containers.conf.d/test.conf", IN_A_TEST),
            ("/etc/containers/storage.conf", STORAGE),
        ] {
            fs::write(file, content).expect("a file of the node's own");
        }
        run("podman", &["load", "--quiet", "--input", &image::archive(Path::new("/run/image"))]);
        Podman
    }

    /// A command in one line.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        run("podman", &line.split_whitespace().collect::<Vec<_>>())
    }

    /// Starts a container, with options and a command in one line each.
    #[track_caller]
    fn start(&self, name: &str, options: &str, command: &str) {
        let parent = cgroup_parent();
        self.run(&format!(
            "run --detach --cgroup-parent {parent} --name {name} {options} {IMAGE} {command}"
        ));
    }

    fn wget(&self, container: &str, url: &str) -> Result<String, String> {
        try_run("timeout", &["20", "podman", "exec", container, "wget", "-q", "-O", "-", url])
    }

    /// Panics unless a container gets the page.
    #[track_caller]
    fn gets(&self, container: &str, url: &str, page: &str) {
        gets(url, page, |url| self.wget(container, url));
    }
}

/// The names of a network's plugins, as podman wrote them.
fn plugins(network: &str) -> Vec<String> {
    let list =
        fs::read(format!("{NETWORKS}/{network}.conflist")).expect("podman wrote the network");
    let list: Value = serde_json::from_slice(&list).expect("podman writes JSON");
    let plugins = list["plugins"].as_array().expect("a list has plugins");
    plugins.iter().map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn containers_of_a_network_talk_and_leave_nothing() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        podman.run("network create --ipv6 --subnet 10.90.0.0/24 --subnet fd90::/64 blue");
        assert_eq!(plugins("blue"), ["bridge", "portmap", "firewall", "tuning"]);
        podman.start("server", "--network blue --ip 10.90.0.7", SERVER);
        podman.start("client", "--network blue --mac-address 02:00:00:00:00:99", "sleep 1000");
        podman.gets("client", "http://10.90.0.7/", PAGE);
        let six =
            podman.run("inspect -f {{.NetworkSettings.Networks.blue.GlobalIPv6Address}} server");
        podman.gets("client", &format!("http://[{}]/", six.trim()), PAGE);
        podman.gets("client", PAGE_OUTSIDE.0, PAGE_OUTSIDE.1);
        let link = podman.run("exec client ip link show eth0");
        assert!(link.contains("02:00:00:00:00:99"), "{link}");
        podman.run("restart -t 0 server");
        podman.gets("client", "http://10.90.0.7/", PAGE);
        podman.run("rm -f -t 0 server client");
        // podman makes no DEL for the bridge; it removes it with the network.
        node.is_clean_but(&["cni-podman1"]);
        podman.run("network rm blue");
        node.is_clean_but(&[]);
    });
}

#[test]
fn published_port_is_reached_from_everywhere() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        podman.run("network create --subnet 10.90.0.0/24 blue");
        podman.start("server", "--network blue --publish 8080:80", SERVER);
        podman.start("client", "--network blue", "sleep 1000");
        let url = format!("http://{ADDRESS}:8080/");
        node.gets_outside(&url, PAGE);
        podman.gets("client", &url, PAGE);
        podman.gets("server", &url, PAGE);
        for address in [ADDRESS, "127.0.0.1"] {
            gets(&format!("http://{address}:8080/"), PAGE, wget_here);
        }
        // It is podman's own cleanup process that sends DEL when a container has ended by itself.
        podman.run("kill server");
        podman.run("wait server");
        podman.run("rm -f -t 0 client");
        node.is_clean_but(&["cni-podman1"]);
        assert!(!node.is_served_outside(&url));
        podman.run("start server");
        node.gets_outside(&url, PAGE);
        podman.run("rm -f -t 0 server");
        podman.run("network rm blue");
        node.is_clean_but(&[]);
    });
}

#[test]
fn second_network_comes_and_goes_while_a_container_runs() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        podman.run("network create --internal --subnet 10.90.0.0/24 blue");
        podman.run("network create --internal --subnet 10.91.0.0/24 red");
        podman.start("server", "--network red --ip 10.91.0.7", SERVER);
        podman.start("client", "--network blue", "sleep 1000");
        let url = "http://10.91.0.7/";
        assert!(podman.wget("client", url).is_err(), "networks that are internal do not meet");
        podman.run("network connect red client");
        podman.gets("client", url, PAGE);
        let links = podman.run("exec client ip -o link");
        assert!(links.contains("eth0@") && links.contains("eth1@"), "{links}");
        podman.run("network disconnect red client");
        let links = podman.run("exec client ip -o link");
        assert!(links.contains("eth0@") && !links.contains("eth1@"), "{links}");
        podman.run("rm -f -t 0 server client");
        podman.run("network rm blue red");
        node.is_clean_but(&[]);
    });
}

/// Containers that the Go plugins have connected keep their ports and their neighbours, and ours
/// remove all of it, in iptables too.
#[test]
fn node_changes_over_while_containers_run() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        node.install_go_plugins();
        podman.run("network create --subnet 10.90.0.0/24 blue");
        podman.start("old", "--network blue --ip 10.90.0.7 --publish 8080:80", SERVER);
        let here = Ns::here();
        assert_eq!(elements(&here), Vec::<String>::new(), "it is the work of the Go plugins");
        assert_eq!(chains(&here, "CNI-DN-").len(), 1);
        node.install_ours();
        podman.start("new", "--network blue --publish 8081:80", SERVER);
        podman.gets("new", "http://10.90.0.7/", PAGE);
        for port in ["8080", "8081"] {
            node.gets_outside(&format!("http://{ADDRESS}:{port}/"), PAGE);
        }
        podman.run("rm -f -t 0 old new");
        node.is_clean_but(&["cni-podman1"]);
        assert_eq!(chains(&here, "CNI-DN-"), Vec::<String>::new());
        podman.run("network rm blue");
        node.is_clean_but(&[]);
    });
}
