// SPDX-License-Identifier: Apache-2.0
//! Many agents that assign and release on one etcd, while some are killed and some depart for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::json;
use testkit::{EtcdServer, in_netns, wait_some};
use tokio::task::{JoinSet, LocalSet};

use super::history::{Recording, State};
use super::machine::{Machine, assign, release};
use crate::pools::api::PoolsApi;

const NODES: usize = 64;

/// Changes of the containers of each node.
const STEPS: usize = 16;

/// Most containers of a node.
const CONTAINERS: usize = 5;

/// One in so many steps kills the agent.
const KILL: u64 = 8;

const TIMEOUT: Duration = Duration::from_secs(120);

/// The addresses of containers that run: assigned, and not released since.
#[derive(Debug, Default)]
struct InUse(Mutex<BTreeMap<IpAddr, String>>);

impl InUse {
    #[track_caller]
    fn add(&self, address: IpAddr, container: &str) {
        let other = self.0.lock().unwrap().insert(address, container.to_owned());
        assert!(
            other.as_deref().is_none_or(|other| other == container),
            "{address} was assigned to {container}, but {other:?} has it"
        );
    }

    fn remove(&self, container: &str) {
        self.0.lock().unwrap().retain(|_, user| user != container);
    }
}

/// A node as the test drives it.
#[derive(Debug)]
struct Driver {
    machine: Machine,
    random: Random,
    in_use: Arc<InUse>,
    /// Containers that run. A container whose request failed has no address.
    containers: Vec<(String, Option<IpAddr>)>,
    created: usize,
    counts: Counts,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    assigned: usize,
    refused: usize,
    released: usize,
    killed: usize,
}

/// xorshift64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

impl Driver {
    async fn run(mut self, steps: usize) -> Driver {
        for _ in 0..steps {
            match self.random.below(10) {
                0..6 if self.containers.len() < CONTAINERS => self.add().await,
                6 => self.forget_container(),
                _ if !self.containers.is_empty() => self.delete().await,
                _ => self.add().await,
            }
        }
        self
    }

    /// Runs a request; kills the agent in the middle of some, and starts it again. Returns the answer of the first try
    /// if there was one.
    async fn request<T>(&mut self, request: impl AsyncFn(PoolsApi) -> T) -> Option<T> {
        let api = self.machine.api().expect("the agent runs");
        if self.random.below(KILL) > 0 {
            return Some(request(api).await);
        }
        // The request makes some progress.
        let polls = self.random.below(12);
        let progress = async {
            for _ in 0..polls {
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        };
        let answer = tokio::select! {
            answer = request(api) => Some(answer),
            () = progress => None,
        };
        self.machine.kill();
        self.counts.killed += 1;
        answer
    }

    async fn add(&mut self) {
        self.created += 1;
        let container = format!("{}-c{}", self.machine.name, self.created);
        let netns = self.machine.create_netns(&container);
        for _ in 0..3 {
            let ask = async |api| assign(&api, &container, &netns).await;
            match self.request(ask).await {
                Some(Ok(address)) => {
                    self.in_use.add(address, &container);
                    self.counts.assigned += 1;
                    self.restart_if_killed();
                    self.containers.push((container, Some(address)));
                    return;
                }
                Some(Err(_)) => {
                    self.counts.refused += 1;
                    break;
                }
                // The runtime asks the next agent again, or gives up.
                None if self.random.below(2) == 0 => self.restart_if_killed(),
                None => break,
            }
        }
        // As a runtime does after a failed ADD.
        self.containers.push((container, None));
        let last = self.containers.len() - 1;
        self.delete_at(last).await;
        self.restart_if_killed();
    }

    async fn delete(&mut self) {
        let at = self.random.below(self.containers.len() as u64);
        self.delete_at(usize::try_from(at).unwrap()).await;
        self.restart_if_killed();
    }

    async fn delete_at(&mut self, at: usize) {
        let (container, address) = self.containers.remove(at);
        self.in_use.remove(&container);
        self.machine.remove_netns(&container);
        loop {
            if !self.machine.is_running() {
                // The plugin leaves the release to the next agent.
                self.machine.remove_journal(&container);
                break;
            }
            match self.request(async |api| release(&api, &container).await).await {
                Some(Ok(())) => break,
                // The runtime tries again until DEL succeeds.
                _ => self.restart_if_killed(),
            }
        }
        self.counts.released += usize::from(address.is_some());
    }

    /// A container ends without a DEL.
    fn forget_container(&mut self) {
        if let Some((container, _)) = self.containers.pop() {
            self.in_use.remove(&container);
            self.machine.remove_netns(&container);
        }
    }

    fn restart_if_killed(&mut self) {
        if !self.machine.is_running() {
            self.machine.start();
        }
    }

    /// The machine is gone with its containers.
    fn depart(&mut self, server: &EtcdServer) {
        self.machine.kill();
        while !self.containers.is_empty() {
            self.forget_container();
        }
        let key = format!("/calico/resources/v3/projectcalico.org/nodes/{}", self.machine.name);
        server.ctl(&["del", &key]);
    }
}

fn run_all(drivers: Vec<Driver>, steps: usize) -> Vec<Driver> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut drivers = LocalSet::new().block_on(&runtime, async {
        let mut running = JoinSet::new();
        for driver in drivers {
            running.spawn_local(driver.run(steps));
        }
        running.join_all().await
    });
    drivers.sort_by(|one, other| one.machine.name.cmp(&other.machine.name));
    drivers
}

