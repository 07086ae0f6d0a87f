// SPDX-License-Identifier: Apache-2.0
//! Routed pods with Kubernetes as the store: a real API server with Calico's custom resources.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use agent::status::ConditionKind;
use agent_client::ipam::{self, Error, Pod, PodInfo, pod_path};
use serde_json::{Value, json};
use testkit::{ApiServer, Node, Wire, in_netns, wait_for};

use super::routed::{assign, check_pods, release_from, socket, start, try_assign_to};
use super::{Agent, Store, TIMEOUT};

const GROUP: &str = "/apis/crd.projectcalico.org/v1";

/// A cluster whose API server all nodes of the wire reach.
struct Cluster {
    server: ApiServer,
    wire: Wire,
    store: Store,
}

/// Runs a test in a cluster of its own, if there is a server to run.
fn in_cluster(test: impl FnOnce(&mut Cluster)) {
    let Some(programs) = testkit::kubernetes() else { return };
    in_netns(|| {
        testkit::require!(Link("vxlan"));
        let wire = Wire::new();
        let server = ApiServer::start(&programs, Wire::HOST, &[]);
        let kubeconfig = server.dir.path().join("kubeconfig");
        fs::write(&kubeconfig, server.kubeconfig("admin-token", &server.ca())).unwrap();
        let kubeconfig = kubeconfig.to_str().unwrap();
        let store = Store(Vec::new()).and(&["--store", "kubernetes", "--pods", "routed"]);
        let store = store.and(&["--kubeconfig-file", kubeconfig]);
        test(&mut Cluster { server, wire, store });
    });
}

impl Cluster {
    fn apply_definitions(&self) {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = package.join("../../deploy/kubernetes/calico-crds.yaml");
        // The server answers before it knows all groups.
        let apply = ["apply", "-f", file.to_str().unwrap()];
        wait_for("the definitions", TIMEOUT, || self.server.try_kubectl(&apply).is_ok());
        self.server.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    }

    /// Registers a node like kubelet.
    fn register(&self, number: u8, annotations: &Value) {
        self.server.create(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": format!("node-{number}"), "annotations": annotations,
                "labels": {"zone": format!("z{number}")},
            },
            "status": {"addresses": [
                {"type": "InternalIP", "address": format!("192.168.90.{number}")},
            ]},
        }));
    }

    /// Two registered nodes.
    fn two_nodes(&self) -> [Node; 2] {
        self.apply_definitions();
        [1, 2].map(|number| {
            self.register(number, &json!({}));
            self.wire.node(number, true, false)
        })
    }

    fn custom(&self, path: &str) -> Value {
        self.server.object(&format!("{GROUP}/{path}"))
    }

    fn items(&self, plural: &str) -> Vec<Value> {
        self.custom(plural)["items"].as_array().unwrap().clone()
    }

    /// After a start the server answers before it knows all kinds.
    fn create_custom(&self, kind: &str, name: &str, spec: &Value) {
        wait_for("the server to know its kinds", TIMEOUT, || {
            match self.try_create_custom(kind, name, spec) {
                Err(error) if error.contains("no matches for kind") => false,
                Err(error) => panic!("{kind} {name}: {error}"),
                Ok(_) => true,
            }
        });
    }

    /// kubectl itself refuses `null` in a list.
    fn try_create_custom(&self, kind: &str, name: &str, spec: &Value) -> Result<String, String> {
        let file = self.server.dir.path().join("custom.json");
        fs::write(&file, calico(kind, name, spec).to_string()).unwrap();
        let file = file.to_str().unwrap();
        self.server.try_kubectl(&["create", "--validate=false", "-f", file])
    }

    /// Returns the number of open watches of a kind.
    fn watches(&self, plural: &str) -> u64 {
        let metrics = self.server.kubectl(&["get", "--raw", "/metrics"]);
        let of_kind = metrics.lines().filter(|line| {
            line.starts_with("apiserver_longrunning_")
                && line.contains(&format!("resource=\"{plural}\""))
                && line.contains("verb=\"WATCH\"")
        });
        of_kind.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    fn pool(&self, name: &str, cidr: &str, more: &Value) {
        let mut spec = json!({"cidr": cidr, "vxlanMode": "Always", "nodeSelector": "all()"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create_custom("IPPool", name, &spec);
    }

    fn namespace(&self, name: &str, labels: &Value, annotations: &Value) {
        self.server.create(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
        }));
    }

    /// Creates a pod of the first node, and returns it with its UID.
    fn create_pod(&self, namespace: &str, name: &str, annotations: &Value) -> Pod {
        self.server.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {"nodeName": "node-1", "containers": [{"name": "a", "image": "a"}]},
        }));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let uid = self.server.object(&path)["metadata"]["uid"].as_str().unwrap().to_owned();
        Pod { namespace: namespace.to_owned(), name: name.to_owned(), uid }
    }
}

