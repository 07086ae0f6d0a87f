// SPDX-License-Identifier: Apache-2.0
//! A stand-in for the node agent: answers the requests of calico-ipam from memory and keeps the
//! journal. It is written against the documented JSON, not with podwire's types.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// Directory of the journal in these tests.
pub const STATE: &str = "/run/state";

#[derive(Debug, Default)]
struct State {
    directory: String,
    /// Addresses by `network/container/interface`.
    assigned: BTreeMap<String, Vec<String>>,
    assignments: u32,
    refusal: Option<Value>,
    /// Pages of pods by path.
    pods: BTreeMap<String, Value>,
    /// Requests as `path body`.
    requests: Vec<(String, Value)>,
}

/// An agent; its thread ends with the test.
#[derive(Debug, Clone)]
pub struct Agent(Arc<Mutex<State>>);

impl Agent {
    pub fn start(socket: &str) -> Agent {
        Agent::start_in(socket, STATE)
    }

    pub fn start_in(socket: &str, state_dir: &str) -> Agent {
        fs::create_dir_all(Path::new(socket).parent().expect("the socket is in a directory"))
            .expect("write below /run");
        let listener = UnixListener::bind(socket).expect("create the socket");
        let state = State { directory: state_dir.to_owned(), ..State::default() };
        let agent = Agent(Arc::new(Mutex::new(state)));
        let served = agent.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that gives up closes the connection.
                let _ = served.serve(stream.expect("accept a connection"));
            }
        });
        agent
    }

    /// Answers all further requests with an error.
    pub fn refuse(&self, code: u32, msg: &str) {
        self.0.lock().expect("no thread panicked").refusal =
            Some(json!({"code": code, "msg": msg, "details": "why"}));
    }

    pub fn accept(&self) {
        self.0.lock().expect("no thread panicked").refusal = None;
    }

    /// Sets the annotations of a pod in the namespace `default`, and of the namespace.
    pub fn annotate(&self, pod: &str, annotations: &Value, namespace: &Value) {
        let page = json!({"annotations": annotations, "namespace_annotations": namespace});
        let path = format!("/pod/default/{pod}/u-{pod}");
        self.0.lock().expect("no thread panicked").pods.insert(path, page);
    }

    /// The assigned addresses.
    pub fn assigned(&self) -> Vec<String> {
        self.0.lock().expect("no thread panicked").assigned.values().flatten().cloned().collect()
    }

    /// The last request to this path.
    pub fn last(&self, path: &str) -> Value {
        let state = self.0.lock().expect("no thread panicked");
        let found = state.requests.iter().rev().find(|(asked, _)| asked == path);
        found.map(|(_, body)| body.clone()).unwrap_or_default()
    }

    fn serve(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut head, mut length) = (String::new(), 0);
        reader.read_line(&mut head)?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let words: Vec<&str> = head.split(' ').collect();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = self.answer(words[0], words[1], &body);
        let mut stream = stream;
        write!(stream, "HTTP/1.0 {status} X\r\n\r\n{answer}")
    }

    fn answer(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut state = self.0.lock().expect("no thread panicked");
        state.requests.push((path.to_owned(), body.clone()));
        if let Some(refusal) = &state.refusal {
            return (503, refusal.clone());
        }
        match (method, path) {
            ("GET", "/readyz" | "/ipam/status") => (200, json!({})),
            ("GET", page) => {
                state.pods.get(page).map_or((404, json!("no")), |pod| (200, pod.clone()))
            }
            ("POST", "/ipam/assign") => (200, state.assign(body)),
            ("POST", "/ipam/release") => {
                let released = state.assigned.remove(&key(body)).unwrap_or_default();
                let _ = fs::remove_file(state.journal(body));
                (200, json!({"released": released}))
            }
            ("POST", "/ipam/gc") => {
                let valid: Vec<String> = body["valid"]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|one| {
                        let mut one = one.clone();
                        one["network"] = body["network"].clone();
                        key(&one)
                    })
                    .collect();
                let network = format!("{}/", body["network"].as_str().expect("a text"));
                state.assigned.retain(|key, _| !key.starts_with(&network) || valid.contains(key));
                (200, json!({"released": []}))
            }
            _ => (405, json!("no")),
        }
    }
}

fn key(body: &Value) -> String {
    let text = |key: &str| body[key].as_str().expect("a text").to_owned();
    format!("{}/{}/{}", text("network"), text("container_id"), text("ifname"))
}

impl State {
    fn journal(&self, body: &Value) -> String {
        let text = |key: &str| body[key].as_str().expect("a text").to_owned();
        format!("{}/ipam/{}:{}", self.directory, text("handle"), text("ifname"))
    }

    fn assign(&mut self, body: &Value) -> Value {
        self.assignments += 1;
        let number = self.assignments;
        let requested = body["addresses"].as_array().cloned().unwrap_or_default();
        let new = match requested.is_empty() {
            false => requested.iter().map(|one| one.as_str().expect("a text").to_owned()).collect(),
            true => [("ipv4", "10.5.0."), ("ipv6", "fd00:5::")]
                .iter()
                .filter(|(family, _)| body[family] == true)
                .map(|(_, prefix)| format!("{prefix}{number}"))
                .collect(),
        };
        let addresses = self.assigned.entry(key(body)).or_insert(new).clone();
        fs::create_dir_all(format!("{}/ipam", self.directory)).expect("write below /run");
        let entry = json!({"handle": body["handle"], "addresses": addresses});
        fs::write(self.journal(body), entry.to_string()).expect("write below /run");
        json!({"addresses": addresses, "pools": ["default"]})
    }
}
