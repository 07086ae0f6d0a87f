// SPDX-License-Identifier: Apache-2.0
//! What Services need of a node, as docs/kubernetes.md says: bridge netfilter. A rule of nf_tables stands for
//! kube-proxy.

use std::fs;

use overlay::netconf::NetConf;
use testkit::{Ns, in_netns, wait_for};

use super::TIMEOUT;

const PAGE: &str = include_str!("../../../../../docs/kubernetes.md");

/// A Service of each family whose pod is 10.244.1.3.
const NODE: &str = "
ip link set lo up
ip link add cni0 address 02:00:00:00:00:01 type bridge
ip link set cni0 up
ip address add 10.244.1.1/24 dev cni0
ip address add fd00:244:0:1::1/64 dev cni0 nodad
nft -f - <<END
table inet service {
    chain to {
        type nat hook prerouting priority dstnat;
        ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.244.1.3:8080
        ip6 daddr fd00:96::10 tcp dport 80 dnat ip6 to [fd00:244:0:1::3]:8080
    }
}
END";

fn pod(host: &Ns, number: u8) -> Ns {
    let pod = Ns::new(&format!("pod-{number}"));
    host.connect(&format!("veth{number}"), &pod, "eth0");
    host.ip(&["link", "set", &format!("veth{number}"), "master", "cni0"]);
    pod.exec(
        "sh",
        &[
            "-ec",
            &format!(
                "ip link set lo up
                ip address add 10.244.1.{number}/24 dev eth0
                ip address add fd00:244:0:1::{number}/64 dev eth0 nodad
                ip route add default via 10.244.1.1
                ip route add default via fd00:244:0:1::1"
            ),
        ],
    );
    pod
}

/// The settings that the page asks for.
fn settings() -> Vec<(String, &'static str)> {
    let lines = PAGE.lines().filter(|line| line.starts_with("net."));
    let settings = lines.filter_map(|line| line.split_once(" = "));
    settings.map(|(key, value)| (key.replace('.', "/"), value)).collect()
}

fn set(key: &str, value: &str) {
    fs::write(format!("/proc/sys/{key}"), value).unwrap_or_else(|error| panic!("{key}: {error}"));
}

#[test]
fn pods_of_one_node_need_bridge_netfilter() {
    in_netns(|| {
        testkit::require!(Program("nft"), Program("socat"));
        let settings = settings();
        assert_eq!(settings.len(), 4, "{settings:?}");
        let host = Ns::here();
        settings.iter().for_each(|(key, value)| set(key, value));
        host.exec("sh", &["-ec", NODE]);
        let (client, server) = (pod(&host, 2), pod(&host, 3));
        let _server = server
            .start("socat", &["TCP6-LISTEN:8080,fork,reuseaddr,ipv6-v6only=0", "EXEC:echo hello"]);
        let answers = |address: &str| {
            let to = format!("{address},connect-timeout=1");
            client.try_exec("socat", &["-u", &to, "-"]).is_ok_and(|text| text.contains("hello"))
        };
        for [pod, service, setting] in [
            ["TCP4:10.244.1.3:8080", "TCP4:10.96.0.10:80", "bridge-nf-call-iptables"],
            ["TCP6:[fd00:244:0:1::3]:8080", "TCP6:[fd00:96::10]:80", "bridge-nf-call-ip6tables"],
        ] {
            wait_for("an answer of the pod", TIMEOUT, || answers(pod));
            wait_for("an answer of the Service", TIMEOUT, || answers(service));
            set(&format!("net/bridge/{setting}"), "0");
            assert!(!answers(service), "{setting} is needed");
            assert!(answers(pod));
        }
    });
}

#[test]
fn docs_configuration_of_both_families_works() {
    let block = PAGE.split("```\n").find(|block| block.contains("\"IPv6Network\"")).unwrap();
    let conf = NetConf::parse(block).unwrap();
    let networks: Vec<String> = conf.networks.iter().map(|net| net.to_string()).collect();
    assert_eq!(networks, ["10.244.0.0/16", "fd00:244::/56"]);
    assert!(PAGE.contains(&format!("--pod-network-cidr={}", networks.join(","))));
    assert_eq!(conf.backend.name(), "vxlan");
}