/// Returns what is wrong when nothing is left to collect.
fn lost(state: &State, drivers: &[Driver]) -> Option<String> {
    let mut expected = BTreeMap::new();
    let mut nodes = BTreeSet::new();
    for driver in drivers.iter().filter(|driver| driver.machine.is_running()) {
        nodes.insert(driver.machine.name.clone());
        for (container, address) in &driver.containers {
            expected.insert(address.unwrap(), format!("net.{container}"));
        }
    }
    if state.nodes != nodes {
        return Some(format!("nodes {:?}", state.nodes));
    }
    let (mut owned, mut handles) = (BTreeSet::new(), BTreeMap::new());
    for (cidr, block) in &state.blocks {
        match &block.owner {
            Some(owner) if nodes.contains(owner) => owned.insert((*cidr, owner.clone())),
            None if !block.users.is_empty() => false,
            other => return Some(format!("{cidr} has the owner {other:?}")),
        };
        for (ordinal, user) in &block.users {
            let address = u32::from(cidr.addr()) + u32::try_from(*ordinal).unwrap();
            let address = IpAddr::V4(address.into());
            let handle = user.handle.clone().unwrap_or_default();
            if handle.starts_with("podwire-reserved-") && block.owner == user.node {
                continue;
            }
            if expected.remove(&address).as_ref() != Some(&handle) {
                return Some(format!("{address} is lost to {user:?}"));
            }
            let blocks: &mut BTreeMap<String, u64> = handles.entry(handle).or_default();
            *blocks.entry(cidr.to_string()).or_default() += 1;
        }
    }
    if let Some((address, handle)) = expected.pop_first() {
        return Some(format!("{address} of {handle} is not in the store"));
    }
    if state.confirmed != owned || !state.unconfirmed.is_empty() {
        return Some(format!(
            "affinities {:?} {:?}, owners {owned:?}",
            state.confirmed, state.unconfirmed
        ));
    }
    let present = &state.handles;
    (*present != handles).then(|| {
        let extra: Vec<_> =
            present.keys().filter(|handle| !handles.contains_key(*handle)).collect();
        let missing: Vec<_> =
            handles.keys().filter(|handle| !present.contains_key(*handle)).collect();
        format!("handles without addresses {extra:?}, missing handles {missing:?}")
    })
}

#[test]
fn addresses_of_64_agents_are_unique_and_none_is_lost() {
    in_netns(|| {
        testkit::require!(Program("etcd"), Program("etcdctl"));
        std::fs::create_dir_all("/run/lab").unwrap();
        let mut server = EtcdServer::at("/run/lab/etcd".as_ref(), "127.0.0.1");
        server.start();
        server.wait();
        let mut recording = Recording::start(&server);
        // Fewer addresses than all nodes together want, in small blocks.
        let pool = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "small"},
            "spec": {"cidr": "10.6.0.0/23", "blockSize": 29, "ipipMode": "Never", "vxlanMode": "Never"}});
        let key = "/calico/resources/v3/projectcalico.org/ippools/small";
        server.ctl(&["put", key, &pool.to_string()]);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let seed = u64::from(now.subsec_nanos()) | 1;
        println!("seed {seed}");
        let in_use = Arc::new(InUse::default());
        let drivers = (1..=NODES).map(|number| {
            let mut machine = Machine::new(number, &server.endpoint());
            machine.start();
            let random = Random(seed.wrapping_mul(number as u64 * 2 + 1));
            let (in_use, containers) = (Arc::clone(&in_use), Vec::new());
            Driver { machine, random, in_use, containers, created: 0, counts: Counts::default() }
        });
        let mut drivers = run_all(drivers.collect(), STEPS / 2);
        for driver in drivers.iter_mut().take(NODES / 8) {
            driver.depart(&server);
        }
        let departed: Vec<Driver> = drivers.drain(..NODES / 8).collect();
        let mut drivers = run_all(drivers, STEPS / 2);
        // Some machines come back, with an old journal and without containers.
        for (at, mut driver) in departed.into_iter().enumerate() {
            if at % 2 == 0 {
                driver.machine.start();
            }
            drivers.push(driver);
        }
        let mut last = String::new();
        let collected = wait_some(TIMEOUT, || match lost(recording.replay(&server), &drivers) {
            Some(reason) => {
                last = reason;
                None
            }
            None => Some(()),
        });
        let total = drivers.iter().fold(Counts::default(), |sum, driver| Counts {
            assigned: sum.assigned + driver.counts.assigned,
            refused: sum.refused + driver.counts.refused,
            released: sum.released + driver.counts.released,
            killed: sum.killed + driver.counts.killed,
        });
        println!("{total:?}");
        let () = collected.unwrap_or_else(|| panic!("not collected: {last}"));
        assert!(total.assigned > NODES * 4 && total.killed > NODES, "{total:?}");
    });
}
