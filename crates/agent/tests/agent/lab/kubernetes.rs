// SPDX-License-Identifier: Apache-2.0
//! Nodes of a Kubernetes cluster: a real API server, and what others do to node objects.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use agent::status::ConditionKind;
use serde_json::{Value, json};
use testkit::{ApiServer, Node, Pinging, Wire, in_netns, wait_for};

use super::configuration::wait_problem;
use super::underlay::{READDRESS, SOON, follows};
use super::{Agent, Member, Store, TIMEOUT, all_reach_all, network};

const NET_CONF: &str = "net-conf.json";
const PREFIX: &str = "flannel.alpha.coreos.com/";
const V4: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;
const BOTH: &str = r#"{"EnableIPv6": true, "Network": "10.244.0.0/16", "IPv6Network": "fd00:244::/48",
    "Backend": {"Type": "vxlan"}}"#;

/// A cluster whose API server all nodes of the wire reach.
struct Cluster {
    server: ApiServer,
    wire: Wire,
    store: Store,
}

/// Runs a test in a cluster of its own, if there is a server to run.
fn in_cluster(conf: &str, test: impl FnOnce(&Cluster)) {
    let Some(programs) = testkit::kubernetes() else { return };
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let dual_stack = "--feature-gates=IPv6DualStack=true";
        let server = ApiServer::start(&programs, Wire::HOST, &[dual_stack]);
        let write = |name: &str, text: &str| {
            let path = server.dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        mount(server.dir.path(), Some(conf));
        let net_conf = server.dir.path().join(NET_CONF).to_str().unwrap().to_owned();
        let kubeconfig = write("kubeconfig", &server.kubeconfig("admin-token", &server.ca()));
        let paths = ["--kubeconfig-file", &kubeconfig, "--net-config-path", &net_conf];
        let store = Store(Vec::new()).and(&["--kube-subnet-mgr"]).and(&paths);
        test(&Cluster { server, wire, store });
    });
}