/// An object as Calico writes it.
fn calico(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": kind,
        "metadata": {
            "name": name, "annotations": {"projectcalico.org/metadata": "{\"creationTimestamp\":null}"},
        },
        "spec": spec,
    })
}

fn pools(value: &str) -> Value {
    json!({"cni.projectcalico.org/ipv4pools": format!("[{value:?}]")})
}

#[track_caller]
fn assign_to(node: &Node, container: &str, pod: &Pod) -> String {
    try_assign_to(node, container, false, Some(pod.clone())).unwrap()[0].to_string()
}

#[test]
fn routed_pods_of_a_cluster_reach_each_other() {
    in_cluster(|cluster| {
        let nodes = cluster.two_nodes();
        let store = cluster.store.and(&["--pool-cidr", "10.6.0.0/16"]);
        let _agents = start(&nodes, &store);
        check_pods(&nodes, false);
        check_objects(cluster);
        for number in [1, 2] {
            wait_for("the NetworkUnavailable condition", TIMEOUT, || {
                let node = cluster.server.node(&format!("node-{number}"));
                let conditions = node["status"]["conditions"].as_array().cloned();
                let is_it =
                    |one: &Value| one["type"] == "NetworkUnavailable" && one["status"] == "False";
                conditions.is_some_and(|all| all.iter().any(is_it))
            });
        }
    });
}

/// Calico finds blocks by their names, and affinities by their labels.
fn check_objects(cluster: &Cluster) {
    let pool = cluster.custom("ippools/default-ipv4-ippool");
    assert_eq!(pool["spec"]["vxlanMode"], "Always");
    wait_for("the handle", TIMEOUT, || {
        let handles = cluster.items("ipamhandles");
        let of_pod = |one: &&Value| one["metadata"]["name"] == "pods.c1";
        handles.iter().find(of_pod).is_some_and(|one| one["spec"]["handleID"] == "pods.c1")
    });
    let blocks = cluster.items("ipamblocks");
    assert_eq!(blocks.len(), 2, "{blocks:#?}");
    for block in blocks {
        let spec = &block["spec"];
        let name = spec["cidr"].as_str().unwrap().replace(['.', '/'], "-");
        assert_eq!(block["metadata"]["name"], name);
        let metadata = &block["metadata"]["annotations"]["projectcalico.org/metadata"];
        assert_eq!(metadata, "{\"creationTimestamp\":null}");
        let node = spec["affinity"].as_str().unwrap().strip_prefix("host:").unwrap();
        let affinity = cluster.custom(&format!("blockaffinities/{node}-{name}"));
        let expected = json!({"cidr": spec["cidr"], "node": node, "state": "confirmed",
            "type": "host", "deleted": "false"});
        assert_eq!(affinity["spec"], expected);
        assert_eq!(affinity["metadata"]["labels"]["projectcalico.org/affinity-type"], "host");
        let number = node.strip_prefix("node-").unwrap();
        let annotations = cluster.server.node(node)["metadata"]["annotations"].take();
        let address = format!("192.168.90.{number}/24");
        assert_eq!(annotations["projectcalico.org/IPv4Address"], address);
        let tunnel = annotations["projectcalico.org/IPv4VXLANTunnelAddr"].as_str().unwrap();
        let index = allocation(spec, tunnel).unwrap();
        let attribute = &spec["attributes"][usize::try_from(index).unwrap()];
        assert_eq!(attribute["handle_id"], format!("vxlan-tunnel-addr-{node}"));
    }
}

