// SPDX-License-Identifier: Apache-2.0
//! The full chain as a container runtime runs it: bridge with host-local and masquerading, portmap,
//! bandwidth, firewall. Each plugin is a process that receives the previous result. The same chain is
//! also measured with the single plugin `podwire`.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::call::Call;
use super::lab::{Lab, Pods, Subject, ipam, network, place, write_conf};
use super::latency::in_turn;
use super::parallel::record;
use super::plan::Effort;
use super::print_step;
use super::results::{Bulk, CHAIN_ADD, CHAIN_DEL, Results, Who};

/// Containers of one chain that are added one after the other, and removed before the next chain.
const IN_A_ROW: usize = 10;
/// Rounds that are not measured; they create bridges, tables and chains.
const WARM_UP: usize = 1;
/// First host port; each container has its own port.
const FIRST_PORT: usize = 20_000;
/// Parallel callers in the burst.
pub(crate) const AT_ONCE: usize = 32;

/// A chain with one set of plugins.
#[derive(Debug)]
struct Chain<'a> {
    subject: &'a Subject,
    who: Who,
    /// Names and configurations of the plugins, in the order of ADD.
    plugins: Vec<(&'static str, Value)>,
    /// Second byte of the addresses: 10.x.0.0/16.
    net: u8,
}

pub(crate) fn measure(lab: &Lab, effort: &Effort, results: &mut Results) -> Result<()> {
    let chains = chains(lab);
    print_step("the full chain, sequentially");
    let rounds = WARM_UP + effort.chain;
    let pods = lab.make_pods("chain-", chains.len() * (1 + rounds * IN_A_ROW))?;
    let mut fresh = 0..;
    let background = in_use(&chains, &pods, &mut fresh)?;
    for round in 0..rounds {
        for chain in in_turn(&chains, round) {
            let (adds, dels) = add_and_remove(lab, chain, &pods, &mut fresh)?;
            for (add, del) in adds.into_iter().zip(dels).filter(|_| round >= WARM_UP) {
                results.push(CHAIN_ADD, chain.who, add);
                results.push(CHAIN_DEL, chain.who, del);
            }
        }
    }
    for one in background {
        one.del()?;
    }
    lab.settle()?;
    pods.remove()?;
    burst(lab, effort, &chains, results)
}

/// Adds and removes containers. Returns the microseconds of each ADD and each DEL.
fn add_and_remove(
    lab: &Lab,
    chain: &Chain<'_>,
    pods: &Pods<'_>,
    fresh: &mut impl Iterator<Item = usize>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut row = Vec::new();
    for at in fresh.take(IN_A_ROW) {
        row.push(Attached::new(chain, &pods.path(at), at)?);
    }
    let adds = row.iter_mut().map(Attached::add).collect::<Result<_>>()?;
    lab.settle()?;
    let mut dels = Vec::new();
    for one in row {
        dels.push(one.del()?);
        lab.settle()?;
    }
    Ok((adds, dels))
}

/// Adds one container per chain that stays, as on a busy node. Otherwise each ADD would bring its bridge
/// up, and the kernel would patch its code for the first traffic shaper (static keys).
fn in_use<'a>(
    chains: &'a [Chain<'a>],
    pods: &Pods<'_>,
    fresh: &mut impl Iterator<Item = usize>,
) -> Result<Vec<Attached<'a>>> {
    let mut background = Vec::new();
    for chain in chains {
        let at = fresh.next().unwrap_or_default();
        let mut one = Attached::new(chain, &pods.path(at), at)?;
        one.add()?;
        background.push(one);
    }
    Ok(background)
}

fn chains(lab: &Lab) -> Vec<Chain<'_>> {
    let of = |subject, who, net, bridge: &str| Chain {
        subject,
        who,
        plugins: plugins(bridge, net),
        net,
    };
    let mut whole = of(&lab.ours, Who::Whole, 6, "chain6");
    let inner = whole.plugins.iter().map(|(_, config)| config.clone()).collect::<Vec<_>>();
    let capabilities = json!({"portMappings": true, "bandwidth": true});
    let config = json!({"capabilities": capabilities, "plugins": inner});
    whole.plugins = vec![("podwire", named("podwire", &config))];
    vec![of(&lab.go, Who::Go, 4, "chain4"), of(&lab.ours, Who::Ours, 5, "chain5"), whole]
}

fn plugins(bridge: &str, net: u8) -> Vec<(&'static str, Value)> {
    let addresses = ipam(net, &place(&format!("chain-ipam-{net}")));
    let mut first = network("chain", "bridge", &addresses);
    first["bridge"] = bridge.into();
    first["isDefaultGateway"] = true.into();
    first["ipMasq"] = true.into();
    vec![
        ("bridge", first),
        ("portmap", named("portmap", &json!({"capabilities": {"portMappings": true}}))),
        ("bandwidth", named("bandwidth", &json!({"capabilities": {"bandwidth": true}}))),
        ("firewall", named("firewall", &json!({}))),
    ]
}

fn named(kind: &str, more: &Value) -> Value {
    let mut config = network("chain", kind, &Value::Null);
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    if let Some(config) = config.as_object_mut() {
        config.remove("ipam");
    }
    config
}

