// SPDX-License-Identifier: Apache-2.0
//! A real API server of Kubernetes on an etcd of its own, in a namespace of its own.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use store::Store;
use store::kubernetes::{Access, Kubernetes, KubernetesConf};
use tempfile::TempDir;
use testkit::{Daemon, in_netns, json, run, try_run, wait_for};

use crate::authority::Authority;
use crate::lab::{Lab, Later, block_on};
use crate::server::{Server, compact};
use crate::words::{Worded, bytes, word_of};

pub const PREFIX: &str = "flannel.alpha.coreos.com/";

pub const URL: &str = "https://127.0.0.1:6443";

/// Those who are let in: a token, a name, a number.
const USERS: &str = "admin-token,admin,1,system:masters
podwire-token,system:serviceaccount:kube-podwire:podwire,2
nobody-token,nobody,3
";

/// The parts of the API that the tests use; fewer parts start faster.
const PARTS: &str = "api/all=false,api/v1=true,apps/v1=true,rbac.authorization.k8s.io/v1=true,\
    apiregistration.k8s.io/v1=true,apiextensions.k8s.io/v1=true";

/// What looks at requests by means of the other parts, or of controllers that nobody has started.
const NO_CHECKS: &str = "CertificateApproval,CertificateSigning,CertificateSubjectRestriction,\
    DefaultIngressClass,DefaultStorageClass,LimitRanger,MutatingAdmissionWebhook,\
    PersistentVolumeClaimResize,Priority,ResourceQuota,RuntimeClass,ServiceAccount,\
    StorageObjectInUseProtection,ValidatingAdmissionWebhook";

/// A machine with many tests at once takes its time to start it.
const START: Duration = Duration::from_secs(120);

pub struct ApiServer {
    programs: PathBuf,
    pub dir: TempDir,
    authority: Authority,
    pub etcd: Server,
    extra: Vec<String>,
    daemon: Option<Daemon>,
}

impl ApiServer {
    /// With these flags besides those that it needs.
    pub fn start(programs: &Path, extra: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.sign("server");
        fs::write(dir.path().join("users.csv"), USERS).unwrap();
        let mut etcd = Server::cluster(dir.path(), 1).remove(0);
        etcd.start();
        etcd.wait();
        let extra = extra.iter().map(|&word| word.to_owned()).collect();
        let programs = programs.to_path_buf();
        let mut server = Self { programs, dir, authority, etcd, extra, daemon: None };
        server.restart();
        server
    }

    /// Comes back only when it answers.
    pub fn restart(&mut self) {
        self.kill();
        let path = |file: &str| self.dir.path().join(file).to_str().unwrap().to_owned();
        let pem = |file: &str| self.authority.file(file).to_str().unwrap().to_owned();
        let flags = [
            ("etcd-servers", self.etcd.endpoint()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", "6443".to_owned()),
            ("advertise-address", "192.0.2.1".to_owned()),
            ("endpoint-reconciler-type", "none".to_owned()),
            ("service-cluster-ip-range", "10.96.0.0/24".to_owned()),
            ("cert-dir", path("certs")),
            ("tls-cert-file", pem("server.pem")),
            ("tls-private-key-file", pem("server.key")),
            ("token-auth-file", path("users.csv")),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-key-file", pem("server.pem")),
            ("service-account-signing-key-file", pem("server.key")),
            ("runtime-config", PARTS.to_owned()),
            ("disable-admission-plugins", NO_CHECKS.to_owned()),
            ("enable-priority-and-fairness", "false".to_owned()),
            // Errors are printed all the same.
            ("logtostderr", "false".to_owned()),
            ("log-dir", self.dir.path().to_str().unwrap().to_owned()),
        ];
        let mut words: Vec<_> =
            flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
        words.extend(self.extra.iter().cloned());
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let program = self.programs.join("kube-apiserver");
        self.daemon = Some(Daemon::start(program.to_str().unwrap(), &words));
        wait_for("the API server to answer", START, || {
            let is_there = TcpStream::connect("127.0.0.1:6443").is_ok();
            is_there && self.try_kubectl(&["get", "--raw", "/api/v1/nodes?limit=1"]).is_ok()
        });
    }

    /// As `kill -9` does.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    pub fn conf(&self, access: Access) -> KubernetesConf {
        KubernetesConf { access, annotation_prefixes: vec![PREFIX.to_owned()] }
    }

