// SPDX-License-Identifier: Apache-2.0
//! The nodes of Kubernetes as a store: the suite, and how `kubectl` and others change nodes.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use store::kubernetes::{Condition, Node};
use store::{Entry, Error, Event, Store};

use crate::api_server::{
    ApiServer, PREFIX, admin, in_forgetful_kubernetes, in_kubernetes, with_server,
};
use crate::lab::{block_on, done, events};
use crate::server::client;
use crate::suite::suite;

suite!(in_kubernetes, no time to live, forgetful: in_forgetful_kubernetes);

fn put(event: &Event) -> (&Entry, Node) {
    let Event::Put(entry) = event else { panic!("no change: {event:?}") };
    (entry, Node::read(&entry.value).unwrap())
}

fn annotation(node: &Node, rest: &str) -> Option<String> {
    node.annotations.get(&format!("{PREFIX}{rest}")).cloned()
}

/// A node as kubelet registers it, which takes no part in the network yet.
fn register(server: &ApiServer, name: &str) {
    server.create(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"},
                     "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
    }));
}

#[test]
fn node_without_annotations_is_an_entry_and_its_pod_cidr_arrives_later() {
    with_server(&["--feature-gates=IPv6DualStack=true"], |server| {
        block_on(async {
            let store = admin(server).await;
            let from = store.list("").await.unwrap().revision;
            let mut watch = store.watch("nodes/", from);
            register(server, "worker-1");
            let seen = events(&mut *watch, 1).await;
            let (entry, node) = put(&seen[0]);
            assert_eq!((entry.key.as_str(), node), ("nodes/worker-1", Node::default()));

            let cidrs = r#"{"spec":{"podCIDR":"10.244.1.0/24",
                "podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"]}}"#;
            server.kubectl(&["patch", "node", "worker-1", "-p", cidrs]);
            let seen = events(&mut *watch, 1).await;
            let (entry, node) = put(&seen[0]);
            assert_eq!(node.pod_cidr.as_deref(), Some("10.244.1.0/24"));
            assert_eq!(node.pod_cidrs, ["10.244.1.0/24", "fd00:10:244:1::/64"]);
            let listed = store.list("nodes/").await.unwrap().entries;
            assert_eq!(listed, std::slice::from_ref(entry));
            let created = &server.node("worker-1")["metadata"]["creationTimestamp"];
            assert_eq!(seconds(created.as_str().unwrap()), entry.created.0);
        });
    });
}

fn seconds(time: &str) -> u64 {
    testkit::run("date", &["-d", time, "+%s"]).trim().parse().unwrap()
}

#[test]
fn what_others_annotate_arrives_and_stays() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            register(server, "worker-1");
            let first = store.get("nodes/worker-1").await.unwrap().unwrap();
            let mut watch = store.watch("", first.revision);
            let overwrite = format!("{PREFIX}public-ip-overwrite=203.0.113.7");
            server.kubectl(&["annotate", "node", "worker-1", &overwrite]);
            let seen = events(&mut *watch, 1).await;
            let (entry, mut node) = put(&seen[0]);
            assert_eq!(annotation(&node, "public-ip-overwrite").as_deref(), Some("203.0.113.7"));

            // What we publish changes nothing of what others have written.
            node.annotations.insert(format!("{PREFIX}backend-type"), "vxlan".to_owned());
            let revision =
                done(store.swap("nodes/worker-1", &node.write(), entry.revision, None).await);
            let expected = json!({
                format!("{PREFIX}public-ip-overwrite"): "203.0.113.7",
                format!("{PREFIX}backend-type"): "vxlan",
                "node.alpha.kubernetes.io/ttl": "0",
            });
            let found = server.node("worker-1");
            assert_eq!(found["metadata"]["annotations"], expected);
            assert_eq!(found["metadata"]["labels"]["kubernetes.io/os"], "linux");
            assert_eq!(found["metadata"]["resourceVersion"], revision.to_string());

            // What is no longer in the value is gone from the node.
            node.annotations.remove(&format!("{PREFIX}public-ip-overwrite"));
            done(store.swap("nodes/worker-1", &node.write(), revision, None).await);
            let found = server.node("worker-1");
            let left = found["metadata"]["annotations"].as_object().unwrap().keys();
            let expected = [format!("{PREFIX}backend-type"), "node.alpha.kubernetes.io/ttl".into()];
            assert_eq!(left.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        });
    });
}

#[test]
fn what_is_not_ours_to_change_is_refused_and_named() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            register(server, "worker-1");
            let entry = store.get("nodes/worker-1").await.unwrap().unwrap();
            let refused = async |value: &[u8], words: &str| {
                let error = store.swap("nodes/worker-1", value, entry.revision, None).await;
                let error = error.unwrap_err();
                assert!(matches!(error, Error::Invalid(_)), "{error:?}");
                assert!(error.to_string().contains(words), "{error} should say {words:?}");
            };
            refused(br#"{"podCIDR":"10.244.9.0/24"}"#, "podCIDRs cannot be changed here").await;
            refused(br#"{"annotations":{"x.org/y":"z"}}"#, "annotation \"x.org/y\"").await;
            refused(b"{", "a node's value").await;
            assert_eq!(store.get("nodes/worker-1").await.unwrap().unwrap(), entry);
        });
    });
}

