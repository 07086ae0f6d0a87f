// SPDX-License-Identifier: Apache-2.0
//! The nodes of Kubernetes for those who have few rights, or none, and what `deploy/kubernetes` asks for.

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use store::kubernetes::{Access, Condition, Kubernetes, Node};
use store::{Error, Store};
use testkit::{Authority, Daemon};

use crate::api_server::{PREFIX, admin, client_of, conf, with_server};
use crate::lab::{block_on, done, events};

const RBAC: &[&str] = &["--authorization-mode=RBAC"];

fn manifest() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../../deploy/kubernetes/podwire.yaml").canonicalize().unwrap()
}

async fn open(access: Access) -> Kubernetes {
    Kubernetes::open(&conf(access)).await.unwrap()
}

/// What the error and its causes say.
fn said(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// The API server takes all of the manifest as it is, and its rights are what an agent needs and no more.
#[test]
fn manifest_is_accepted_and_its_rights_are_enough() {
    with_server(RBAC, |server| {
        let manifest = manifest();
        server.kubectl(&["apply", "-f", manifest.to_str().unwrap()]);
        let agents = server.object("/apis/apps/v1/namespaces/kube-podwire/daemonsets/podwire");
        let account = &agents["spec"]["template"]["spec"]["serviceAccountName"];
        assert_eq!(account, "podwire");
        block_on(async {
            let admin = admin(server).await;
            let created = done(admin.create("nodes/worker-1", b"{}", None).await);

            let store = client_of(server, "podwire-token").await;
            let list = store.list("nodes/").await.unwrap();
            assert_eq!(list.entries.len(), 1);
            let mut watch = store.watch("nodes/", list.revision);
            let annotations = [(format!("{PREFIX}backend-type"), "vxlan".to_owned())].into();
            let wanted = Node { annotations, ..Node::default() };
            done(store.swap("nodes/worker-1", &wanted.write(), created, None).await);
            events(&mut *watch, 1).await;
            let condition = Condition { kind: "NetworkUnavailable".into(), ..Condition::default() };
            let condition = Condition { status: "False".into(), ..condition };
            store.set_condition("worker-1", &condition).await.unwrap();

            assert_eq!(store.node_of_pod("kube-podwire", "a").await.unwrap(), None);
            server.kubectl(&["create", "namespace", "other"]);
            for namespace in ["kube-podwire", "other"] {
                server.create(&pod(namespace, "a", "worker-1"));
            }
            let found = store.node_of_pod("kube-podwire", "a").await.unwrap();
            assert_eq!(found.as_deref(), Some("worker-1"));
            let error = store.node_of_pod("other", "a").await.unwrap_err();
            assert!(said(&error).contains("cannot get resource \"pods\""), "{}", said(&error));
            let error = store.node_of_pod("other", "../nodes").await.unwrap_err();
            assert!(error.to_string().contains("\"../nodes\" names no pod"), "{error}");

            let error = store.delete("nodes/worker-1", None).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            let error = store.create("nodes/other", b"{}", None).await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        });
    });
}

fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "a", "image": "a"}]},
    })
}

#[test]
fn who_has_no_rights_is_told_which() {
    with_server(RBAC, |server| {
        block_on(async {
            let nobody = client_of(server, "nobody-token").await;
            let error = nobody.list("").await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            let words = r#"User "nobody" cannot list resource "nodes""#;
            assert!(said(&error).contains(words), "{}", said(&error));
            let error = nobody.watch("", store::Revision(1)).next().await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");

            let unknown = client_of(server, "wrong-token").await;
            let error = unknown.get("nodes/a").await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
            assert!(said(&error).contains("Unauthorized (status 401)"), "{}", said(&error));
        });
    });
}

#[test]
fn kubeconfig_proxy_and_foreign_certificates() {
    with_server(&[], |server| {
        let file = server.dir.path().join("kubeconfig");
        let kubeconfig = |ca: &Path| server.kubeconfig("admin-token", ca);
        block_on(async {
            fs::write(&file, kubeconfig(&server.ca())).unwrap();
            let by_file = Access::Kubeconfig { file: file.clone(), url: None };
            let store = open(by_file.clone()).await;
            done(store.create("nodes/a", b"{}", None).await);

            let proxy = server.kubectl_words(&["proxy", "--port=8001"]);
            let words: Vec<_> = proxy[1..].iter().map(String::as_str).collect();
            let _proxy = Daemon::start(&proxy[0], &words);
            let is_there = || std::net::TcpStream::connect("127.0.0.1:8001").is_ok();
            testkit::wait_for("kubectl proxy", crate::lab::LONG, is_there);
            let store = open(Access::Url("http://127.0.0.1:8001".to_owned())).await;
            assert_eq!(store.list("").await.unwrap().entries.len(), 1);

            // A server that another authority has signed is not talked to.
            let other = Authority::new();
            fs::write(&file, kubeconfig(&other.file("ca.pem"))).unwrap();
            let error = open(by_file).await.list("").await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(said(&error).contains("certificate"), "{}", said(&error));
        });
    });
}

/// The command of docs/kubernetes.md by which flannel leaves one node after the other.
#[test]
fn flannel_is_told_to_leave_as_the_page_says() {
    with_server(&[], |server| {
        let flannel = server.dir.path().join("flannel.json");
        fs::write(&flannel, FLANNEL).unwrap();
        server.kubectl(&["create", "namespace", "kube-flannel"]);
        server.kubectl(&["create", "-f", flannel.to_str().unwrap()]);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md");
        let page = fs::read_to_string(page).unwrap();
        let mut lines = page.lines().map(str::trim);
        let line = lines.find(|line| line.contains("patch daemonset kube-flannel-ds")).unwrap();
        let words = line.strip_prefix("kubectl ").unwrap();
        let kubectl = server.kubectl_words(&[]).join(" ");
        testkit::run("sh", &["-ec", &format!("{kubectl} {words}")]);
        let found =
            server.object("/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds");
        let terms = &found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"];
        assert_eq!(terms.as_array().unwrap().len(), 1);
        let conditions = terms[0]["matchExpressions"].as_array().unwrap();
        let of_podwire = conditions.iter().find(|condition| condition["key"] == "podwire").unwrap();
        assert_eq!(
            (&of_podwire["operator"], &of_podwire["values"][0]),
            (&"In".into(), &"off".into())
        );
    });
}

/// Flannel's own, but for most of its pods.
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
