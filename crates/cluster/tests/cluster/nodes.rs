// SPDX-License-Identifier: Apache-2.0
//! Node objects: what is read, what is written, and how much memory it takes.

use std::fs;

use cluster::{Condition, Error, Event, Node, Write};
use serde_json::{Value, json};

use crate::server::{
    ApiServer, PREFIX, admin, annotate, block_on, events, get, list, prefixes, register, value,
    watch, with_server,
};

fn node(event: &Event<Node>) -> &Node {
    let Event::Applied(object) = event else { panic!("not a change: {event:?}") };
    object.content.as_ref().unwrap()
}

fn seconds(time: &str) -> u64 {
    testkit::run("date", &["-d", time, "+%s"]).trim().parse().unwrap()
}

#[test]
fn node_arrives_before_its_pod_cidr() {
    with_server(&["--feature-gates=IPv6DualStack=true"], |server| {
        block_on(async {
            let cluster = admin(server).await;
            let mut watcher = watch(&cluster, list(&cluster).await.revision);
            register(server, "worker-1");
            let seen = events(&mut watcher, 1).await;
            assert_eq!((seen[0].name(), node(&seen[0])), ("worker-1", &Node::default()));

            let cidrs = r#"{"spec":{"podCIDR":"10.244.1.0/24",
                "podCIDRs":["10.244.1.0/24","fd00:10:244:1::/64"]}}"#;
            server.kubectl(&["patch", "node", "worker-1", "-p", cidrs]);
            let seen = events(&mut watcher, 1).await;
            assert_eq!(node(&seen[0]).pod_cidr.as_deref(), Some("10.244.1.0/24"));
            assert_eq!(node(&seen[0]).pod_cidrs, ["10.244.1.0/24", "fd00:10:244:1::/64"]);
            let listed = list(&cluster).await.objects;
            assert_eq!(seen, [Event::Applied(listed[0].clone())]);
            let created = &server.node("worker-1")["metadata"]["creationTimestamp"];
            assert_eq!(seconds(created.as_str().unwrap()), listed[0].created);
        });
    });
}

#[test]
fn list_is_ordered_by_name_and_get_finds_one() {
    with_server(&[], |server| {
        for name in ["b", "a", "a.example"] {
            register(server, name);
        }
        block_on(async {
            let cluster = admin(server).await;
            let listed = list(&cluster).await;
            let names: Vec<_> = listed.objects.iter().map(|object| object.name.as_str()).collect();
            assert_eq!(names, ["a", "a.example", "b"]);
            assert!(listed.objects.iter().all(|object| object.revision <= listed.revision));
            assert_eq!(get(&cluster, "b").await, listed.objects[2]);
            assert_eq!(cluster.get::<Node>("c", &prefixes()).await.unwrap(), None);
            for name in ["", "../pods", "a\0b"] {
                let error = cluster.get::<Node>(name, &prefixes()).await.unwrap_err();
                assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            }
        });
    });
}

#[test]
fn creation_time_survives_changes() {
    with_server(&[], |server| {
        register(server, "older");
        register(server, "younger");
        block_on(async {
            let cluster = admin(server).await;
            let older = get(&cluster, "older").await;
            annotate(&cluster, "older", "1", older.revision).await;
            assert_eq!(get(&cluster, "older").await.created, older.created);
            let younger = get(&cluster, "younger").await.created;
            assert!(older.created <= younger);
            server.kubectl(&["delete", "node", "older"]);
            register(server, "older");
            assert!(get(&cluster, "older").await.created >= younger);
        });
    });
}

#[test]
fn annotate_keeps_foreign_annotations() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            register(server, "worker-1");
            let mut watcher = watch(&cluster, get(&cluster, "worker-1").await.revision);
            let overwrite = format!("{PREFIX}public-ip-overwrite=203.0.113.7");
            server.kubectl(&["annotate", "node", "worker-1", &overwrite]);
            let seen = events(&mut watcher, 1).await;
            let overwrite = format!("{PREFIX}public-ip-overwrite");
            assert_eq!(node(&seen[0]).annotations[&overwrite], "203.0.113.7");

            let set = [(format!("{PREFIX}backend-type"), Some("vxlan".to_owned()))].into();
            let written =
                cluster.annotate_node("worker-1", &set, seen[0].revision()).await.unwrap();
            let Write::Done(revision) = written else { panic!("the node has not changed") };
            let expected = json!({
                format!("{PREFIX}public-ip-overwrite"): "203.0.113.7",
                format!("{PREFIX}backend-type"): "vxlan",
                "node.alpha.kubernetes.io/ttl": "0",
            });
            let object = server.node("worker-1");
            assert_eq!(object["metadata"]["annotations"], expected);
            assert_eq!(object["metadata"]["labels"]["kubernetes.io/os"], "linux");
            assert_eq!(object["metadata"]["resourceVersion"], revision.to_string());

            let remove = [(overwrite, None)].into();
            cluster.annotate_node("worker-1", &remove, revision).await.unwrap();
            let object = server.node("worker-1");
            let left = object["metadata"]["annotations"].as_object().unwrap().keys();
            let expected = [format!("{PREFIX}backend-type"), "node.alpha.kubernetes.io/ttl".into()];
            assert_eq!(left.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        });
    });
}

