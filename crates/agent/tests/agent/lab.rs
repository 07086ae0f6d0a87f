// SPDX-License-Identifier: Apache-2.0
//! Networks of complete agents, each in the namespace of its own node and started with flags.

mod backend_change;
mod backends;
mod bad_input;
mod bridge;
mod cleanup;
mod configuration;
mod conflicts;
mod dry_run;
mod etcd_faults;
mod extension;
mod faults;
mod flannel_takeover;
mod kubernetes;
mod managed_files;
mod pool_check;
mod read_only_sysctl;
mod repairs;
mod restart;
mod routed;
mod routed_kubernetes;
mod services;
mod source_address;
mod store_file;
mod store_outage;
mod tunnels;
mod underlay;
mod unreachable_peer;

use std::thread::JoinHandle;
use std::time::Duration;

use agent::settings::{self, Command, Invocation, Settings};
use agent::status::{RepairKind, Status, StatusHub};
use agent::supervisor::{FaultInjector, Faults, Timing};
use kernel::Netns;
use testkit::{EtcdServer, Node, Pod, Wire, wait_some};
use tokio::sync::oneshot;

/// Long enough for a machine that runs other tests.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Flags that select a store.
#[derive(Debug, Clone)]
pub struct Store(Vec<String>);

impl Store {
    pub const FILE: &str = "/run/lab/store.db";

    /// A file that all agents share.
    pub fn embedded(net_config: &str) -> Store {
        Store(words(&["--store-file", Self::FILE, "--net-config", net_config]))
    }

    pub fn etcd(server: &EtcdServer, net_config: &str) -> Store {
        let endpoint = server.endpoint();
        Store(words(&["--etcd-endpoints", &endpoint, "--net-config", net_config]))
    }

    /// Adds flags.
    pub fn and(&self, flags: &[&str]) -> Store {
        Store([self.0.clone(), words(flags)].concat())
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Parses flags and variables.
fn settings(command: Command, flags: &[String], vars: &[(&str, &str)]) -> Settings {
    let value = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    let var = |name: &str| value(name).map(str::to_owned);
    let asked = settings::parse(command, flags, var, |path| std::fs::read_to_string(path));
    let Ok(Invocation::Run(settings)) = asked else { panic!("{asked:?}") };
    *settings
}

/// Starts an etcd that all nodes reach, with its data on disk.
pub fn etcd() -> EtcdServer {
    testkit::require!(Program("etcd"), Program("etcdctl"));
    let mut server = EtcdServer::at("/run/lab/etcd".as_ref(), Wire::HOST);
    server.start();
    server.wait();
    server
}

/// An agent on a thread in a node's namespace. Its kernel state stays when it is dropped.
pub struct Agent {
    pub hub: StatusHub,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub fn start(node: &Node, store: &Store) -> Agent {
        Self::start_with(&[node.flags(), store.0.clone()].concat(), node, &[])
    }

    /// Starts an agent with these flags and variables.
    pub fn start_with(flags: &[String], node: &Node, vars: &[(&str, &str)]) -> Agent {
        Self::launch(settings(Command::Agent, flags, vars), node, Timing::default(), None)
    }

    /// Starts an agent into which faults can be injected.
    pub fn start_faulty(node: &Node, store: &Store, timing: Timing) -> (Agent, FaultInjector) {
        let flags = [node.flags(), store.0.clone()].concat();
        let (injector, faults) = FaultInjector::channel();
        let settings = settings(Command::Agent, &flags, &[]);
        (Self::launch(settings, node, timing, Some(faults)), injector)
    }

    fn launch(settings: Settings, node: &Node, timing: Timing, faults: Option<Faults>) -> Agent {
        let hub = StatusHub::new(format!("node-{}", node.number()), settings.store.name());
        let (stop, stopped) = oneshot::channel();
        let (shown, netns) = (hub.clone(), Netns::open(node.ns.path()).unwrap());
        let thread = std::thread::spawn(move || {
            netns
                .enter(|| {
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    runtime.enable_all().build().unwrap().block_on(async {
                        tokio::select! {
                            ended = agent::run::run_with(settings, shown, timing, faults) => {
                                panic!("{ended:?}")
                            }
                            _ = stopped => {}
                        }
                    });
                })
                .unwrap();
        });
        Agent { hub, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until the status satisfies the condition.
    #[track_caller]
    pub fn wait(&self, what: &str, is_so: impl Fn(&Status) -> bool) {
        self.wait_for(TIMEOUT, what, is_so);
    }

    #[track_caller]
    pub fn wait_for(&self, deadline: Duration, what: &str, is_so: impl Fn(&Status) -> bool) {
        if wait_some(deadline, || is_so(&self.hub.status()).then_some(())).is_none() {
            panic!("waited in vain for {what}: {:#?}", self.hub.status());
        }
    }

    pub fn repairs(&self, kind: RepairKind) -> u64 {
        self.hub.summary().kernel.repairs.counts[&kind]
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(ended, Some(Ok(()))),
            "the agent has panicked"
        );
    }
}

/// A node with its agent and a pod.
pub struct Member {
    /// `None` while the agent is stopped.
    pub agent: Option<Agent>,
    pub pod: Pod,
    pub node: Node,
}

impl Member {
    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }
}

/// Starts an agent on each node at the same time, waits until all are ready and know each other, and
/// gives each node a pod.
pub fn network(nodes: Vec<Node>, store: &Store) -> Vec<Member> {
    let peers = nodes.len() - 1;
    let agents: Vec<Agent> = nodes.iter().map(|node| Agent::start(node, store)).collect();
    for agent in &agents {
        agent.wait("status.ready with all peers", |status| {
            status.ready && status.peers.counts.total == peers
        });
    }
    let join = |(node, agent): (Node, Agent)| Member { agent: Some(agent), pod: node.pod(), node };
    nodes.into_iter().zip(agents).map(join).collect()
}

/// Waits until every pod reaches every other pod.
#[track_caller]
pub fn all_reach_all(members: &[Member], deadline: Duration) {
    for from in members {
        for to in members.iter().filter(|to| to.node.number() != from.node.number()) {
            let reached = wait_some(deadline, || from.pod.reaches(&to.pod).then_some(()));
            if reached.is_none() {
                let ends = [from, to].map(|one| (one.node.kernel(), one.agent().hub.status()));
                panic!("{} does not reach {}: {ends:#?}", from.node.number(), to.node.number());
            }
        }
    }
}