/// Returns the index of the attribute of an address in a block.
fn allocation(spec: &Value, address: &str) -> Option<u64> {
    let first: IpAddr = spec["cidr"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
    let (IpAddr::V4(first), IpAddr::V4(address)) = (first, address.parse().unwrap()) else {
        panic!("IPv4");
    };
    let ordinal = u32::from(address).checked_sub(u32::from(first))?;
    spec["allocations"][usize::try_from(ordinal).unwrap()].as_u64()
}

#[test]
fn missing_definitions_and_missing_node_are_named() {
    in_cluster(|cluster| {
        let node = cluster.wire.node(1, true, false);
        let store = cluster.store.and(&["--pool-cidr", "10.6.0.0/16"]);
        let agent = Agent::start(&node, &store);
        let waits_for = |kind: ConditionKind, words: &str| {
            agent.wait(words, |status| {
                let problem = status.problems.get(&kind);
                !status.ready && problem.is_some_and(|problem| problem.text.contains(words))
            });
        };
        waits_for(ConditionKind::Underlay, "the cluster has no node \"node-1\"");
        cluster.register(1, &json!({}));
        waits_for(ConditionKind::Store, "calico-crds.yaml");
        cluster.apply_definitions();
        agent.wait("status.ready", |status| status.ready && status.problems.is_empty());
        assert_eq!(assign(&node, "c1", false).len(), 1);
        // Without the object others would take the blocks of this node for those of a departed node.
        cluster.server.kubectl(&["delete", "node", "node-1", "--wait=false"]);
        waits_for(ConditionKind::Lease, "the cluster has no node \"node-1\"");
    });
}

#[test]
fn pools_follow_from_annotations_and_labels_of_pod_and_namespace() {
    in_cluster(|cluster| {
        let [node, _] = cluster.two_nodes();
        cluster.pool("tunnels", "10.5.0.0/16", &json!({"allowedUses": ["Tunnel"]}));
        let manual = json!({"assignmentMode": "Manual"});
        cluster.pool("of-namespace", "10.7.0.0/16", &manual);
        cluster.pool("of-pod", "10.8.0.0/16", &manual);
        let of_team = |operator: &str| {
            let selector = format!("team {operator} 'blue'");
            json!({"namespaceSelector": selector, "allowedUses": ["Workload"]})
        };
        cluster.pool("of-others", "10.6.0.0/16", &of_team("!="));
        cluster.pool("of-team", "10.9.0.0/16", &of_team("=="));
        let agent = Agent::start(&node, &cluster.store);
        agent.wait("status.ready", |status| status.ready);
        // Created after the start. The watch may not have seen them when the plugin asks.
        cluster.namespace("annotated", &json!({}), &pools("of-namespace"));
        let plain = cluster.create_pod("annotated", "plain", &json!({}));
        assert!(assign_to(&node, "c1", &plain).starts_with("10.7."));
        let own = cluster.create_pod("annotated", "own", &pools("10.8.0.0/16"));
        assert!(assign_to(&node, "c2", &own).starts_with("10.8."));
        for (namespace, labels, expected) in
            [("plain", json!({}), "10.6."), ("blue", json!({"team": "blue"}), "10.9.")]
        {
            cluster.namespace(namespace, &labels, &json!({}));
            let pod = cluster.create_pod(namespace, "a", &json!({}));
            let address = assign_to(&node, namespace, &pod);
            assert!(address.starts_with(expected), "{address} in {namespace}");
        }
        let bad = json!({"cni.projectcalico.org/ipv4pools": "p"});
        let bad = cluster.create_pod("plain", "bad", &bad);
        let refused = try_assign_to(&node, "c5", false, Some(bad));
        assert!(matches!(&refused, Err(Error::Refused(why)) if why.code == 7), "{refused:?}");

        // The plugin `calico` makes this request.
        let info: PodInfo = ipam::get(&socket(&node), &pod_path(&own), TIMEOUT).unwrap();
        assert_eq!(info.annotations, *pools("10.8.0.0/16").as_object().unwrap());
        assert_eq!(info.namespace_annotations, *pools("of-namespace").as_object().unwrap());
        let earlier = Pod { uid: "another".to_owned(), ..own.clone() };
        let unknown = ipam::get::<PodInfo>(&socket(&node), &pod_path(&earlier), TIMEOUT);
        assert!(matches!(unknown, Err(Error::Unknown)), "{unknown:?}");
    });
}

#[test]
fn known_pods_get_addresses_while_the_api_server_is_down() {
    in_cluster(|cluster| {
        let [node, _] = cluster.two_nodes();
        cluster.pool("everyone", "10.6.0.0/16", &json!({}));
        cluster.pool("of-namespace", "10.7.0.0/16", &json!({}));
        cluster.namespace("annotated", &json!({}), &pools("of-namespace"));
        let known = cluster.create_pod("annotated", "known", &json!({}));
        let unknown = Pod { name: "unknown".to_owned(), uid: String::new(), ..known.clone() };
        // The server watches its own objects too.
        let before = ["pods", "namespaces"].map(|plural| (plural, cluster.watches(plural)));
        let agent = Agent::start(&node, &cluster.store);
        agent.wait("status.ready", |status| status.ready);
        wait_for("the watches of the agent, which follow the lists", TIMEOUT, || {
            before.iter().all(|(plural, before)| cluster.watches(plural) > *before)
        });
        assert!(assign_to(&node, "c1", &known).starts_with("10.7."));
        wait_for("addresses that are set aside", TIMEOUT, || {
            let blocks = cluster.items("ipamblocks");
            let of_namespace =
                |one: &&Value| one["spec"]["cidr"].as_str().unwrap().starts_with("10.7.");
            let block = blocks.iter().find(of_namespace);
            block.is_some_and(|block| block["spec"].to_string().contains("podwire-reserved-node-1"))
        });
        cluster.server.kill();
        agent.wait("an unreachable store", |status| status.store.reachable == Some(false));
        let during = assign_to(&node, "c2", &known);
        assert!(during.starts_with("10.7."), "{during}");
        let refused = try_assign_to(&node, "c3", false, Some(unknown));
        assert!(matches!(&refused, Err(Error::Refused(why)) if why.code == 11), "{refused:?}");
        cluster.server.restart();
        wait_for("the handle in the store", TIMEOUT, || {
            let handles = cluster.items("ipamhandles");
            handles.iter().any(|handle| handle["metadata"]["name"] == "pods.c2")
        });
    });
}

#[test]
fn changes_are_followed_after_restarts_of_the_api_server() {
    in_cluster(|cluster| {
        let nodes = cluster.two_nodes();
        let store = cluster.store.and(&["--pool-cidr", "10.6.0.0/16"]);
        let agents = start(&nodes, &store);
        check_pods(&nodes, false);
        for round in 0..2 {
            let cidr = format!("10.{}.0.0/16", 20 + round);
            cluster.server.restart();
            cluster.pool(&format!("new{round}"), &cidr, &json!({}));
            for agent in &agents {
                agent.wait("the new pool", |status| {
                    let network = status.membership.network.as_ref();
                    network.is_some_and(|network| {
                        network.networks.iter().any(|one| one.to_string() == cidr)
                    })
                });
            }
        }
        cluster.server.restart();
        cluster.server.kubectl(&["delete", "node", "node-2", "--wait=false"]);
        // The block is still there.
        agents[0].wait("a block without a node", |status| {
            let mut rejected = status.peers.rejected.iter();
            rejected.any(|one| one.peer == "node-2" && one.subnet.is_some())
        });
    });
}

/// Objects that Calico has left behind, with running pods.
fn lay_down_calico(cluster: &Cluster) {
    cluster.apply_definitions();
    cluster.pool(
        "default-ipv4-ippool",
        "10.244.0.0/16",
        &json!({
            "blockSize": 26, "ipipMode": "Never", "natOutgoing": true,
            "allowedUses": ["Workload", "Tunnel"], "assignmentMode": "Automatic",
        }),
    );
    cluster.create_custom(
        "IPAMConfig",
        "default",
        &json!({
            "strictAffinity": false, "autoAllocateBlocks": true, "maxBlocksPerHost": 0,
        }),
    );
    for (number, network) in [(1, "10.244.9.64"), (2, "10.244.55.128")] {
        let (node, id) = (format!("node-{number}"), container(number));
        let cidr = format!("{network}/26");
        let name = cidr.replace(['.', '/'], "-");
        let annotations = json!({
            "projectcalico.org/IPv4Address": format!("192.168.90.{number}/24"),
            "projectcalico.org/IPv4VXLANTunnelAddr": network,
        });
        cluster.register(number, &annotations);
        let tunnel = format!("vxlan-tunnel-addr-{node}");
        let pod = format!("k8s-pod-network.{id}");
        let mut allocations = vec![json!(0), json!(1)];
        allocations.resize(64, Value::Null);
        cluster.create_custom("IPAMBlock", &name, &json!({
            "cidr": cidr, "affinity": format!("host:{node}"), "strictAffinity": false,
            "allocations": allocations, "unallocated": (2..64).collect::<Vec<u8>>(),
            "attributes": [
                {"handle_id": tunnel, "secondary": {"node": node, "type": "vxlanTunnelAddress"}},
                {"handle_id": pod, "secondary": {
                    "namespace": "default", "node": node, "pod": "old",
                    "timestamp": "2026-01-02 03:04:05.678 +0000 UTC",
                }},
            ],
            "deleted": false, "sequenceNumber": 7,
            "sequenceNumberForAllocation": {"0": 5, "1": 6},
        }));
        // As versions before 3.29 wrote it: without labels and without type.
        cluster.create_custom(
            "BlockAffinity",
            &format!("{node}-{name}"),
            &json!({
                "cidr": cidr, "node": node, "state": "confirmed", "deleted": "false",
            }),
        );
        for handle in [&tunnel, &pod] {
            cluster.create_custom(
                "IPAMHandle",
                handle,
                &json!({
                    "handleID": handle, "block": {&cidr: 1}, "deleted": false,
                }),
            );
        }
    }
}

/// The device and the routes that Felix has left behind on a node.
fn lay_down_felix(node: &Node, own: &str, peer: &str) {
    let number = node.number();
    // The MAC address follows from the name of the node.
    node.sh(&format!(
        "mac() {{
            echo 66:$(printf node-$1 | sha1sum | sed 's/\\(..\\)\\(..\\)\\(..\\)\\(..\\)\\(..\\).*/\\1:\\2:\\3:\\4:\\5/')
        }}
        ip link add vxlan.calico address $(mac {number}) type vxlan id 4096 dstport 4789 \
            local 192.168.90.{number} dev eth0 nolearning
        ip link set vxlan.calico mtu 1450 up
        ip address add {own}/32 dev vxlan.calico
        ip route add blackhole {own}/26 proto 80
        ip route add {peer}/26 via {peer} dev vxlan.calico onlink proto 80
        ip neigh add {peer} dev vxlan.calico lladdr $(mac {other})
        bridge fdb add $(mac {other}) dev vxlan.calico dst 192.168.90.{other}",
        other = 3 - number,
    ));
}

