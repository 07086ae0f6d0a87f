// SPDX-License-Identifier: Apache-2.0
//! A real Kubernetes API server with its own etcd, in its own namespace.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::authority::Authority;
use crate::command::{Daemon, json, run, try_run};
use crate::etcd::EtcdServer;
use crate::wait::wait_for;

/// Users that may log in: token, name, ID.
const USERS: &str = "admin-token,admin,1,system:masters
podwire-token,system:serviceaccount:kube-podwire:podwire,2
nobody-token,nobody,3
";

/// The parts of the API that the tests use; fewer parts start faster.
const PARTS: &str = "api/all=false,api/v1=true,apps/v1=true,rbac.authorization.k8s.io/v1=true,\
    apiregistration.k8s.io/v1=true,apiextensions.k8s.io/v1=true";

/// Admission plugins that need disabled parts of the API, or controllers that do not run.
const DISABLED_PLUGINS: &str = "CertificateApproval,CertificateSigning,CertificateSubjectRestriction,\
    DefaultIngressClass,DefaultStorageClass,LimitRanger,MutatingAdmissionWebhook,\
    PersistentVolumeClaimResize,Priority,ResourceQuota,RuntimeClass,ServiceAccount,\
    StorageObjectInUseProtection,ValidatingAdmissionWebhook";

/// Maximum time to start on a machine that runs many tests at once.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// An API server, killed when dropped.
#[derive(Debug)]
pub struct ApiServer {
    programs: PathBuf,
    host: String,
    /// Temporary directory, also for files of the test.
    pub dir: TempDir,
    authority: Authority,
    pub etcd: EtcdServer,
    extra: Vec<String>,
    daemon: Option<Daemon>,
}

impl ApiServer {
    /// Starts a server at this address, with `extra` options. `programs` is the directory that
    /// [`kubernetes`](crate::kubernetes) returns.
    #[track_caller]
    pub fn start(programs: &Path, host: &str, extra: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("create a temporary directory");
        let authority = Authority::new();
        authority.sign("server");
        fs::write(dir.path().join("users.csv"), USERS).expect("write a temporary file");
        let mut etcd = EtcdServer::cluster(dir.path(), 1).remove(0);
        etcd.start();
        etcd.wait();
        let extra = extra.iter().map(|&word| word.to_owned()).collect();
        let (programs, host) = (programs.to_path_buf(), host.to_owned());
        let mut server = Self { programs, host, dir, authority, etcd, extra, daemon: None };
        server.restart();
        server
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("https://{}:6443", self.host)
    }

    /// Restarts the server and waits until it answers.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        let words = self.flags();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let program = self.programs.join("kube-apiserver").display().to_string();
        self.daemon = Some(Daemon::start(&program, &words));
        wait_for("the API server to answer", START_TIMEOUT, || {
            let is_there = TcpStream::connect((self.host.as_str(), 6443)).is_ok();
            is_there && self.try_kubectl(&["get", "--raw", "/api/v1/nodes?limit=1"]).is_ok()
        });
    }

    fn flags(&self) -> Vec<String> {
        let path = |file: &str| self.dir.path().join(file).display().to_string();
        let pem = |file: &str| self.authority.file(file).display().to_string();
        let flags = [
            ("etcd-servers", self.etcd.endpoint()),
            ("bind-address", self.host.clone()),
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
            ("disable-admission-plugins", DISABLED_PLUGINS.to_owned()),
            ("enable-priority-and-fairness", "false".to_owned()),
            // Errors are still printed to stderr.
            ("logtostderr", "false".to_owned()),
            ("log-dir", self.dir.path().display().to_string()),
        ];
        let words = flags.iter().map(|(flag, value)| format!("--{flag}={value}"));
        words.chain(self.extra.iter().cloned()).collect()
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Returns the process ID, for tests that stop and continue the server.
    #[track_caller]
    pub fn process(&self) -> u32 {
        self.daemon.as_ref().expect("the API server runs").id()
    }

    /// Returns the CA certificate of the server.
    pub fn ca(&self) -> PathBuf {
        self.authority.file("ca.pem")
    }

    /// Returns a kubeconfig with this token and CA certificate.
    pub fn kubeconfig(&self, token: &str, ca: &Path) -> String {
        let (url, ca) = (self.url(), ca.display());
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: k, cluster: {{server: '{url}', certificate-authority: {ca}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n"
        )
    }

    /// Runs kubectl as administrator and returns its output.
    #[track_caller]
    pub fn kubectl(&self, words: &[&str]) -> String {
        let words = self.kubectl_words(words);
        run(&words[0], &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Like [`kubectl`](Self::kubectl), for commands that may fail.
    pub fn try_kubectl(&self, words: &[&str]) -> Result<String, String> {
        let words = self.kubectl_words(words);
        try_run(&words[0], &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the object at this API path.
    #[track_caller]
    pub fn object(&self, path: &str) -> Value {
        let words = self.kubectl_words(&["get", "--raw", path]);
        json(&words[0], &words[1..].iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    pub fn node(&self, name: &str) -> Value {
        self.object(&format!("/api/v1/nodes/{name}"))
    }

    /// Creates an object.
    #[track_caller]
    pub fn create(&self, object: &Value) {
        let path = self.dir.path().join("object.json");
        fs::write(&path, object.to_string()).expect("write a temporary file");
        self.kubectl(&["create", "-f", &path.display().to_string()]);
    }

    /// Returns the command line of kubectl: program, credentials and these arguments.
    pub fn kubectl_words(&self, words: &[&str]) -> Vec<String> {
        let own = [
            self.programs.join("kubectl").display().to_string(),
            format!("--server={}", self.url()),
            format!("--certificate-authority={}", self.ca().display()),
            "--token=admin-token".to_owned(),
            format!("--cache-dir={}", self.dir.path().join("kubectl").display()),
        ];
        own.into_iter().chain(words.iter().map(|&word| word.to_owned())).collect()
    }
}
