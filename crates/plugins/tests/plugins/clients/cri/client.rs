// SPDX-License-Identifier: Apache-2.0
//! The part of CRI v1 that a kubelet uses for a pod. Field numbers are from Kubernetes'
//! `api.proto`.

use std::cell::Cell;

use testkit::cgroup_parent;

use super::super::containerd::SOCKET;
use super::super::image::IMAGE;
use super::grpc;
use super::protobuf::{Message, Reader};

const SERVICE: &str = "runtime.v1.RuntimeService";

/// A pod to run.
pub struct Pod<'a> {
    pub name: &'a str,
    /// Pairs of host port and container port, TCP.
    pub ports: &'a [(u16, u16)],
    pub annotations: &'a [(&'a str, &'a str)],
}

/// A running pod.
pub struct Sandbox {
    id: String,
    /// `PodSandboxConfig`, sent again with each container.
    config: Message,
    pub ip: String,
}

pub struct Cri {
    /// Counter for unique container names.
    containers: Cell<u64>,
}

impl Cri {
    pub fn connect() -> Cri {
        Cri { containers: Cell::new(0) }
    }

    /// Returns the condition `NetworkReady`.
    pub fn is_network_ready(&self) -> bool {
        let reply = self.call("Status", &Message::default());
        let status = Reader(&reply).bytes(1).expect("Status has a status").to_vec();
        let conditions = Reader(&status).all(1);
        let network = conditions.iter().find(|one| Reader(one).text(1) == "NetworkReady");
        network.is_some_and(|one| Reader(one).number(2) == 1)
    }

    #[track_caller]
    pub fn run_pod(&self, pod: &Pod<'_>) -> Sandbox {
        let config = config(pod);
        let request = Message::default().message(1, &config);
        let id = Reader(&self.call("RunPodSandbox", &request)).text(1);
        let status = self.call("PodSandboxStatus", &Message::default().text(1, &id));
        // PodSandboxStatusResponse.status.network.ip
        let network = Reader(&status).bytes(1).and_then(|status| Reader(status).bytes(5));
        let ip = network.map(|network| Reader(network).text(1)).unwrap_or_default();
        assert!(!ip.is_empty(), "pod {} has no address", pod.name);
        Sandbox { id, config, ip }
    }

    /// Runs a container in a pod and returns its id. `command` is split at spaces.
    #[track_caller]
    pub fn run_container(&self, pod: &Sandbox, command: &str) -> String {
        let number = self.containers.replace(self.containers.get() + 1);
        let metadata = Message::default().text(1, &format!("c{number}"));
        let mut container = Message::default()
            .message(1, &metadata)
            .message(2, &Message::default().text(1, IMAGE))
            .text(3, "/bin/busybox");
        for word in command.split_whitespace() {
            container = container.text(4, word);
        }
        // LinuxContainerConfig: required, may be empty.
        let container = container.message(15, &Message::default());
        let request =
            Message::default().text(1, &pod.id).message(2, &container).message(3, &pod.config);
        let id = Reader(&self.call("CreateContainer", &request)).text(1);
        self.call("StartContainer", &Message::default().text(1, &id));
        id
    }

    /// Runs a command in a container. Returns its standard output, or its standard error if it
    /// failed.
    pub fn exec(&self, container: &str, words: &[&str]) -> Result<String, String> {
        let mut request = Message::default().text(1, container);
        for word in words {
            request = request.text(2, word);
        }
        // The call fails if the command exceeds this timeout in seconds.
        let reply = try_call("ExecSync", &request.number(3, 20))?;
        let reply = Reader(&reply);
        if reply.number(3) == 0 { Ok(reply.text(1)) } else { Err(reply.text(2)) }
    }

    #[track_caller]
    pub fn stop_pod(&self, pod: &Sandbox) {
        self.call("StopPodSandbox", &Message::default().text(1, &pod.id));
    }

    #[track_caller]
    pub fn remove_pod(&self, pod: &Sandbox) {
        self.call("RemovePodSandbox", &Message::default().text(1, &pod.id));
    }

    #[track_caller]
    fn call(&self, method: &str, request: &Message) -> Vec<u8> {
        match try_call(method, request) {
            Ok(reply) => reply,
            Err(why) => panic!("{method}: {why}"),
        }
    }
}

fn try_call(method: &str, request: &Message) -> Result<Vec<u8>, String> {
    grpc::call(SOCKET, &format!("/{SERVICE}/{method}"), request.bytes())
}

/// `PodSandboxConfig`.
fn config(pod: &Pod<'_>) -> Message {
    let metadata = Message::default()
        .text(1, pod.name)
        .text(2, &format!("uid-of-{}", pod.name))
        .text(3, "default");
    let mut config = Message::default().message(1, &metadata).text(2, pod.name);
    for &(host, container) in pod.ports {
        let port = Message::default().number(2, u64::from(container)).number(3, u64::from(host));
        config = config.message(5, &port);
    }
    for (key, value) in pod.annotations {
        config = config.message(7, &Message::default().text(1, key).text(2, value));
    }
    config.message(8, &Message::default().text(1, &cgroup_parent()))
}