    /// Let in as pods are.
    pub async fn client(&self, token: &str) -> Kubernetes {
        let dir = self.dir.path().join(token);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("token"), token).unwrap();
        fs::copy(self.ca(), dir.join("ca.crt")).unwrap();
        Kubernetes::open(&self.conf(Access::Pod { url: URL.to_owned(), dir })).await.unwrap()
    }

    pub fn ca(&self) -> PathBuf {
        self.authority.file("ca.pem")
    }

    pub fn kubectl(&self, words: &[&str]) -> String {
        let words = self.kubectl_words(words);
        run(&words[0], &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn try_kubectl(&self, words: &[&str]) -> Result<String, String> {
        let words = self.kubectl_words(words);
        try_run(&words[0], &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// What is there, as JSON.
    pub fn object(&self, path: &str) -> Value {
        let words = self.kubectl_words(&["get", "--raw", path]);
        json(&words[0], &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn node(&self, name: &str) -> Value {
        self.object(&format!("/api/v1/nodes/{name}"))
    }

    pub fn kubectl_words(&self, words: &[&str]) -> Vec<String> {
        let program = self.programs.join("kubectl").to_str().unwrap().to_owned();
        let cache = self.dir.path().join("kubectl").to_str().unwrap().to_owned();
        let ca = self.ca().to_str().unwrap().to_owned();
        let own = [
            program,
            format!("--server={URL}"),
            format!("--certificate-authority={ca}"),
            "--token=admin-token".to_owned(),
            format!("--cache-dir={cache}"),
        ];
        own.into_iter().chain(words.iter().map(|&word| word.to_owned())).collect()
    }
}

impl Lab for ApiServer {
    fn open(&self) -> Later<'_, Arc<dyn Store>> {
        Box::pin(async {
            let store = Arc::new(self.client("admin-token").await);
            Arc::new(Worded(store)) as Arc<dyn Store>
        })
    }

    fn compact(&self) -> Later<'_, ()> {
        Box::pin(async { compact(&self.etcd).await })
    }

    /// All annotations of a node have 256 KB together, and here there are two digits for a byte.
    fn longest_value(&self) -> usize {
        120_000
    }

    fn witness(&self, prefix: &str) -> Vec<(String, String)> {
        let nodes = self.object("/api/v1/nodes");
        let nodes = nodes["items"].as_array().unwrap().iter();
        let found = nodes.map(|node| {
            let name = node["metadata"]["name"].as_str().unwrap();
            let value = &node["metadata"]["annotations"][format!("{PREFIX}backend-data")];
            let value = String::from_utf8(bytes(value.as_str().unwrap())).unwrap();
            (word_of(&Kubernetes::key(name)), value)
        });
        found.filter(|(key, _)| key.starts_with(prefix)).collect()
    }
}

/// Runs a test with a server of its own, if there is one to run.
pub fn with_server(extra: &[&str], test: impl FnOnce(&mut ApiServer)) {
    let Some(programs) = testkit::kubernetes() else { return };
    in_netns(|| test(&mut ApiServer::start(&programs, extra)));
}

/// Runs a test of the suite.
pub fn in_kubernetes(test: impl for<'a> FnOnce(&'a dyn Lab) -> Later<'a, ()>) {
    with_server(&[], |server| block_on(test(server)));
}

/// With a server that remembers no more than its etcd does.
pub fn in_forgetful_kubernetes(test: impl for<'a> FnOnce(&'a dyn Lab) -> Later<'a, ()>) {
    with_server(&["--watch-cache-sizes=nodes#0"], |server| block_on(test(server)));
}