/// One container in a chain.
struct Attached<'a> {
    chain: &'a Chain<'a>,
    netns: String,
    container: String,
    /// Input of each plugin without its last brace, where the printed result is inserted.
    configs: Vec<String>,
    result: String,
    files: PathBuf,
}

impl<'a> Attached<'a> {
    fn new(chain: &'a Chain<'a>, netns: &str, at: usize) -> Result<Self> {
        let port = FIRST_PORT + at % 40_000;
        let runtime_config = json!({
            "portMappings": [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 100_000_000, "ingressBurst": 1_000_000,
                          "egressRate": 100_000_000, "egressBurst": 1_000_000},
        });
        let config = |(_, config): &(&str, Value)| {
            let mut config = config.clone();
            config["runtimeConfig"] = runtime_config.clone();
            let text = config.to_string();
            text.strip_suffix('}').unwrap_or(&text).to_owned()
        };
        let files = place(&format!("chain-{}-{at}", chain.net));
        Ok(Self {
            chain,
            netns: netns.to_owned(),
            container: format!("chain-{}-{at}", chain.net),
            configs: chain.plugins.iter().map(config).collect(),
            result: String::new(),
            files,
        })
    }

    /// Runs all plugins and returns the total in microseconds.
    fn add(&mut self) -> Result<f64> {
        let mut micros = 0.0;
        for at in 0..self.configs.len() {
            micros += self.call(at, "ADD")?;
            self.result = fs::read_to_string(self.answer())?;
        }
        Ok(micros)
    }

    fn del(&self) -> Result<f64> {
        let backwards = (0..self.configs.len()).rev();
        let micros = backwards.map(|at| self.call(at, "DEL")).sum::<Result<f64>>()?;
        for suffix in ["conf", "answer"] {
            fs::remove_file(self.files.with_extension(suffix)).context("clean up")?;
        }
        Ok(micros)
    }

    /// File with the last output.
    fn answer(&self) -> PathBuf {
        self.files.with_extension("answer")
    }

    fn call(&self, at: usize, verb: &str) -> Result<f64> {
        let conf = self.files.with_extension("conf");
        let config = &self.configs[at];
        let text = match self.result.as_str() {
            "" => format!("{config}}}"),
            result => format!("{config},\"prevResult\":{result}}}"),
        };
        fs::write(&conf, text)?;
        let plugin = self.chain.plugins[at].0;
        let call = Call::plugin(self.chain.subject, plugin, verb, &conf);
        call.with_path().attachment(&self.container, &self.netns).time_into(&self.answer())
    }
}

/// Adds many containers in parallel, like a starting node.
fn burst(lab: &Lab, effort: &Effort, chains: &[Chain<'_>], results: &mut Results) -> Result<()> {
    for chain in chains {
        let count = if chain.who == Who::Go { effort.go_burst } else { effort.pods };
        print_step(&format!("{count} full chains of {}, {AT_ONCE} in parallel", chain.who.name()));
        let pods = lab.make_pods("burst-", count)?;
        let start = Instant::now();
        let (mut bulk, attached) = all_at_once(chain, &pods, count);
        lab.settle()?;
        bulk.settled_seconds.push(start.elapsed().as_secs_f64());
        record(results, bulk);
        for one in attached {
            one.del()?;
        }
        lab.settle()?;
        pods.remove()?;
    }
    Ok(())
}

/// Prints the first failure and counts all of them.
fn all_at_once<'a>(
    chain: &'a Chain<'a>,
    pods: &Pods<'_>,
    count: usize,
) -> (Bulk, Vec<Attached<'a>>) {
    let next = AtomicUsize::new(0);
    let (failures, attached) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            let added =
                Attached::new(chain, &pods.path(at), at).and_then(|mut one| one.add().map(|_| one));
            match added {
                Ok(one) => attached.lock().expect("no worker panics").push(one),
                Err(cause) => failures.lock().expect("no worker panics").push(cause),
            }
        }
    };
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let seconds = vec![start.elapsed().as_secs_f64()];
    let failures = failures.into_inner().expect("no worker panics");
    if let Some(first) = failures.first() {
        eprintln!("{} of {count} calls of {} failed: {first:#}", failures.len(), chain.who.name());
    }
    let bulk = Bulk {
        verb: CHAIN_ADD.to_owned(),
        who: chain.who,
        count,
        parallel: AT_ONCE,
        seconds,
        settled_seconds: Vec::new(),
        failures: failures.len(),
    };
    (bulk, attached.into_inner().expect("no worker panics"))
}

/// Adds a container for the portmap measurements. Returns its portmap configuration and its ID.
pub(crate) fn attach_for_portmap(lab: &Lab, netns: &str) -> Result<(PathBuf, String)> {
    let chains = chains(lab);
    let chain =
        chains.iter().find(|chain| chain.who == Who::Ours).context("no chain of podwire")?;
    let mut one = Attached::new(chain, netns, 0)?;
    one.call(0, "ADD")?;
    one.result = fs::read_to_string(one.answer())?;
    let mut config: Value = serde_json::from_str(&format!("{}}}", one.configs[1]))?;
    config["prevResult"] = serde_json::from_str(&one.result)?;
    Ok((write_conf("portmap", &config)?, one.container))
}
