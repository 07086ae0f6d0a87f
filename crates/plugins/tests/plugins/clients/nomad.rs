// SPDX-License-Identifier: Apache-2.0
//! What Nomad asks of plugins for a group with its network `bridge`, without Nomad, which no package
//! of Debian's has: its list of plugins, its chain of iptables, its ports.

use cni::Host;
use cni::runtime::{Container, NetworkList, Runtime};
use serde_json::{Value, json};
use testkit::{Ns, in_node, require, run};

use super::image::{self, PAGE};
use super::node::{ADDRESS, Node, PAGE_OUTSIDE, gets};

/// loopback comes first and is told the interface `eth0`, as all are; the second firewall has a name
/// that the Go plugin does not know and passes over.
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

/// As Nomad does before each allocation. Nothing is forwarded but what a rule lets pass.
fn prepare_iptables() {
    for (program, subnet) in [("iptables", "172.26.64.0/20"), ("ip6tables", "fd00::/8")] {
        run(program, &["-P", "FORWARD", "DROP"]);
        run(program, &["-N", "NOMAD-ADMIN"]);
        run(program, &["-A", "NOMAD-ADMIN", "-o", "nomad", "-d", subnet, "-j", "ACCEPT"]);
    }
}

/// The rules of both families, by address.
fn rules_about(addresses: &[String]) -> Vec<String> {
    let saved = ["iptables-save", "ip6tables-save"].map(|program| run(program, &[])).concat();
    let about =
        |line: &&str| addresses.iter().any(|address| line.contains(&format!(" {address}/")));
    saved.lines().filter(about).map(str::to_owned).collect()
}

#[test]
fn network_of_nomad_works_and_leaves_nothing() {
    in_node(|| {
        require!(Program("iptables"), Program("ip6tables"));
        let node = Node::new();
        prepare_iptables();
        image::archive("/run/image".as_ref());
        let list = NetworkList::parse(network().to_string().as_bytes(), None).expect("it is valid");
        let stranger = Host::of_this_program(&[]);
        let runtime = Runtime::new(&stranger, "/opt/cni/bin");
        let ns = Ns::new("alloc");
        let container = allocation(&ns);
        let result = runtime.add(&list, &container).expect("ADD");
        runtime.check(&list, &container).expect("CHECK");
        let addresses: Vec<String> =
            result.ips.iter().map(|ip| ip.address.addr().to_string()).collect();
        assert_eq!(addresses, ["172.26.64.2", "fd00::2"]);
        assert!(!rules_about(&addresses).is_empty(), "the backend is iptables");
        assert!(ns.ip(&["addr", "show", "lo"]).contains("LOOPBACK,UP"));
        let server = ns.start("busybox", &["httpd", "-f", "-p", "80", "-h", "/run/image/root/www"]);
        node.gets_outside(&format!("http://{ADDRESS}:8080/"), PAGE);
        let wget =
            |url: &str| ns.try_exec("timeout", &["5", "busybox", "wget", "-q", "-O", "-", url]);
        gets(PAGE_OUTSIDE.0, PAGE_OUTSIDE.1, wget);
        runtime.del(&list, &container).expect("DEL");
        runtime.del(&list, &container).expect("DEL once more");
        drop((server, ns));
        assert_eq!(rules_about(&addresses), Vec::<String>::new());
        node.is_clean_but(&["nomad"]);
    });
}
