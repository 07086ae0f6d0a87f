// SPDX-License-Identifier: Apache-2.0
//! Calls the plugins like Nomad does for a group with network mode `bridge`: with Nomad's plugin
//! list, its iptables chain and its ports. Nomad itself is not used because Debian has no package
//! for it.

use cni::Host;
use cni::runtime::{Container, NetworkList, Runtime};
use serde_json::{Value, json};
use testkit::{Ns, in_node, require, run};

use super::image::{self, PAGE};
use super::node::{ADDRESS, Node, PAGE_OUTSIDE, assert_gets};

/// Nomad passes the interface name `eth0` to loopback too. The Go plugin ignores the second
/// firewall because it does not know the backend name `ip6tables`.
fn network() -> Value {
    json!({"cniVersion": "0.4.0", "name": "nomad", "plugins": [
        {"type": "loopback"},
        {"type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true,
         "forceAddress": true, "hairpinMode": false,
         "ipam": {"type": "host-local",
                  "ranges": [[{"subnet": "172.26.64.0/20"}], [{"subnet": "fd00::/8"}]],
                  "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
        {"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"},
        {"type": "firewall", "backend": "ip6tables", "iptablesAdminChainName": "NOMAD-ADMIN"},
        {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]})
}

fn allocation(ns: &Ns) -> Container {
    let port = |protocol: &str| json!({"hostPort": 8080, "containerPort": 80, "protocol": protocol, "hostIP": ADDRESS});
    let ports = json!({"portMappings": [port("tcp"), port("udp")]});
    Container {
        id: "3a4c7f1e-5d1b-9f0a-2b6c-1f2e3d4c5b6a".to_owned(),
        netns: ns.path().display().to_string(),
        ifname: "eth0".to_owned(),
        args: vec![("IgnoreUnknown".to_owned(), "true".to_owned())],
        capability_args: ports.as_object().cloned().expect("an object"),
    }
}

/// Prepares iptables like Nomad does before each allocation. The FORWARD chain drops packets that
/// no rule accepts.
fn prepare_iptables() {
    for (program, subnet) in [("iptables", "172.26.64.0/20"), ("ip6tables", "fd00::/8")] {
        run(program, &["-P", "FORWARD", "DROP"]);
        run(program, &["-N", "NOMAD-ADMIN"]);
        run(program, &["-A", "NOMAD-ADMIN", "-o", "nomad", "-d", subnet, "-j", "ACCEPT"]);
    }
}

/// Rules of both families that contain one of these addresses.
fn rules_about(addresses: &[String]) -> Vec<String> {
    let saved = ["iptables-save", "ip6tables-save"].map(|program| run(program, &[])).concat();
    let about =
        |line: &&str| addresses.iter().any(|address| line.contains(&format!(" {address}/")));
    saved.lines().filter(about).map(str::to_owned).collect()
}

#[test]
fn nomad_allocation_connects_and_del_removes_it() {
    in_node(|| {
        require!(Program("iptables"), Program("ip6tables"));
        let node = Node::new();
        prepare_iptables();
        image::archive("/run/image".as_ref());
        let list =
            NetworkList::parse(network().to_string().as_bytes(), None).expect("the list is valid");
        let no_builtin_plugins = Host::of_this_program(&[]);
        let runtime = Runtime::new(&no_builtin_plugins, "/opt/cni/bin");
        let ns = Ns::new("alloc");
        let container = allocation(&ns);
        let result = runtime.add(&list, &container).expect("ADD");
        runtime.check(&list, &container).expect("CHECK");
        let addresses: Vec<String> =
            result.ips.iter().map(|ip| ip.address.addr().to_string()).collect();
        assert_eq!(addresses, ["172.26.64.2", "fd00::2"]);
        assert!(!rules_about(&addresses).is_empty(), "the iptables backend wrote no rules");
        assert!(ns.ip(&["addr", "show", "lo"]).contains("LOOPBACK,UP"));
        let server = ns.start("busybox", &["httpd", "-f", "-p", "80", "-h", "/run/image/root/www"]);
        node.assert_outside_gets(&format!("http://{ADDRESS}:8080/"), PAGE);
        let wget =
            |url: &str| ns.try_exec("timeout", &["5", "busybox", "wget", "-q", "-O", "-", url]);
        assert_gets(PAGE_OUTSIDE.0, PAGE_OUTSIDE.1, wget);
        runtime.del(&list, &container).expect("DEL");
        runtime.del(&list, &container).expect("second DEL");
        drop((server, ns));
        assert_eq!(rules_about(&addresses), Vec::<String>::new());
        node.assert_clean_except(&["nomad"]);
    });
}