/// Mounts a ConfigMap like kubelet: a link to a link, which is replaced.
fn mount(dir: &Path, conf: Option<&str>) {
    let fresh = tempfile::tempdir_in(dir).unwrap().keep();
    if let Some(conf) = conf {
        fs::write(fresh.join(NET_CONF), conf).unwrap();
        let _ = symlink(format!("..data/{NET_CONF}"), dir.join(NET_CONF));
    }
    symlink(fresh.file_name().unwrap(), dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
}

impl Cluster {
    /// Registers a node like kubelet.
    fn register(&self, number: u8) {
        let address = format!("192.168.90.{number}");
        self.server.create(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name(number), "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }));
    }

    /// Assigns a podCIDR like the controller manager.
    fn give(&self, number: u8, cidrs: &[&str]) {
        let spec = json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
        self.server.kubectl(&["patch", "node", &name(number), "-p", &spec.to_string()]);
    }

    fn annotate(&self, number: u8, annotations: &[(&str, &str)]) {
        let pairs: Vec<String> =
            annotations.iter().map(|(key, value)| format!("{PREFIX}{key}={value}")).collect();
        let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
        let words = ["annotate", "--overwrite", "node", &name(number)];
        self.server.kubectl(&[&words[..], &pairs].concat());
    }

    fn annotations(&self, number: u8) -> Value {
        self.server.node(&name(number))["metadata"]["annotations"].take()
    }

    /// Two nodes with pods, of these families.
    fn two_nodes(&self, cidrs: [&[&str]; 2]) -> Vec<Member> {
        for (number, cidrs) in [1, 2].into_iter().zip(cidrs) {
            self.register(number);
            self.give(number, cidrs);
        }
        let has_v6 = cidrs[0].len() == 2;
        let nodes = [1, 2].map(|number| self.wire.node(number, true, has_v6)).into();
        let members = network(nodes, &self.store);
        all_reach_all(&members, TIMEOUT);
        members
    }
}

fn name(number: u8) -> String {
    format!("node-{number}")
}

fn mac(node: &Node, device: &str) -> String {
    let shown = node.ns.ip_json(&["link", "show", device]);
    shown[0]["address"].as_str().unwrap().to_owned()
}

fn mentions(node: &Node, what: &str) -> bool {
    node.kernel().iter().any(|line| line.contains(what))
}

#[test]
fn node_waits_for_pod_cidr_and_writes_annotations() {
    in_cluster(V4, |cluster| {
        let nodes = [1, 2].map(|number| cluster.wire.node(number, true, false));
        let agents = [0, 1].map(|which| Agent::start(&nodes[which], &cluster.store));
        agents[0].wait("the missing node in the problem", |status| {
            let why = status.problems.get(&ConditionKind::Lease);
            why.is_some_and(|why| why.text.contains("the cluster has no node \"node-1\""))
        });
        for number in [1, 2] {
            cluster.register(number);
        }
        for agent in &agents {
            agent.wait("the missing podCIDR in the problem", |status| {
                let is_it = |reason: &String| reason.contains("has no podCIDR yet");
                !status.ready && status.reasons.iter().any(is_it)
            });
        }
        let before = cluster.server.node("node-1");
        assert_eq!(before["metadata"]["annotations"], json!({"node.alpha.kubernetes.io/ttl": "0"}));
        assert_eq!(before["status"]["conditions"], Value::Null);

        cluster.give(1, &["10.244.1.0/24"]);
        agents[0].wait("status.ready of the first node", |status| status.ready);
        assert!(!agents[1].hub.readiness().is_ready);
        cluster.give(2, &["10.244.2.0/24"]);
        let members: Vec<Member> = nodes
            .into_iter()
            .zip(agents)
            .map(|(node, agent)| {
                agent.wait("status.ready with one peer", |status| {
                    status.ready && status.peers.counts.total == 1
                });
                Member { agent: Some(agent), pod: node.pod(), node }
            })
            .collect();
        all_reach_all(&members, TIMEOUT);
        for member in &members {
            check_annotations_and_condition(cluster, &member.node);
        }
    });
}

fn check_annotations_and_condition(cluster: &Cluster, node: &Node) {
    let number = node.number();
    let data = format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, mac(node, "flannel.1"));
    let expected = json!({
        "node.alpha.kubernetes.io/ttl": "0",
        format!("{PREFIX}backend-type"): "vxlan",
        format!("{PREFIX}backend-data"): data,
        format!("{PREFIX}public-ip"): format!("192.168.90.{number}"),
        format!("{PREFIX}kube-subnet-manager"): "true",
    });
    assert_eq!(cluster.annotations(number), expected);
    let is_available = || {
        let conditions = cluster.server.node(&name(number))["status"]["conditions"].take();
        let of_network = |one: &&Value| one["type"] == "NetworkUnavailable";
        let found = conditions.as_array().and_then(|all| all.iter().find(of_network).cloned());
        found.is_some_and(|one| one["status"] == "False")
    };
    wait_for("the NetworkUnavailable condition", TIMEOUT, is_available);
    assert_eq!(node.subnet_env()["FLANNEL_SUBNET"], format!("10.244.{number}.1/24"));
    assert_eq!(node.subnet_env()["FLANNEL_NETWORK"], "10.244.0.0/16");
}

#[test]
fn node_objects_changed_by_others_are_followed() {
    in_cluster(V4, |cluster| {
        let members = cluster.two_nodes([&["10.244.1.0/24"], &["10.244.2.0/24"]]);
        let [first, second] = &members[..] else { panic!("two") };
        let pinging = Pinging::start(&first.pod.ns, second.pod.addresses[0]);
        flannel_node_joins_and_leaves(cluster, first);
        let (sent, answered) = pinging.end();
        assert!(sent - answered <= 1, "{answered} of {sent} came back");
        overwritten_annotations_are_restored(cluster);
        all_reach_all(&members, TIMEOUT);
        recreated_node_gets_its_new_subnet(cluster, members);
    });
}

/// A node with malformed annotations is reported by name and ignored.
fn flannel_node_joins_and_leaves(cluster: &Cluster, first: &Member) {
    let good = ("backend-data", r#"{"VNI":1,"VtepMAC":"46:d8:32:8b:ae:24"}"#);
    cluster.register(3);
    cluster.give(3, &["10.244.3.0/24"]);
    cluster.annotate(
        3,
        &[
            ("backend-type", "vxlan"),
            good,
            ("public-ip", "192.168.90.3"),
            ("kube-subnet-manager", "true"),
        ],
    );
    let is_served = || {
        let wanted = [
            "10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink",
            "10.244.3.0 dev flannel.1 lladdr 46:d8:32:8b:ae:24 PERMANENT",
            "46:d8:32:8b:ae:24 dev flannel.1 dst 192.168.90.3 self permanent",
        ];
        let kernel = first.node.kernel();
        let has = |wanted: &str| kernel.iter().any(|line| line.starts_with(wanted));
        wanted.into_iter().all(has)
    };
    wait_for("the route to flannel's node", TIMEOUT, is_served);
    for bad in [("backend-data", "{"), ("public-ip", "somewhere")] {
        cluster.annotate(3, &[bad]);
        first.agent().wait("the reported conflict", |status| {
            let of_it = |one: &agent::status::RejectedPeerStatus| {
                one.peer == "node-3" && one.reason.contains(bad.0) && one.reason.contains(bad.1)
            };
            status.ready && status.peers.rejected.iter().any(of_it)
        });
        assert!(!mentions(&first.node, "10.244.3."), "{:#?}", first.node.kernel());
        cluster.annotate(3, &[good, ("public-ip", "192.168.90.3")]);
        wait_for("the route to flannel's node", TIMEOUT, is_served);
        first
            .agent()
            .wait("an empty list of rejected peers", |status| status.peers.rejected.is_empty());
    }
    control_characters_of_annotations_are_escaped(cluster, first);
    cluster.server.kubectl(&["delete", "node", "node-3", "--wait=false"]);
    wait_for("removal of its routes", TIMEOUT, || !mentions(&first.node, "10.244.3."));
}

fn control_characters_of_annotations_are_escaped(cluster: &Cluster, first: &Member) {
    let evil = "vxlan\u{1b}[31m\u{9b}2J\u{202e}\nready";
    cluster.annotate(3, &[("backend-type", evil)]);
    first.agent().wait("the rejected peer", |status| {
        status.peers.rejected.iter().any(|one| one.peer == "node-3")
    });
    let socket = first.node.dir().join("run/agent.sock").to_str().unwrap().to_owned();
    for page in ["/readyz", "/status", "/peers", "/metrics"] {
        let shown = testkit::run(
            "curl",
            &["-sS", "--unix-socket", &socket, &format!("http://agent{page}")],
        );
        let is_active = |letter: char| {
            letter != '\n' && letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}')
        };
        assert!(!shown.contains(is_active), "{page}: {shown:?}");
        assert!(shown.lines().all(|line| line != "ready" || page == "/readyz"), "{shown:?}");
    }
}

fn overwritten_annotations_are_restored(cluster: &Cluster) {
    let before = cluster.annotations(2);
    let wrong = [
        ("backend-data", r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}"#),
        ("public-ip", "192.168.90.99"),
        ("backend-type", "host-gw"),
    ];
    for one in wrong {
        cluster.annotate(2, &[one]);
        wait_for("the restored annotations", TIMEOUT, || cluster.annotations(2) == before);
    }
}

/// The node waits while pods of its old subnet exist.
fn recreated_node_gets_its_new_subnet(cluster: &Cluster, mut members: Vec<Member>) {
    let Member { agent, pod, node } = members.pop().unwrap();
    let agent = agent.unwrap();
    cluster.server.kubectl(&["delete", "node", "node-2", "--wait=false"]);
    wait_for("removal of its routes", TIMEOUT, || !mentions(&members[0].node, "10.244.2."));
    agent.wait("the reported failure", |status| {
        let is_it = |reason: &String| reason.contains("the cluster has no node \"node-2\"");
        !status.ready && status.reasons.iter().any(is_it)
    });
    cluster.register(2);
    cluster.give(2, &["10.244.22.0/24"]);
    let is_new = || node.subnet_env()["FLANNEL_SUBNET"] == "10.244.22.1/24";
    agent.wait("the name of the old pod", |status| {
        let is_it = |reason: &String| reason.contains("Attached to cni0: interface veth0");
        !status.ready && is_new() && status.reasons.iter().any(is_it)
    });
    drop(pod);
    agent.wait("status.ready with the new subnet", |status| status.ready && is_new());
    assert!(!node.sh("ip address show dev cni0").contains("10.244.2.1/24"));
    node.sh("ip link del cni0");
    members.push(Member { agent: Some(agent), pod: node.pod(), node });
    all_reach_all(&members, TIMEOUT);
}

/// The connection to the API server is lost with the address.
#[test]
fn changed_node_address_is_published() {
    in_cluster(V4, |cluster| {
        let members = cluster.two_nodes([&["10.244.1.0/24"], &["10.244.2.0/24"]]);
        let pinging = Pinging::start(&members[0].pod.ns, members[1].pod.addresses[0]);
        let answers = pinging.answers();
        follows(&members, READDRESS, "192.168.90.101");
        let silence = pinging.longest_silence(answers);
        assert!(silence < SOON, "no packet got through for {silence:?}");
        assert_eq!(cluster.annotations(1)[format!("{PREFIX}public-ip")], "192.168.90.101");
    });
}

#[test]
fn configuration_file_change_is_followed() {
    in_cluster(V4, |cluster| {
        let node = cluster.wire.node(1, true, false);
        cluster.register(1);
        cluster.give(1, &["10.244.1.0/24"]);
        let agent = Agent::start(&node, &cluster.store);
        agent.wait("status.ready", |status| status.ready);
        let dir = cluster.server.dir.path();
        let with_vni = |vni: &str| V4.replace("\"vxlan\"", &format!("\"vxlan\", \"VNI\": {vni}"));
        let changes_over = |device: &str| {
            let is_there = || node.sh("ip -br link").contains(device);
            wait_for(device, SOON, is_there);
            agent.wait("status.ready without problems", |status| {
                status.ready && status.problems.is_empty()
            });
        };
        mount(dir, Some(&with_vni("7")));
        changes_over("flannel.7");
        mount(dir, Some(&with_vni("-1")));
        wait_problem(&agent, &["VNI", "-1", "stays in force"]);
        mount(dir, None);
        wait_problem(&agent, &[NET_CONF, "is not there", "stays in force"]);
        mount(dir, Some(&with_vni("8")));
        changes_over("flannel.8");
        fs::remove_file(dir.join(NET_CONF)).unwrap();
        fs::write(dir.join(NET_CONF), with_vni("9")).unwrap();
        changes_over("flannel.9");
    });
}

/// Like flanneld without NODE_NAME.
#[test]
fn node_name_comes_from_the_pod() {
    in_cluster(V4, |cluster| {
        let node = cluster.wire.node(1, true, false);
        cluster.register(1);
        cluster.give(1, &["10.244.1.0/24"]);
        cluster.server.kubectl(&["create", "namespace", "kube-podwire"]);
        cluster.server.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "podwire-x", "namespace": "kube-podwire"},
            "spec": {"nodeName": "node-1", "containers": [{"name": "a", "image": "a"}]},
        }));
        let flags = [&node.flags()[2..], &cluster.store.0].concat();
        let pod = [("POD_NAME", "podwire-x"), ("POD_NAMESPACE", "kube-podwire")];
        let agent = Agent::start_with(&flags, &node, &pod);
        agent.wait("status.ready with the node's name", |status| {
            status.ready && status.agent.node == "node-1"
        });
        check_annotations_and_condition(cluster, &node);
    });
}

