// SPDX-License-Identifier: Apache-2.0
//! podman with its CNI backend. `podman network create` writes bridge, portmap, firewall and tuning
//! at version 0.4.0. Before each operation podman calls VERSION of every plugin of every network.

use std::fs;
use std::path::Path;

use serde_json::Value;
use testkit::{Ns, cgroup_parent, in_node, require, run, try_run};

use super::image::{self, IMAGE, PAGE, SERVER};
use super::node::{ADDRESS, NETWORKS, Node, PAGE_OUTSIDE, assert_gets, wget_here};
use crate::docs;
use crate::rules::{chains, elements};

/// Settings for a test node in addition to docs/clients.md: no systemd, no registry, and resource
/// limits that a container can have without raising its own.
const TEST_SETTINGS: &str = r#"
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
        fs::create_dir_all(drop_in).expect("create a directory on the node");
        let printed = docs::of_clients("toml", "# /etc/containers/containers.conf");
        for (file, content) in [
            ("/etc/containers/containers.conf", printed.as_str()),
            ("/etc/containers/containers.conf.d/test.conf", TEST_SETTINGS),
            ("/etc/containers/storage.conf", STORAGE),
        ] {
            fs::write(file, content).expect("write a file on the node");
        }
        run("podman", &["load", "--quiet", "--input", &image::archive(Path::new("/run/image"))]);
        Podman
    }

    /// Runs a podman command line, split at spaces.
    #[track_caller]
    fn run(&self, line: &str) -> String {
        run("podman", &line.split_whitespace().collect::<Vec<_>>())
    }

    /// Starts a container; `options` and `command` are split at spaces.
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

    /// Panics unless the container can fetch the page.
    #[track_caller]
    fn assert_gets(&self, container: &str, url: &str, page: &str) {
        assert_gets(url, page, |url| self.wget(container, url));
    }
}

/// Plugin types in the network configuration written by podman.
fn plugins(network: &str) -> Vec<String> {
    let list =
        fs::read(format!("{NETWORKS}/{network}.conflist")).expect("podman wrote the network");
    let list: Value = serde_json::from_slice(&list).expect("podman writes JSON");
    let plugins = list["plugins"].as_array().expect("a list has plugins");
    plugins.iter().map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn podman_network_connects_and_rm_removes_it() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        podman.run("network create --ipv6 --subnet 10.90.0.0/24 --subnet fd90::/64 blue");
        assert_eq!(plugins("blue"), ["bridge", "portmap", "firewall", "tuning"]);
        podman.start("server", "--network blue --ip 10.90.0.7", SERVER);
        podman.start("client", "--network blue --mac-address 02:00:00:00:00:99", "sleep 1000");
        podman.assert_gets("client", "http://10.90.0.7/", PAGE);
        let six =
            podman.run("inspect -f {{.NetworkSettings.Networks.blue.GlobalIPv6Address}} server");
        podman.assert_gets("client", &format!("http://[{}]/", six.trim()), PAGE);
        podman.assert_gets("client", PAGE_OUTSIDE.0, PAGE_OUTSIDE.1);
        let link = podman.run("exec client ip link show eth0");
        assert!(link.contains("02:00:00:00:00:99"), "{link}");
        podman.run("restart -t 0 server");
        podman.assert_gets("client", "http://10.90.0.7/", PAGE);
        podman.run("rm -f -t 0 server client");
        // podman sends no DEL for the bridge; it removes the bridge with the network.
        node.assert_clean_except(&["cni-podman1"]);
        podman.run("network rm blue");
        node.assert_clean_except(&[]);
    });
}

#[test]
fn podman_published_port_is_reachable_from_anywhere() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        podman.run("network create --subnet 10.90.0.0/24 blue");
        podman.start("server", "--network blue --publish 8080:80", SERVER);
        podman.start("client", "--network blue", "sleep 1000");
        let url = format!("http://{ADDRESS}:8080/");
        node.assert_outside_gets(&url, PAGE);
        podman.assert_gets("client", &url, PAGE);
        podman.assert_gets("server", &url, PAGE);
        for address in [ADDRESS, "127.0.0.1"] {
            assert_gets(&format!("http://{address}:8080/"), PAGE, wget_here);
        }
        // When a container exits by itself, podman's cleanup process sends DEL.
        podman.run("kill server");
        podman.run("wait server");
        podman.run("rm -f -t 0 client");
        node.assert_clean_except(&["cni-podman1"]);
        assert!(!node.is_served_outside(&url));
        podman.run("start server");
        node.assert_outside_gets(&url, PAGE);
        podman.run("rm -f -t 0 server");
        podman.run("network rm blue");
        node.assert_clean_except(&[]);
    });
}

#[test]
fn podman_network_connects_to_running_container() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        podman.run("network create --internal --subnet 10.90.0.0/24 blue");
        podman.run("network create --internal --subnet 10.91.0.0/24 red");
        podman.start("server", "--network red --ip 10.91.0.7", SERVER);
        podman.start("client", "--network blue", "sleep 1000");
        let url = "http://10.91.0.7/";
        assert!(podman.wget("client", url).is_err(), "internal networks can reach each other");
        podman.run("network connect red client");
        podman.assert_gets("client", url, PAGE);
        let links = podman.run("exec client ip -o link");
        assert!(links.contains("eth0@") && links.contains("eth1@"), "{links}");
        podman.run("network disconnect red client");
        let links = podman.run("exec client ip -o link");
        assert!(links.contains("eth0@") && !links.contains("eth1@"), "{links}");
        podman.run("rm -f -t 0 server client");
        podman.run("network rm blue red");
        node.assert_clean_except(&[]);
    });
}

/// Containers connected by the Go plugins stay reachable after the switch to podwire, and podwire
/// removes everything they created, including iptables rules.
#[test]
fn podman_switched_to_podwire_keeps_go_containers() {
    in_node(|| {
        let (node, podman) = (Node::new(), Podman::new());
        node.install_go_plugins();
        podman.run("network create --subnet 10.90.0.0/24 blue");
        podman.start("old", "--network blue --ip 10.90.0.7 --publish 8080:80", SERVER);
        let here = Ns::here();
        assert_eq!(
            elements(&here),
            Vec::<String>::new(),
            "podwire elements exist before the switch"
        );
        assert_eq!(chains(&here, "CNI-DN-").len(), 1);
        node.install_ours();
        podman.start("new", "--network blue --publish 8081:80", SERVER);
        podman.assert_gets("new", "http://10.90.0.7/", PAGE);
        for port in ["8080", "8081"] {
            node.assert_outside_gets(&format!("http://{ADDRESS}:{port}/"), PAGE);
        }
        podman.run("rm -f -t 0 old new");
        node.assert_clean_except(&["cni-podman1"]);
        assert_eq!(chains(&here, "CNI-DN-"), Vec::<String>::new());
        podman.run("network rm blue");
        node.assert_clean_except(&[]);
    });
}
