// SPDX-License-Identifier: Apache-2.0
//! Debian's etcd, alone or as a cluster, on ports of a namespace of its own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Daemon, run, succeeds};
use crate::wait::wait_for;

/// A server that is alone elects itself in half a second. Of several on a busy machine, each would do so again and
/// again.
const QUICK: [&str; 4] = ["--heartbeat-interval", "50", "--election-timeout", "500"];

/// One server. It is killed when dropped.
#[derive(Debug)]
pub struct EtcdServer {
    number: u16,
    data: PathBuf,
    cluster: String,
    scheme: &'static str,
    host: String,
    extra: Vec<String>,
    /// What etcdctl needs to be let in.
    pub ctl_flags: Vec<String>,
    daemon: Option<Daemon>,
}

impl EtcdServer {
    /// So many servers that form one cluster, with their data below `dir`; not started yet.
    pub fn cluster(dir: &Path, count: u16) -> Vec<EtcdServer> {
        let members: Vec<_> = (0..count)
            .map(|number| format!("n{number}=http://127.0.0.1:{}", peer_port(number)))
            .collect();
        let cluster = members.join(",");
        let server = |number| EtcdServer {
            number,
            data: dir.join(format!("n{number}")),
            cluster: cluster.clone(),
            scheme: "http",
            host: "127.0.0.1".to_owned(),
            extra: Vec::new(),
            ctl_flags: Vec::new(),
            daemon: None,
        };
        (0..count).map(server).collect()
    }

    /// One that serves over TLS, with these flags.
    pub fn secure(dir: &Path, flags: &[String]) -> EtcdServer {
        let mut server = EtcdServer::cluster(dir, 1).remove(0);
        server.scheme = "https";
        server.extra = flags.to_vec();
        server
    }

    /// One for clients of other namespaces, at this address.
    pub fn at(dir: &Path, host: &str) -> EtcdServer {
        let mut server = EtcdServer::cluster(dir, 1).remove(0);
        server.host = host.to_owned();
        server
    }

    /// Starts it with these flags as well.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.extra.extend(flags.iter().map(|&flag| flag.to_owned()));
    }

    /// Where clients find it.
    pub fn endpoint(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.host, client_port(self.number))
    }

    /// Starts it, or starts it again with the data it has.
    #[track_caller]
    pub fn start(&mut self) {
        let (client, name) = (self.endpoint(), format!("n{}", self.number));
        let peer = format!("http://127.0.0.1:{}", peer_port(self.number));
        let data = self.data.to_str().expect("a path of a test is text");
        let mut words = vec!["--name", &name, "--data-dir", data];
        words.extend(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        words.extend(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        words.extend(["--initial-cluster", &self.cluster, "--logger", "zap"]);
        words.extend(["--log-level", "error"]);
        let is_alone = !self.cluster.contains(',');
        words.extend(QUICK.iter().filter(|_| is_alone));
        words.extend(self.extra.iter().map(String::as_str));
        self.daemon = Some(Daemon::start("etcd", &words));
    }

    /// As `kill -9` does.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Whether it was started and not killed since.
    pub fn is_running(&self) -> bool {
        self.daemon.is_some()
    }

    /// Until it answers, which it does once there is a leader.
    #[track_caller]
    pub fn wait(&self) {
        let words = self.ctl_words(&["endpoint", "health"]);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        wait_for("etcd to be healthy", Duration::from_secs(120), || succeeds("etcdctl", &words));
    }

    /// The process id.
    #[track_caller]
    pub fn process(&self) -> u32 {
        self.daemon.as_ref().map(Daemon::id).expect("it was started")
    }

    /// Loses everything it knew.
    #[track_caller]
    pub fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.data).expect("its data is there");
    }

    /// etcdctl; what it printed.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        let words = self.ctl_words(words);
        run("etcdctl", &words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Keys and values below a prefix.
    #[track_caller]
    pub fn entries(&self, prefix: &str) -> Vec<(String, String)> {
        let text = self.ctl(&["get", "--prefix", prefix]);
        let lines: Vec<_> = text.lines().collect();
        lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
    }

    fn ctl_words(&self, words: &[&str]) -> Vec<String> {
        let server = ["--endpoints".to_owned(), self.endpoint()].into_iter();
        let flags = self.ctl_flags.iter().cloned();
        server.chain(flags).chain(words.iter().map(|&word| word.to_owned())).collect()
    }

    /// How often a method was called, by etcd's own count.
    #[track_caller]
    pub fn calls(&self, method: &str) -> u64 {
        let address = (self.host.as_str(), client_port(self.number));
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let of_method = format!("grpc_method=\"{method}\"");
        let mut lines = text.lines().filter(|line| line.starts_with("grpc_server_started_total"));
        let line = lines.find(|line| line.contains(&of_method)).expect("a line for each method");
        let number = line.rsplit(' ').next().and_then(|word| word.parse::<f64>().ok());
        number.expect("a line ends with a number") as u64
    }
}

fn client_port(number: u16) -> u16 {
    2379 + 100 * number
}

fn peer_port(number: u16) -> u16 {
    client_port(number) + 1
}