/// The container ID of the pod that Calico started on a node.
fn container(number: u8) -> String {
    format!("{number:064x}")
}

#[test]
fn cluster_of_calico_is_taken_over_with_its_pods() {
    in_cluster(|cluster| {
        lay_down_calico(cluster);
        let nodes = [1, 2].map(|number| cluster.wire.node(number, true, false));
        let used = ["10.244.9.65", "10.244.55.129"];
        let pods = [0, 1]
            .map(|at| nodes[at].routed_pod(&format!("old{at}"), &[used[at].parse().unwrap()]));
        lay_down_felix(&nodes[0], "10.244.9.64", "10.244.55.128");
        lay_down_felix(&nodes[1], "10.244.55.128", "10.244.9.64");
        assert!(pods[0].reaches(&pods[1]), "the network of Calico");
        let _agents = start(&nodes, &cluster.store.and(&["--pool-cidr", "10.99.0.0/16"]));
        for (from, to) in [(0, 1), (1, 0)] {
            wait_for("the old pod of the other node", TIMEOUT, || pods[from].reaches(&pods[to]));
        }
        assert_eq!(cluster.items("ippools").len(), 1, "the pool of Calico is used");
        let annotations = cluster.server.node("node-1")["metadata"]["annotations"].take();
        assert_eq!(annotations["projectcalico.org/IPv4VXLANTunnelAddr"], "10.244.9.64");

        // All 64 addresses of the own block, and then one of another.
        let mut assigned: Vec<IpAddr> =
            (0..62).flat_map(|number| assign(&nodes[0], &format!("c{number}"), false)).collect();
        let block: ipnet::IpNet = "10.244.9.64/26".parse().unwrap();
        assert!(assigned.iter().all(|address| block.contains(address)), "{assigned:?}");
        assigned.sort();
        assigned.dedup();
        assert_eq!(assigned.len(), 62);
        for kept in ["10.244.9.64", used[0]] {
            assert!(!assigned.contains(&kept.parse().unwrap()), "{kept} was assigned again");
        }
        assert!(!block.contains(&assign(&nodes[0], "more", false)[0]));

        // DEL of a pod that Calico started.
        let handle = format!("ipamhandles/k8s-pod-network.{}", container(1));
        cluster.custom(&handle);
        let released = release_from(&nodes[0], "k8s-pod-network", &container(1));
        assert_eq!(released, [used[0].parse::<IpAddr>().unwrap()]);
        wait_for("the handle to be deleted", TIMEOUT, || {
            let path = format!("{GROUP}/{handle}");
            cluster.server.try_kubectl(&["get", "--raw", &path]).is_err()
        });
        wait_for("the address to be released in the store", TIMEOUT, || {
            let spec = cluster.custom("ipamblocks/10-244-9-64-26")["spec"].take();
            let index = allocation(&spec, used[0]);
            let attribute = index.map(|index| &spec["attributes"][usize::try_from(index).unwrap()]);
            attribute.is_none_or(|one| one["secondary"]["pod"] != "old")
        });
        // The handle of the other node is left alone.
        cluster.custom(&format!("ipamhandles/k8s-pod-network.{}", container(2)));
    });
}

