// SPDX-License-Identifier: Apache-2.0
//! Debian's etcd, alone or as a cluster, on ports of a namespace of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use store::Store;
use store::etcd::{Etcd, EtcdConf};
use tempfile::TempDir;
use testkit::{Daemon, in_netns, require, run, succeeds, wait_for};

use crate::lab::{Lab, Later, block_on};

/// Elections in half a second, and so times to live of a second and more.
const QUICK: [&str; 4] = ["--heartbeat-interval", "50", "--election-timeout", "500"];

/// One server. It is killed when dropped.
pub struct Server {
    number: u16,
    data: PathBuf,
    cluster: String,
    scheme: &'static str,
    extra: Vec<String>,
    /// What etcdctl needs to be let in.
    pub ctl_flags: Vec<String>,
    daemon: Option<Daemon>,
}

impl Server {
    /// So many servers that form one cluster, with their data below `dir`; not started yet.
    pub fn cluster(dir: &Path, count: u16) -> Vec<Server> {
        let members: Vec<_> = (0..count)
            .map(|number| format!("n{number}=http://127.0.0.1:{}", peer_port(number)))
            .collect();
        let cluster = members.join(",");
        let server = |number| Server {
            number,
            data: dir.join(format!("n{number}")),
            cluster: cluster.clone(),
            scheme: "http",
            extra: Vec::new(),
            ctl_flags: Vec::new(),
            daemon: None,
        };
        (0..count).map(server).collect()
    }

    /// One that serves over TLS, with these flags.
    pub fn secure(dir: &Path, flags: &[String]) -> Server {
        let mut server = Server::cluster(dir, 1).remove(0);
        server.scheme = "https";
        server.extra = flags.to_vec();
        server
    }

    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, client_port(self.number))
    }

    pub fn start(&mut self) {
        let (client, name) = (self.endpoint(), format!("n{}", self.number));
        let peer = format!("http://127.0.0.1:{}", peer_port(self.number));
        let mut words = vec!["--name", &name, "--data-dir", self.data.to_str().unwrap()];
        words.extend(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        words.extend(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        words.extend(["--initial-cluster", &self.cluster, "--logger", "zap"]);
        words.extend(["--log-level", "error"]);
        words.extend(QUICK);
        words.extend(self.extra.iter().map(String::as_str));
        self.daemon = Some(Daemon::start("etcd", &words));
    }

    /// As `kill -9` does.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    pub fn is_running(&self) -> bool {
        self.daemon.is_some()
    }

    /// Until it answers, which it does once there is a leader.
    pub fn wait(&self) {
        let words = self.ctl_words(&["endpoint", "health"]);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        wait_for("etcd to be healthy", Duration::from_secs(30), || succeeds("etcdctl", &words));
    }

    pub fn process(&self) -> u32 {
        self.daemon.as_ref().map(Daemon::id).unwrap()
    }

    /// Loses everything it knew.
    pub fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.data).unwrap();
    }

    pub fn ctl(&self, words: &[&str]) -> String {
        let words = self.ctl_words(words);
        run("etcdctl", &words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn ctl_words(&self, words: &[&str]) -> Vec<String> {
        let server = ["--endpoints".to_owned(), self.endpoint()].into_iter();
        let flags = self.ctl_flags.iter().cloned();
        server.chain(flags).chain(words.iter().map(|&word| word.to_owned())).collect()
    }

    pub fn client(&self) -> Etcd {
        client(&[self])
    }

    /// How often a method was called, by etcd's own count.
    pub fn calls(&self, method: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", client_port(self.number))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let of_method = format!("grpc_method=\"{method}\"");
        let mut lines = text.lines().filter(|line| line.starts_with("grpc_server_started_total"));
        let line = lines.find(|line| line.contains(&of_method)).expect("a line for each method");
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
    }
}

fn client_port(number: u16) -> u16 {
    2379 + 100 * number
}

fn peer_port(number: u16) -> u16 {
    client_port(number) + 1
}

/// A client that knows these servers.
pub fn client(servers: &[&Server]) -> Etcd {
    let endpoints = servers.iter().map(|server| server.endpoint()).collect();
    Etcd::new(&EtcdConf { endpoints, ..EtcdConf::default() }).unwrap()
}

/// One server, running, and its directory.
pub struct EtcdLab {
    pub server: Server,
    _dir: TempDir,
}

impl EtcdLab {
    pub fn start() -> Self {
        require!(Program("etcd"), Program("etcdctl"));
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::cluster(dir.path(), 1).remove(0);
        server.start();
        server.wait();
        Self { server, _dir: dir }
    }
}

impl Lab for EtcdLab {
    fn open(&self) -> Later<'_, Arc<dyn Store>> {
        Box::pin(async { Arc::new(self.server.client()) as Arc<dyn Store> })
    }

    fn compact(&self) -> Later<'_, ()> {
        Box::pin(async { compact(&self.server).await })
    }

    fn witness(&self, prefix: &str) -> Vec<(String, String)> {
        let text = self.server.ctl(&["get", "--prefix", prefix]);
        let lines: Vec<_> = text.lines().collect();
        let pairs = lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
        pairs.collect()
    }
}

/// Makes a server forget all changes up to now.
pub async fn compact(server: &Server) {
    let now = server.client().list("").await.unwrap().revision;
    server.ctl(&["compact", &now.to_string()]);
}

/// Runs a test of the suite with a server of its own.
pub fn in_etcd(test: impl for<'a> FnOnce(&'a dyn Lab) -> Later<'a, ()>) {
    in_netns(|| {
        let lab = EtcdLab::start();
        block_on(test(&lab));
    });
}
