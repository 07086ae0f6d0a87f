// SPDX-License-Identifier: Apache-2.0
//! The environment of the measurements: all programs on one disk, their files in memory, one bridge per
//! set of plugins, and pod namespaces that are created before the time measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::call::Call;
use super::plan::Plan;
use super::results::Who;
use crate::cmd;

/// On the private tmpfs of the bench.
const ROOT: &str = "/run/bench";
/// Maximum wait for a background child of a plugin.
const CHILD_TIMEOUT: Duration = Duration::from_secs(30);
const NETNS: &str = "/run/netns";
const FLOOR_BRIDGE: &str = "floor0";
const FLOOR_GATEWAY: &str = "10.3.0.1";
const FLOOR_ADDRESS: &str = "10.3.0.2/16";

/// Supported by the newest Go plugins and by those of Debian 12.
const CNI_VERSION: &str = "1.0.0";

#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) go: Subject,
    pub(crate) ours: Subject,
    /// The floor program.
    pub(crate) floor: PathBuf,
    /// Interface index of the floor's bridge.
    floor_bridge: String,
    /// Names of the lab's processes, and the directory of their programs.
    names: Vec<String>,
    programs: PathBuf,
    pub(crate) version_conf: PathBuf,
    pub(crate) loopback_conf: PathBuf,
}

/// A set of plugins with its own bridge and address range.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) who: Who,
    /// `CNI_PATH`.
    pub(crate) dir: PathBuf,
    pub(crate) bridge_conf: PathBuf,
    /// Second byte of its addresses: 10.x.0.0/16.
    pub(crate) net: u8,
}

impl Lab {
    pub(crate) fn set_up(plan: &Plan) -> Result<Lab> {
        fs::create_dir_all(NETNS)?;
        fs::create_dir_all(ROOT)?;
        let [go_dir, ours_dir, floor] =
            ["go", "ours", "floor"].map(|name| plan.programs.join(name));
        fs::create_dir_all(&go_dir)?;
        fs::copy(&plan.floor, &floor).context("copy the floor program")?;
        cmd::read(cmd::command(&plan.ours).arg("--install").arg(&ours_dir))?;
        for name in plugin_names(&ours_dir)? {
            let theirs = plan.go.join(&name);
            if theirs.is_file() {
                fs::copy(&theirs, go_dir.join(&name)).with_context(|| format!("copy {name}"))?;
            }
        }
        let mut names = plugin_names(&ours_dir)?;
        names.push("floor".to_owned());
        let loopback = json!({"cniVersion": CNI_VERSION, "name": "lo", "type": "loopback"});
        let lab = Lab {
            go: subject(Who::Go, go_dir, 1)?,
            ours: subject(Who::Ours, ours_dir, 2)?,
            floor,
            floor_bridge: make_floor_bridge()?,
            names,
            programs: plan.programs.clone(),
            version_conf: write_conf("version", &json!({"cniVersion": CNI_VERSION}))?,
            loopback_conf: write_conf("loopback", &loopback)?,
        };
        Ok(lab)
    }

    pub(crate) fn subjects(&self) -> [&Subject; 2] {
        [&self.go, &self.ours]
    }

