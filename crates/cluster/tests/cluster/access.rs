// SPDX-License-Identifier: Apache-2.0
//! Credentials and rights, including those of `deploy/kubernetes`.

use std::fs;
use std::path::{Path, PathBuf};

use cluster::{Access, Cluster, Condition, Error, Node, Write};
use serde_json::{Value, json};
use testkit::{Authority, Daemon};
use text::ErrorChain;

use crate::server::{
    LONG, annotate, block_on, client_of, events, list, prefixes, register, watch, with_server,
};

const RBAC: &[&str] = &["--authorization-mode=RBAC"];

fn manifest() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../../deploy/kubernetes/podwire.yaml").canonicalize().unwrap()
}

fn chain(error: &Error) -> String {
    ErrorChain(error).to_string()
}

fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "a", "image": "a"}]},
    })
}

/// The API server accepts the whole manifest, and its rights are those that the agent needs.
#[test]
fn manifest_grants_the_needed_rights() {
    with_server(RBAC, |server| {
        let manifest = manifest();
        server.kubectl(&["apply", "-f", manifest.to_str().unwrap()]);
        let agents = server.object("/apis/apps/v1/namespaces/kube-podwire/daemonsets/podwire");
        let account = &agents["spec"]["template"]["spec"]["serviceAccountName"];
        assert_eq!(account, "podwire");
        register(server, "worker-1");
        block_on(async {
            let cluster = client_of(server, "podwire-token").await;
            let listed = list(&cluster).await;
            assert_eq!(listed.objects.len(), 1);
            let mut watcher = watch(&cluster, listed.revision);
            let written = annotate(&cluster, "worker-1", "x", listed.objects[0].revision).await;
            assert!(matches!(written, Write::Done(_)), "{written:?}");
            events(&mut watcher, 1).await;
            let condition = Condition { kind: "NetworkUnavailable".into(), ..Condition::default() };
            let condition = Condition { status: "False".into(), ..condition };
            cluster.set_condition("worker-1", &condition).await.unwrap();

            assert_eq!(cluster.node_of_pod("kube-podwire", "a").await.unwrap(), None);
            server.kubectl(&["create", "namespace", "other"]);
            for namespace in ["kube-podwire", "other"] {
                server.create(&pod(namespace, "a", "worker-1"));
            }
            let node = cluster.node_of_pod("kube-podwire", "a").await.unwrap();
            assert_eq!(node.as_deref(), Some("worker-1"));
            let error = cluster.node_of_pod("other", "a").await.unwrap_err();
            assert!(chain(&error).contains("cannot get resource \"pods\""), "{}", chain(&error));
            let error = cluster.node_of_pod("other", "../nodes").await.unwrap_err();
            assert!(error.to_string().contains("\"../nodes\" is not the name"), "{error}");
        });
    });
}

/// The manifest for routed pods, with the definitions of its custom resources.
#[test]
fn routed_manifest_grants_the_needed_rights() {
    with_server(RBAC, |server| {
        for name in ["calico-crds.yaml", "podwire-routed.yaml"] {
            let file = manifest().with_file_name(name);
            // The server answers before it knows all groups.
            let apply = ["apply", "-f", file.to_str().unwrap()];
            testkit::wait_for(name, LONG, || server.try_kubectl(&apply).is_ok());
        }
        server.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
        let group = "/apis/crd.projectcalico.org/v1";
        let cidr = "10.6.0.0/26";
        let objects = [
            ("ippools", "IPPool", json!({"cidr": cidr})),
            ("ipamhandles", "IPAMHandle", json!({"handleID": "a", "block": {}})),
            (
                "blockaffinities",
                "BlockAffinity",
                json!({"cidr": cidr, "node": "a", "state": "confirmed", "deleted": "false"}),
            ),
            (
                "ipamblocks",
                "IPAMBlock",
                json!({"cidr": cidr, "allocations": [null], "unallocated": [0], "attributes": [],
                    "strictAffinity": false}),
            ),
        ];
        block_on(async {
            let cluster = client_of(server, "podwire-token").await;
            for (plural, kind, spec) in objects {
                let path = format!("{group}/{plural}");
                let object = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": kind,
                    "metadata": {"name": "a"}, "spec": spec});
                let Write::Done(at) = cluster.create(&path, &object).await.unwrap() else {
                    panic!("{plural}");
                };
                let read = cluster.get_json(&path, "a").await.unwrap().unwrap();
                assert_eq!(read.metadata().revision(), at);
                cluster.replace(&path, "a", object, at).await.unwrap();
                let at = cluster.get_json(&path, "a").await.unwrap().unwrap().metadata().revision();
                assert!(cluster.delete(&path, "a", at).await.unwrap(), "{plural}");
            }
            let config = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMConfig",
                "metadata": {"name": "default"}, "spec": {"strictAffinity": true,
                "autoAllocateBlocks": true}});
            let error = cluster.create(&format!("{group}/ipamconfigs"), &config).await.unwrap_err();
            assert!(chain(&error).contains("cannot create"), "{}", chain(&error));
        });
        let paths = ["ippools", "ipreservations", "ipamconfigs", "ipamblocks", "blockaffinities"];
        let paths = paths.iter().map(|plural| format!("{group}/{plural}"));
        let core = ["nodes", "pods", "namespaces"].map(|plural| format!("/api/v1/{plural}"));
        for path in paths.chain(core) {
            for query in ["", "?watch=1&timeoutSeconds=1"] {
                let raw = format!("{path}{query}");
                server.kubectl(&["--token=podwire-token", "get", "--raw", &raw]);
            }
        }
        let denied =
            server.try_kubectl(&["--token=podwire-token", "delete", "namespace", "default"]);
        assert!(denied.unwrap_err().contains("orbidden"));
    });
}

