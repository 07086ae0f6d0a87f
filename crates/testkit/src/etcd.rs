// SPDX-License-Identifier: Apache-2.0
//! Debian's etcd, as a single server or a cluster, in its own namespace.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Daemon, run, succeeds};
use crate::wait::wait_for;

/// Lets a single server elect itself in half a second. In a cluster on a busy machine, such short timeouts
/// would cause one election after the other.
const SINGLE_SERVER_TIMEOUTS: [&str; 4] =
    ["--heartbeat-interval", "50", "--election-timeout", "500"];

/// An etcd server, killed when dropped.
#[derive(Debug)]
pub struct EtcdServer {
    number: u16,
    data: PathBuf,
    cluster: String,
    scheme: &'static str,
    host: String,
    extra: Vec<String>,
    /// Options that etcdctl needs to connect.
    pub ctl_flags: Vec<String>,
    daemon: Option<Daemon>,
}

impl EtcdServer {
    /// Returns `count` servers that form one cluster, with their data below `dir`, without starting them.
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

    /// Returns a single server that uses TLS, with these options.
    pub fn secure(dir: &Path, flags: &[String]) -> EtcdServer {
        let mut server = EtcdServer::cluster(dir, 1).remove(0);
        server.scheme = "https";
        server.extra = flags.to_vec();
        server
    }

    /// Returns a single server at this address, for clients in other namespaces.
    pub fn at(dir: &Path, host: &str) -> EtcdServer {
        let mut server = EtcdServer::cluster(dir, 1).remove(0);
        server.host = host.to_owned();
        server
    }

    /// Adds options for the next start.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.extra.extend(flags.iter().map(|&flag| flag.to_owned()));
    }

    /// Returns the endpoint for clients.
    pub fn endpoint(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.host, client_port(self.number))
    }

    /// Starts the server, with the data of an earlier start if there is any.
    #[track_caller]
    pub fn start(&mut self) {
        let (client, name) = (self.endpoint(), format!("n{}", self.number));
        let peer = format!("http://127.0.0.1:{}", peer_port(self.number));
        let data = self.data.to_str().expect("a UTF-8 path");
        let mut words = vec!["--name", &name, "--data-dir", data];
        words.extend(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        words.extend(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        words.extend(["--initial-cluster", &self.cluster, "--logger", "zap"]);
        words.extend(["--log-level", "error"]);
        let is_single = !self.cluster.contains(',');
        words.extend(SINGLE_SERVER_TIMEOUTS.iter().filter(|_| is_single));
        words.extend(self.extra.iter().map(String::as_str));
        self.daemon = Some(Daemon::start("etcd", &words));
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Returns whether the server was started and not killed since.
    pub fn is_running(&self) -> bool {
        self.daemon.is_some()
    }

    /// Waits until the server answers, which requires a leader.
    #[track_caller]
    pub fn wait(&self) {
        let words = self.ctl_words(&["endpoint", "health"]);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        wait_for("etcd to be healthy", Duration::from_secs(120), || succeeds("etcdctl", &words));
    }

    /// Returns the process ID.
    #[track_caller]
    pub fn process(&self) -> u32 {
        self.daemon.as_ref().map(Daemon::id).expect("etcd was started")
    }

    /// Kills the server and deletes its data.
    #[track_caller]
    pub fn wipe(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.data).expect("remove the data of etcd");
    }

    /// Runs etcdctl and returns its output.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> String {
        let words = self.ctl_words(words);
        run("etcdctl", &words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Returns the keys and values below a prefix.
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

    /// Returns the number of calls of a gRPC method, from etcd's metrics.
    #[track_caller]
    pub fn calls(&self, method: &str) -> u64 {
        let address = (self.host.as_str(), client_port(self.number));
        let mut stream = TcpStream::connect(address).expect("connect to etcd");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("send a request to etcd");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("read the metrics of etcd");
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