#[test]
fn annotate_needs_the_newest_revision() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            register(server, "a");
            let first = get(&cluster, "a").await.revision;
            let Write::Done(second) = annotate(&cluster, "a", "1", first).await else {
                panic!("the node has not changed");
            };
            assert!(second > first);
            assert_eq!(annotate(&cluster, "a", "2", first).await, Write::Conflict);
            // Changes of other nodes do not matter.
            register(server, "b");
            let Write::Done(third) = annotate(&cluster, "a", "3", second).await else {
                panic!("the node has not changed");
            };
            assert_eq!(get(&cluster, "a").await.revision, third);
            let unchanged = cluster.annotate_node("a", &[].into(), third).await.unwrap();
            assert_eq!(unchanged, Write::Done(third));
            server.kubectl(&["delete", "node", "a"]);
            assert_eq!(annotate(&cluster, "a", "4", third).await, Write::Conflict);
            register(server, "a");
            assert_eq!(annotate(&cluster, "a", "5", third).await, Write::Conflict);
        });
    });
}

#[test]
fn concurrent_annotations_lose_no_increment() {
    const TASKS: usize = 6;
    const EACH: usize = 20;
    with_server(&[], |server| {
        block_on(async {
            register(server, "counter");
            let mut tasks = Vec::new();
            for _ in 0..TASKS {
                let cluster = admin(server).await;
                tasks.push(tokio::spawn(async move {
                    let mut left = EACH;
                    while left > 0 {
                        let object = get(&cluster, "counter").await;
                        let count: usize = value(&object).map_or(0, |text| text.parse().unwrap());
                        let next = (count + 1).to_string();
                        match annotate(&cluster, "counter", &next, object.revision).await {
                            Write::Done(_) => left -= 1,
                            Write::Conflict => {}
                        }
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let annotations = &server.node("counter")["metadata"]["annotations"];
            assert_eq!(annotations[format!("{PREFIX}public-ip")], (TASKS * EACH).to_string());
        });
    });
}

#[test]
fn annotations_over_the_limit_are_not_written() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            register(server, "a");
            let before = get(&cluster, "a").await;
            let large = [(format!("{PREFIX}backend-data"), Some("x".repeat(16 << 10)))].into();
            let error = cluster.annotate_node("a", &large, before.revision).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            assert_eq!(get(&cluster, "a").await, before);
        });
    });
}

#[test]
fn condition_is_written_only_if_it_differs() {
    with_server(&[], |server| {
        block_on(async {
            let cluster = admin(server).await;
            register(server, "worker-1");
            let condition = |status: &str| Condition {
                kind: "NetworkUnavailable".to_owned(),
                status: status.to_owned(),
                reason: "PodwireIsUp".to_owned(),
                message: "podwire is running on this node".to_owned(),
            };
            cluster.set_condition("worker-1", &condition("False")).await.unwrap();
            let first = server.node("worker-1");
            let written = network_condition(&first);
            assert_eq!(
                (&written["status"], &written["reason"]),
                (&json!("False"), &json!("PodwireIsUp"))
            );
            assert_eq!(written["message"], "podwire is running on this node");
            assert!(
                written["lastTransitionTime"].is_string()
                    && written["lastHeartbeatTime"].is_string()
            );

            cluster.set_condition("worker-1", &condition("False")).await.unwrap();
            let again = server.node("worker-1");
            assert_eq!(again["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);

            cluster.set_condition("worker-1", &condition("True")).await.unwrap();
            assert_eq!(network_condition(&server.node("worker-1"))["status"], "True");
            let error = cluster.set_condition("nobody", &condition("True")).await.unwrap_err();
            assert!(error.to_string().contains("\"nobody\""), "{error}");
        });
    });
}

fn network_condition(node: &Value) -> &Value {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "NetworkUnavailable").unwrap()
}

/// flannel keeps whole objects, 285 MB for as many nodes.
#[test]
fn five_thousand_nodes_need_little_memory() {
    const NODES: usize = 5000;
    with_server(&[], |server| {
        fill(server, NODES);
        block_on(async {
            let cluster = admin(server).await;
            get(&cluster, "worker-0000").await;
            let before = memory("VmRSS:");
            // Resets the peak.
            fs::write("/proc/self/clear_refs", "5").unwrap();
            let mirror = cluster::Mirror::default();
            mirror.replace(list(&cluster).await);
            let (after, peak) = (memory("VmRSS:"), memory("VmHWM:"));
            let sizes = mirror.map(|object| {
                let node = object.content.as_ref().unwrap();
                object.name.len() + cluster::Resource::size(node)
            });
            assert_eq!(sizes.len(), NODES);
            let page = server.object("/api/v1/nodes?limit=100").to_string().len() / 100;
            println!(
                "{NODES} nodes of {page} bytes: {before} kB of memory before the list, {peak} kB at \
                 most, {after} kB after it; a kept node has {} bytes",
                sizes.iter().sum::<usize>() / NODES
            );
            assert!(page > 10_000, "nodes have a realistic size");
            assert!(peak.saturating_sub(before) < 15_000, "{before} kB, then {peak} kB");
        });
    });
}

/// Writes nodes as large as those of real clusters directly into the API server's etcd.
fn fill(server: &ApiServer, count: usize) {
    let images: Vec<_> = (0..50)
        .map(|number| {
            let name = format!("example/{}:{number}", "image-with-a-long-name/".repeat(8));
            json!({"names": [name], "sizeBytes": 123_456_789})
        })
        .collect();
    // etcd accepts 128 operations in one transaction, and 1.5 MB.
    for first in (0..count).step_by(80) {
        let puts = (first..count.min(first + 80)).map(|number| {
            let name = format!("worker-{number:04}");
            let node = whole_node(&name, number, &images).to_string();
            format!("put /registry/minions/{name} {}\n", json!(node))
        });
        let file = server.dir.path().join("nodes.txn");
        fs::write(&file, format!("\n{}\n\n", puts.collect::<String>())).unwrap();
        let command =
            format!("etcdctl --endpoints {} txn < {}", server.etcd.endpoint(), file.display());
        testkit::run("sh", &["-ec", &command]);
    }
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

/// Returns a line of `/proc/self/status` in kB.
fn memory(kind: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