#[test]
fn condition_is_told_once() {
    with_server(&[], |server| {
        block_on(async {
            let store = admin(server).await;
            register(server, "worker-1");
            let condition = |status: &str| Condition {
                kind: "NetworkUnavailable".to_owned(),
                status: status.to_owned(),
                reason: "PodwireIsUp".to_owned(),
                message: "podwire is running on this node".to_owned(),
            };
            store.set_condition("worker-1", &condition("False")).await.unwrap();
            let told = server.node("worker-1");
            let found = of_network(&told);
            assert_eq!(
                (&found["status"], &found["reason"]),
                (&json!("False"), &json!("PodwireIsUp"))
            );
            assert_eq!(found["message"], "podwire is running on this node");
            assert!(
                found["lastTransitionTime"].is_string() && found["lastHeartbeatTime"].is_string()
            );

            store.set_condition("worker-1", &condition("False")).await.unwrap();
            let again = server.node("worker-1");
            assert_eq!(again["metadata"]["resourceVersion"], told["metadata"]["resourceVersion"]);

            store.set_condition("worker-1", &condition("True")).await.unwrap();
            assert_eq!(of_network(&server.node("worker-1"))["status"], "True");
            let error = store.set_condition("nobody", &condition("True")).await.unwrap_err();
            assert!(error.to_string().contains("\"nobody\""), "{error}");
        });
    });
}

fn of_network(node: &Value) -> &Value {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "NetworkUnavailable").unwrap()
}

/// Flannel keeps all of them, 285 MB for so many nodes.
#[test]
fn five_thousand_nodes_are_small_in_memory() {
    const NODES: usize = 5000;
    with_server(&[], |server| {
        fill(server, NODES);
        block_on(async {
            let store = admin(server).await;
            store.get("nodes/worker-0000").await.unwrap();
            let before = memory("VmRSS:");
            // Forgets the peak of before.
            fs::write("/proc/self/clear_refs", "5").unwrap();
            let list = store.list("nodes/").await.unwrap();
            let (after, peak) = (memory("VmRSS:"), memory("VmHWM:"));
            assert_eq!(list.entries.len(), NODES);
            let bytes: usize =
                list.entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
            let page = server.object("/api/v1/nodes?limit=100").to_string().len() / 100;
            println!(
                "{NODES} nodes of {page} bytes: {before} kB of memory before the list, {peak} kB at \
                 most, {after} kB after it; an entry has {} bytes",
                bytes / NODES
            );
            assert!(page > 10_000, "nodes are of a real size");
            assert!(peak.saturating_sub(before) < 15_000, "{before} kB, then {peak} kB");
        });
    });
}

/// Puts nodes as large as those of real clusters where the API server keeps its own.
fn fill(server: &ApiServer, count: usize) {
    const TASKS: usize = 32;
    let images: Vec<_> = (0..50)
        .map(|number| {
            let name = format!("example/{}:{number}", "image-with-a-long-name/".repeat(8));
            json!({"names": [name], "sizeBytes": 123_456_789})
        })
        .collect();
    block_on(async {
        let images = Arc::new(images);
        let mut tasks = Vec::new();
        // Writes at the same time share what makes them durable.
        for task in 0..TASKS {
            let (etcd, images) = (client(&[&server.etcd]), Arc::clone(&images));
            tasks.push(tokio::spawn(async move {
                for number in (task..count).step_by(TASKS) {
                    let name = format!("worker-{number:04}");
                    let node = whole_node(&name, number, &images).to_string();
                    let key = format!("/registry/minions/{name}");
                    // A busy machine may be late; what is there already is ours.
                    while let Err(error) = etcd.create(&key, node.as_bytes(), None).await {
                        assert!(error.can_retry(), "{error:?}");
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

fn whole_node(name: &str, number: usize, images: &[Value]) -> Value {
    let (high, low) = (number / 250, number % 250);
    let cidr = format!("10.{high}.{low}.0/24");
    let address = format!("192.168.{high}.{low}");
    let data = format!(r#"{{"VNI":1,"VtepMAC":"0a:58:00:00:{high:02x}:{low:02x}"}}"#);
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {
                format!("{PREFIX}backend-type"): "vxlan",
                format!("{PREFIX}backend-data"): data,
                format!("{PREFIX}public-ip"): address,
                format!("{PREFIX}kube-subnet-manager"): "true",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "images": images,
        },
    })
}

/// In kB.
fn memory(kind: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