#[test]
fn both_families_get_their_pod_cidrs() {
    in_cluster(BOTH, |cluster| {
        let cidrs: [&[&str]; 2] =
            [&["10.244.1.0/24", "fd00:244:0:1::/64"], &["fd00:244:0:2::/64", "10.244.2.0/24"]];
        let members = cluster.two_nodes(cidrs);
        for Member { node, .. } in &members {
            let number = node.number();
            let data = |device| format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, mac(node, device));
            let expected = json!({
                "node.alpha.kubernetes.io/ttl": "0",
                format!("{PREFIX}backend-type"): "vxlan",
                format!("{PREFIX}backend-data"): data("flannel.1"),
                format!("{PREFIX}backend-v6-data"): data("flannel-v6.1"),
                format!("{PREFIX}public-ip"): format!("192.168.90.{number}"),
                format!("{PREFIX}public-ipv6"): format!("fd00:90::{number}"),
                format!("{PREFIX}kube-subnet-manager"): "true",
            });
            assert_eq!(cluster.annotations(number), expected);
            let env = node.subnet_env();
            assert_eq!(env["FLANNEL_SUBNET"], format!("10.244.{number}.1/24"));
            assert_eq!(env["FLANNEL_IPV6_SUBNET"], format!("fd00:244:0:{number}::1/64"));
        }
    });
}

