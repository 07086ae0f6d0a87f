// SPDX-License-Identifier: Apache-2.0
//! A machine with a pools controller, without devices and routes for other nodes.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use agent_client::ipam::{
    self as wire, AssignRequest, AssignResponse, Failure, ReleaseRequest, journal,
};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};

use crate::lease;
use crate::pools::api::PoolsApi;
use crate::pools::{PoolsController, Request};
use crate::settings::{self, Command, Invocation, Settings};
use crate::status::StatusHub;
use crate::supervisor::{Supervisor, Timing};

/// A directory per machine, with its state and the namespaces of its containers.
const DIRECTORY: &str = "/run/lab";

/// A machine. The journal on it survives the agent.
#[derive(Debug)]
pub(super) struct Machine {
    pub name: String,
    directory: PathBuf,
    flags: Vec<String>,
    agent: Option<Agent>,
}

/// A running agent. Dropping the value ends all tasks at their next wait, as a kill does.
#[derive(Debug)]
struct Agent {
    api: PoolsApi,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Machine {
    /// Creates a machine with the address `192.168.90.<number>` on an interface of its own.
    pub(super) fn new(number: usize, endpoint: &str) -> Machine {
        let (name, interface) = (format!("node-{number}"), format!("n{number}"));
        testkit::run("ip", &["link", "add", &interface, "type", "bridge"]);
        let address = format!("192.168.90.{number}/24");
        testkit::run("ip", &["address", "add", &address, "dev", &interface, "noprefixroute"]);
        testkit::run("ip", &["link", "set", &interface, "up"]);
        let directory = PathBuf::from(DIRECTORY).join(&name);
        fs::create_dir_all(directory.join("netns")).unwrap();
        let state = directory.join("state").display().to_string();
        let flags = ["--pods", "routed", "--pool-leak-grace", "0", "--etcd-endpoints", endpoint];
        let own = ["--node-name", &name, "--iface", &interface, "--state-dir", &state];
        let flags: Vec<String> = flags.iter().chain(&own).map(|&word| word.to_owned()).collect();
        Machine { name, directory, flags, agent: None }
    }

    /// Adds options for the next start of the agent.
    pub(super) fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
    }

    fn settings(&self) -> Settings {
        let read = |path: &str| fs::read_to_string(path);
        let parsed = settings::parse(Command::Agent, &self.flags, |_| None, read);
        let Ok(Invocation::Run(settings)) = parsed else { panic!("{parsed:?}") };
        *settings
    }

    /// Starts the agent.
    pub(super) fn start(&mut self) {
        let (requests, received) = unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let settings = self.settings();
        let thread = std::thread::spawn(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                tokio::select! {
                    () = run(settings, received) => panic!("the agent ended"),
                    _ = stopped => {}
                }
            });
        });
        let api = PoolsApi::new(requests, None);
        self.agent = Some(Agent { api, stop: Some(stop), thread: Some(thread) });
    }

    /// Ends the agent where its tasks wait.
    pub(super) fn kill(&mut self) {
        self.agent = None;
    }

    pub(super) fn is_running(&self) -> bool {
        self.agent.is_some()
    }

    /// Returns the API of the running agent.
    pub(super) fn api(&self) -> Option<PoolsApi> {
        self.agent.as_ref().map(|agent| agent.api.clone())
    }

    /// Creates the network namespace of a container: any file.
    pub(super) fn create_netns(&self, container: &str) -> String {
        let path = self.directory.join("netns").join(container);
        fs::write(&path, "").unwrap();
        path.display().to_string()
    }

    pub(super) fn remove_netns(&self, container: &str) {
        let _ = fs::remove_file(self.directory.join("netns").join(container));
    }

    /// Releases as the plugin does while no agent answers.
    pub(super) fn remove_journal(&self, container: &str) {
        let handle = wire::handle("net", container);
        let file = journal::file(&self.directory.join("state"), &handle, "eth0");
        let _ = fs::remove_file(file);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the agent panicked");
    }
}

/// Runs the pools controller for ever.
async fn run(settings: Settings, requests: UnboundedReceiver<Request>) {
    let settings = Arc::new(settings);
    let hub = StatusHub::new(String::new(), "etcd");
    let (objects, _) = lease::open_objects(&settings).await.unwrap();
    let supervisor = Supervisor::new(&hub, Timing::default(), None);
    // Nothing reads the routes.
    let (routed, _) = unbounded_channel();
    let underlay = Arc::new(Notify::new());
    let mut pools = PoolsController::new(&settings, &hub, objects, &underlay, requests, routed);
    supervisor.add("pools", async move |heartbeat| pools.run(heartbeat).await);
    supervisor.run().await;
}

/// Asks for an address.
pub(super) async fn assign(
    api: &PoolsApi,
    container: &str,
    netns: &str,
) -> Result<IpAddr, Failure> {
    let request = AssignRequest {
        network: "net".to_owned(),
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        netns: netns.to_owned(),
        handle: wire::handle("net", container),
        ipv4: true,
        ..AssignRequest::default()
    };
    let answer = post(api, wire::ASSIGN, &request).await?;
    let response: AssignResponse = serde_json::from_str(&answer).unwrap();
    Ok(response.addresses[0])
}

pub(super) async fn release(api: &PoolsApi, container: &str) -> Result<(), Failure> {
    let request = ReleaseRequest {
        network: "net".to_owned(),
        container_id: container.to_owned(),
        ifname: "eth0".to_owned(),
        handle: wire::handle("net", container),
        ..ReleaseRequest::default()
    };
    post(api, wire::RELEASE, &request).await.map(drop)
}

async fn post(api: &PoolsApi, path: &str, body: &impl Serialize) -> Result<String, Failure> {
    let body = serde_json::to_vec(body).unwrap();
    api.answer(path, &body).await.expect("a path of the API")
}