#[test]
fn definitions_accept_and_refuse_what_calicos_do() {
    in_cluster(|cluster| {
        lay_down_calico(cluster);
        let refused = |kind: &str, spec: &Value, words: &str| {
            let error = cluster.try_create_custom(kind, "refused", spec).unwrap_err();
            assert!(error.contains(words), "{kind} {spec}: {error}");
        };
        refused("IPPool", &json!({}), "spec.cidr");
        refused("IPPool", &json!({"cidr": "here"}), "spec.cidr");
        let pool = |key: &str, value: Value| json!({"cidr": "10.7.0.0/16", key: value});
        refused("IPPool", &pool("ipipMode", json!("Sometimes")), "spec.ipipMode");
        refused("IPPool", &pool("vxlanMode", json!("")), "spec.vxlanMode");
        refused("IPPool", &pool("blockSize", json!(129)), "spec.blockSize");
        refused("IPPool", &pool("assignmentMode", json!("None")), "spec.assignmentMode");
        refused("IPPool", &pool("allowedUses", json!(["Nothing"])), "spec.allowedUses");
        refused("IPReservation", &json!({"reservedCIDRs": ["x"]}), "spec.reservedCIDRs");
        refused("IPAMBlock", &json!({"cidr": "10.7.0.0/26"}), "spec.allocations");
        refused("BlockAffinity", &json!({"cidr": "10.7.0.0/26", "node": "a"}), "spec.state");
        refused("IPAMHandle", &json!({"block": {}}), "spec.handleID");
        let config = |seconds| json!({"strictAffinity": true, "autoAllocateBlocks": true, "ipCooldownSeconds": seconds});
        refused("IPAMConfig", &config(1201), "spec.ipCooldownSeconds");
        cluster.create_custom("IPAMConfig", "other", &config(1200));
        cluster.create_custom("IPReservation", "r", &json!({"reservedCIDRs": ["10.244.0.0/28"]}));
        let pool = pool("namespaceSelector", json!("has(team)"));
        cluster.create_custom("IPPool", "other", &pool);
        let stored = cluster.custom("ippools/other")["spec"].take();
        assert_eq!(
            (&stored["nodeSelector"], &stored["assignmentMode"]),
            (&json!("all()"), &json!("Automatic"))
        );
    });
}