/// An agent that starts while the API server is unreachable uses the cache of the previous one.
#[test]
fn agent_starts_from_cache_without_the_server() {
    in_cluster(V4, |cluster| {
        let mut members = cluster.two_nodes([&["10.244.1.0/24"], &["10.244.2.0/24"]]);
        let view = members[0].node.dir().join("state/podwire.view");
        let is_noted = |what: &str| fs::read_to_string(&view).is_ok_and(|text| text.contains(what));
        wait_for("the written cache", TIMEOUT * 3, || {
            is_noted("10.244.1.0/24") && is_noted("192.168.90.2")
        });
        drop(members[0].agent.take());
        members[0].node.sh("ip link del flannel.1; ip route add blackhole 192.168.90.254");
        members[0].agent = Some(Agent::start(&members[0].node, &cluster.store));
        members[0].agent().wait("status.ready from the cache", |status| {
            status.ready
                && status.store.reachable == Some(false)
                && status.membership.lease_until.is_none()
        });
        all_reach_all(&members, TIMEOUT);
        members[0].node.sh("ip route del blackhole 192.168.90.254");
        members[0].agent().wait("the store to be reachable", |status| {
            status.ready && status.store.reachable == Some(true) && status.warnings.is_empty()
        });
        all_reach_all(&members, TIMEOUT);
    });
}