    /// Creates namespaces, named by a prefix and a number.
    pub(crate) fn make_pods(&self, prefix: &str, count: usize) -> Result<Pods<'_>> {
        let pods = Pods { lab: self, prefix: format!("{NETNS}/{prefix}"), count };
        self.run_floor(&["make-pods", &pods.prefix, &count.to_string()])?;
        Ok(pods)
    }

    /// Waits until no program of the lab runs: DEL leaves a background child that waits for the kernel
    /// and would disturb the next measurement.
    #[expect(
        clippy::disallowed_methods,
        reason = "the child belongs to init and cannot be waited for"
    )]
    pub(crate) fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + CHILD_TIMEOUT;
        while self.is_anything_running()? {
            ensure!(Instant::now() < deadline, "a background child of a plugin does not end");
            thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    fn is_anything_running(&self) -> Result<bool> {
        let mut processes = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
        Ok(processes.any(|process| {
            let Ok(stat) = fs::read_to_string(process.join("stat")) else { return false };
            let Some((front, rest)) = stat.rsplit_once(") ") else { return false };
            let name = front.split_once(" (").map_or("", |(_, name)| name);
            // An exiting process has released its program before the kernel closes its sockets, which takes
            // long. Only its name is left then, and other processes may have the same name.
            let is_elsewhere = || {
                fs::read_link(process.join("exe")).is_ok_and(|exe| !exe.starts_with(&self.programs))
            };
            !rest.starts_with('Z')
                && self.names.iter().any(|known| known == name)
                && !is_elsewhere()
        }))
    }

    /// Adds a port that is up to every bridge, as on a busy node. Otherwise each ADD would bring its
    /// bridge up, and each DEL down.
    pub(crate) fn put_bridges_in_use(&self) -> Result<()> {
        let subjects = self.subjects().map(bridge_name);
        for bridge in subjects.iter().map(String::as_str).chain([FLOOR_BRIDGE]) {
            let (port, other) = (format!("{bridge}-a"), format!("{bridge}-b"));
            ip(&["link", "add", &port, "type", "veth", "peer", "name", &other])?;
            ip(&["link", "set", &port, "master", bridge, "up"])?;
            ip(&["link", "set", &other, "up"])?;
        }
        Ok(())
    }

    /// ADD of the floor as a whole process, with its address file.
    pub(crate) fn floor_add(&self, netns: &str) -> Call {
        let file = self.floor_file();
        let mut call = Call::program(&self.floor, &self.version_conf);
        call.args(&["add", &self.floor_bridge, netns, FLOOR_ADDRESS, FLOOR_GATEWAY, &file]);
        call
    }

    pub(crate) fn floor_del(&self) -> Call {
        let mut call = Call::program(&self.floor, &self.version_conf);
        call.args(&["del", &self.floor_file()]);
        call
    }

    /// The floor in a loop. Returns the microseconds of the kernel changes per namespace.
    pub(crate) fn floor_loop(&self, namespaces: &[String]) -> Result<Vec<f64>> {
        let mut args = vec!["loop", &self.floor_bridge, FLOOR_ADDRESS, FLOOR_GATEWAY];
        args.extend(namespaces.iter().map(String::as_str));
        let text = self.run_floor(&args)?;
        let micros = |line: &str| line.parse::<f64>().map(|nanos| nanos / 1000.0);
        Ok(text.lines().map(micros).collect::<Result<_, _>>()?)
    }

    fn floor_file(&self) -> String {
        format!("{ROOT}/10.3.0.2")
    }

    fn run_floor(&self, args: &[&str]) -> Result<String> {
        cmd::read(cmd::command(&self.floor).args(args))
    }
}

/// Pod namespaces of one phase. They have no destructor, because waiting may fail.
#[derive(Debug)]
pub(crate) struct Pods<'a> {
    lab: &'a Lab,
    prefix: String,
    count: usize,
}

impl Pods<'_> {
    pub(crate) fn path(&self, at: usize) -> String {
        format!("{}{at}", self.prefix)
    }

    /// Waits until they are gone: background work of the kernel would slow down the next phase.
    pub(crate) fn remove(self) -> Result<()> {
        let count = self.count.to_string();
        self.lab.run_floor(&["remove-pods", &self.prefix, &count]).map(drop)
    }
}

/// The plugins that podwire-cni has installed.
pub(crate) fn plugin_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "podwire-cni" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Path of a file of the lab, in memory.
pub(crate) fn place(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// Writes a network configuration.
pub(crate) fn write_conf(name: &str, conf: &Value) -> Result<PathBuf> {
    let file = place(&format!("{name}.json"));
    fs::write(&file, conf.to_string())?;
    Ok(file)
}

/// A host-local configuration for 10.`net`.0.0/16.
pub(crate) fn ipam(net: u8, data_dir: &Path) -> Value {
    let ranges = json!([[{"subnet": format!("10.{net}.0.0/16")}]]);
    json!({"type": "host-local", "dataDir": data_dir, "ranges": ranges})
}

pub(crate) fn network(name: &str, kind: &str, ipam: &Value) -> Value {
    json!({"cniVersion": CNI_VERSION, "name": name, "type": kind, "ipam": ipam})
}

fn subject(who: Who, dir: PathBuf, net: u8) -> Result<Subject> {
    let mut conf = network("bench", "bridge", &ipam(net, &place(&format!("ipam-{net}"))));
    let mut subject = Subject { who, dir, bridge_conf: PathBuf::new(), net };
    conf["bridge"] = json!(bridge_name(&subject));
    conf["isGateway"] = json!(true);
    conf["isDefaultGateway"] = json!(true);
    subject.bridge_conf = write_conf(&format!("bridge-{net}"), &conf)?;
    Ok(subject)
}

fn bridge_name(subject: &Subject) -> String {
    format!("bench{}", subject.net)
}

fn ip(args: &[&str]) -> Result<String> {
    cmd::read(cmd::command("ip").args(args))
}

/// Creates a bridge like those of the plugins.
fn make_floor_bridge() -> Result<String> {
    ip(&["link", "add", FLOOR_BRIDGE, "address", "02:00:00:00:00:01", "type", "bridge"])?;
    ip(&["addr", "add", &format!("{FLOOR_GATEWAY}/16"), "dev", FLOOR_BRIDGE])?;
    ip(&["link", "set", FLOOR_BRIDGE, "up"])?;
    let index = fs::read_to_string(format!("/sys/class/net/{FLOOR_BRIDGE}/ifindex"))?;
    Ok(index.trim().to_owned())
}
