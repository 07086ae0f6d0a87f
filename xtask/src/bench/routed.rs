// SPDX-License-Identifier: Apache-2.0
//! Routed pods: calico with calico-ipam through an agent beside ptp with host-local, and round trips between
//! two pods of one node.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::Call;
use super::lab::{Lab, ipam, network, place, write_conf};
use super::latency::in_turn;
use super::plan::Plan;
use super::print_step;
use super::results::Results;
use crate::cmd;

pub(crate) const PTP_ADD: &str = "ptp+host-local ADD";
pub(crate) const PTP_DEL: &str = "ptp+host-local DEL";
pub(crate) const CALICO_ADD: &str = "calico+calico-ipam ADD through the agent";
pub(crate) const CALICO_DEL: &str = "calico+calico-ipam DEL through the agent";

/// Calls that are not measured.
const WARM_UP: usize = 5;
/// Rounds whose namespaces exist at the same time.
const GROUP: usize = 10;
/// Maximum wait for an agent that is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Second byte of the addresses of ptp; those of the pool are in 10.5.0.0/16.
const PTP_NET: u8 = 4;

/// Round trips between two pods, in microseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RoundTrips {
    pub(crate) what: String,
    pub(crate) micros: Vec<f64>,
}

pub(crate) const VETH: &str = "veth pair";
pub(crate) const BRIDGE: &str = "bridge";
pub(crate) const ROUTED: &str = "routed";

pub(crate) fn measure(lab: &Lab, plan: &Plan, results: &mut Results) -> Result<()> {
    print_step("routed pods");
    let confs = [ptp_conf()?, calico_conf()?];
    let calico = &confs[1];
    let _agent = Agent::start(plan)?;
    let deadline = Instant::now() + READY_TIMEOUT;
    while Call::plugin(&lab.ours, "calico-ipam", "STATUS", &calico.1).time().is_err() {
        if Instant::now() > deadline {
            bail!("the agent is not ready: {}", fs::read_to_string(place("routed/log"))?);
        }
        pause(Duration::from_millis(20));
    }
    let calls = plan.effort.calls;
    rounds(lab, &confs, WARM_UP, &mut Results::default())?;
    for first in (0..calls).step_by(GROUP) {
        rounds(lab, &confs, GROUP.min(calls - first), results)?;
    }
    round_trips(lab, plan, &confs, results)
}