/// The agent neither creates nor deletes nodes, and the manifest does not let it.
#[test]
fn manifest_denies_creating_and_deleting_nodes() {
    with_server(RBAC, |server| {
        server.kubectl(&["apply", "-f", manifest().to_str().unwrap()]);
        register(server, "worker-1");
        let file = server.dir.path().join("node.json");
        fs::write(&file, r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"other"}}"#)
            .unwrap();
        for command in
            [&["create", "-f", file.to_str().unwrap()][..], &["delete", "node", "worker-1"]]
        {
            let arguments = [&["--token=podwire-token"], command].concat();
            let denied = server.try_kubectl(&arguments).unwrap_err();
            assert!(denied.contains("orbidden"), "{denied}");
        }
    });
}

#[test]
fn missing_rights_are_named() {
    with_server(RBAC, |server| {
        block_on(async {
            let nobody = client_of(server, "nobody-token").await;
            let error = nobody.list::<Node>(&prefixes()).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            let text = r#"User "nobody" cannot list resource "nodes""#;
            assert!(chain(&error).contains(text), "{}", chain(&error));
            let error = watch(&nobody, cluster::Revision(1)).next().await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");

            let unknown = client_of(server, "wrong-token").await;
            let error = unknown.get::<Node>("a", &prefixes()).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            assert!(chain(&error).contains("Unauthorized (status 401)"), "{}", chain(&error));
        });
    });
}

#[test]
fn kubeconfig_and_kubectl_proxy_give_access() {
    with_server(&[], |server| {
        let file = server.dir.path().join("kubeconfig");
        let kubeconfig = |ca: &Path| server.kubeconfig("admin-token", ca);
        register(server, "a");
        block_on(async {
            fs::write(&file, kubeconfig(&server.ca())).unwrap();
            let access = Access::Kubeconfig { file: file.clone(), url: None };
            let cluster = Cluster::open(&access).await.unwrap();
            assert_eq!(list(&cluster).await.objects.len(), 1);

            let proxy = server.kubectl_words(&["proxy", "--port=8001"]);
            let words: Vec<_> = proxy[1..].iter().map(String::as_str).collect();
            let _proxy = Daemon::start(&proxy[0], &words);
            let accepts = || std::net::TcpStream::connect("127.0.0.1:8001").is_ok();
            testkit::wait_for("kubectl proxy accepts connections", LONG, accepts);
            let proxied = Access::Url("http://127.0.0.1:8001".to_owned());
            let cluster = Cluster::open(&proxied).await.unwrap();
            assert_eq!(list(&cluster).await.objects.len(), 1);

            // A server that another authority has signed is refused.
            let other = Authority::new();
            fs::write(&file, kubeconfig(&other.file("ca.pem"))).unwrap();
            let cluster = Cluster::open(&access).await.unwrap();
            let error = cluster.list::<Node>(&prefixes()).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(chain(&error).contains("certificate"), "{}", chain(&error));
        });
    });
}

/// The command of docs/kubernetes.md that removes flannel from one node after the other.
#[test]
fn documented_command_removes_flannel_node_by_node() {
    with_server(&[], |server| {
        let flannel = server.dir.path().join("flannel.json");
        fs::write(&flannel, FLANNEL).unwrap();
        server.kubectl(&["create", "namespace", "kube-flannel"]);
        server.kubectl(&["create", "-f", flannel.to_str().unwrap()]);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
        let page = fs::read_to_string(page).unwrap();
        let mut lines = page.lines().map(str::trim);
        let line = lines.find(|line| line.contains("patch daemonset kube-flannel-ds")).unwrap();
        let arguments = line.strip_prefix("kubectl ").unwrap();
        let kubectl = server.kubectl_words(&[]).join(" ");
        testkit::run("sh", &["-ec", &format!("{kubectl} {arguments}")]);
        let patched =
            server.object("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds");
        let affinity = &patched["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
        let terms =
            &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms.as_array().unwrap().len(), 1);
        let expressions = terms[0]["matchExpressions"].as_array().unwrap();
        let podwire = expressions.iter().find(|expression| expression["key"] == "podwire").unwrap();
        assert_eq!((&podwire["operator"], &podwire["values"][0]), (&"In".into(), &"off".into()));
    });
}

/// flannel's own DaemonSet, without most of the pod.
const FLANNEL: &str = r#"{
  "apiVersion": "apps/v1", "kind": "DaemonSet",
  "metadata": {"name": "kube-flannel-ds", "namespace": "kube-flannel"},
  "spec": {
    "selector": {"matchLabels": {"app": "flannel"}},
    "template": {
      "metadata": {"labels": {"app": "flannel"}},
      "spec": {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
          "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]}}},
        "containers": [{"name": "kube-flannel", "image": "flannel"}],
        "hostNetwork": true
      }
    }
  }
}"#;