/// A plugin and its configuration.
type Conf = (&'static str, std::path::PathBuf);

fn ptp_conf() -> Result<Conf> {
    let conf = network("ptp", "ptp", &ipam(PTP_NET, &place("ipam-ptp")));
    Ok(("ptp", write_conf("ptp", &conf)?))
}

fn calico_conf() -> Result<Conf> {
    let mut conf = network("routed", "calico", &json!({"type": "calico-ipam"}));
    for (key, value) in [
        ("cniVersion", json!("1.1.0")),
        ("nodename_file", json!(place("routed/calico/nodename"))),
        ("agent_socket", json!(place("routed/run/agent.sock"))),
        ("agent_state_dir", json!(place("routed/state"))),
        ("mtu", json!(1500)),
    ] {
        conf[key] = value;
    }
    Ok(("calico", write_conf("calico", &conf)?))
}

/// Measures ADD and DEL of each plugin in turn.
fn rounds(lab: &Lab, confs: &[Conf; 2], count: usize, results: &mut Results) -> Result<()> {
    let pods = lab.make_pods("rt-", count * confs.len())?;
    for round in 0..count {
        for &at in in_turn(&[0, 1], round) {
            let netns = pods.path(round * confs.len() + at);
            let (plugin, conf) = &confs[at];
            // The name of the host end is made from the beginning.
            let container = format!("{round:03}-{at}-bench");
            let call = |verb| {
                Call::plugin(&lab.ours, plugin, verb, conf).attachment(&container, &netns).time()
            };
            let [add, del] = [[PTP_ADD, PTP_DEL], [CALICO_ADD, CALICO_DEL]][at];
            results.push(add, super::results::Who::Ours, call("ADD")?);
            results.push(del, super::results::Who::Ours, call("DEL")?);
            lab.settle()?;
        }
    }
    pods.remove()
}

fn round_trips(lab: &Lab, plan: &Plan, confs: &[Conf; 2], results: &mut Results) -> Result<()> {
    print_step("round trips between pods");
    let pods = lab.make_pods("trip-", 6)?;
    let name = |at: usize| pods.path(at).rsplit('/').next().unwrap_or_default().to_owned();
    let ip = |line: &str| cmd::read(cmd::command("ip").args(line.split(' ')));
    let veth =
        format!("link add eth0 netns {} type veth peer name eth0 netns {}", name(0), name(1));
    ip(&veth)?;
    for at in [0, 1] {
        ip(&format!("-n {} addr add 10.6.0.{}/24 dev eth0", name(at), at + 1))?;
        ip(&format!("-n {} link set eth0 up", name(at)))?;
    }
    let (calico, conf) = &confs[1];
    for at in 2..4 {
        Call::bridge(&lab.ours, "ADD", &pods.path(at)).time()?;
    }
    for at in 4..6 {
        let call = Call::plugin(&lab.ours, calico, "ADD", conf);
        call.attachment(&format!("trip{at}-bench"), &pods.path(at)).time()?;
    }
    let pairs = [(VETH, 0), (BRIDGE, 2), (ROUTED, 4)];
    let start = results.round_trips.len();
    for (what, _) in pairs {
        results.round_trips.push(RoundTrips { what: what.to_owned(), micros: Vec::new() });
    }
    let count = plan.effort.trips.to_string();
    for round in 0..plan.effort.tcp {
        for &at in in_turn(&[0, 1, 2], round) {
            let first = pairs[at].1;
            let to = address(&ip(&format!("-n {} -j -4 addr show eth0", name(first + 1)))?)?;
            let mut command = cmd::command(&plan.node_path);
            command.args(["rtt", "-", "-", &pods.path(first), &pods.path(first + 1), &to, &count]);
            let micros: Vec<f64> = serde_json::from_str(&cmd::read(&mut command)?)?;
            results.round_trips[start + at].micros.extend(micros);
        }
    }
    for at in 2..4 {
        Call::bridge(&lab.ours, "DEL", &pods.path(at)).time()?;
    }
    for at in 4..6 {
        let call = Call::plugin(&lab.ours, calico, "DEL", conf);
        call.attachment(&format!("trip{at}-bench"), &pods.path(at)).time()?;
    }
    lab.settle()?;
    pods.remove()
}

fn address(text: &str) -> Result<String> {
    let shown: Value = serde_json::from_str(text)?;
    let local = shown[0]["addr_info"][0]["local"].as_str().context("a pod without address")?;
    Ok(local.to_owned())
}

/// An agent with pools; killed when dropped.
#[derive(Debug)]
struct Agent(Child);

impl Agent {
    fn start(plan: &Plan) -> Result<Agent> {
        let ip = |line: &str| cmd::read(cmd::command("ip").args(line.split(' ')));
        ip("link add benchu type veth peer name benchv")?;
        ip("addr add 192.0.2.1/24 dev benchu")?;
        ip("link set benchu up")?;
        ip("link set benchv up")?;
        fs::create_dir_all(place("routed"))?;
        let mut command: Command = cmd::command(&plan.podwire);
        command.args(["agent", "--pods", "routed", "--node-name", "bench", "--iface", "benchu"]);
        command.args(["--pool-cidr", "10.5.0.0/16", "--pool-encapsulation", "none"]);
        for (flag, file) in [
            ("--store-file", "routed/store.db"),
            ("--state-dir", "routed/state"),
            ("--run-dir", "routed/run"),
            ("--calico-dir", "routed/calico"),
        ] {
            command.arg(flag).arg(place(file));
        }
        let log = File::create(place("routed/log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Agent(command.spawn().context("start the agent")?))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = cmd::read(cmd::command("ip").args(["link", "del", "benchu"]));
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for another process before the measurement")]
fn pause(time: Duration) {
    thread::sleep(time);
}
