// SPDX-License-Identifier: Apache-2.0
//! `podwire pod ready`: whether pods can be connected. That needs a valid network, a pod CIDR if the
//! network asks for one, and plugins whose STATUS succeeds.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use cni::Code;
use cni::runtime::{NetworkList, Runtime};
use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use serde_json::json;

use super::name::PodName;
use super::state::StateFile;
use super::{PodCidrArgs, StateArgs, network};
use crate::errors;
use crate::output::{self, Format};
use crate::privilege::Privilege;
use crate::runtime::RuntimeArgs;
use crate::signals::StopSignal;

/// Interval between two STATUS calls, the same as kubelet's: plugins send no event when their state
/// changes.
const PERIOD: Duration = Duration::from_secs(5);

/// Report whether pods can be connected, and why not
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  podwire pod ready
  podwire pod ready default/web        also check the attachment of this pod
  podwire pod ready --watch            print a line at each change until interrupted")]
pub(crate) struct Ready {
    /// Pod whose attachment is checked too
    #[arg(value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
    /// Keep running and print a line at each change
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    cidrs: PodCidrArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

#[derive(Debug, PartialEq, Eq)]
enum Readiness {
    Ready { network: String, ignored_files: Vec<String> },
    NotReady { reason: String },
}

pub(crate) fn run(args: &Ready, format: Format) -> Result<ExitCode> {
    let host = args.runtime.host();
    let runtime = args.runtime.runtime(&host);
    if args.watch {
        return watch(args, &runtime, format);
    }
    let readiness = readiness(args, &runtime);
    print(&readiness, format)?;
    Ok(match readiness {
        Readiness::Ready { .. } => ExitCode::SUCCESS,
        Readiness::NotReady { .. } => ExitCode::FAILURE,
    })
}

/// The problem of a network that needs a pod CIDR if none is given.
pub(crate) fn lacks_pod_cidr(list: &NetworkList, pod_cidrs: &[IpNet]) -> Option<String> {
    let lacks = list.capabilities().contains("ipRanges") && pod_cidrs.is_empty();
    lacks.then(|| format!("network {:?} needs ipRanges: pass --pod-cidr", list.name))
}

fn readiness(args: &Ready, runtime: &Runtime) -> Readiness {
    match check(args, runtime) {
        Ok(ready) => ready,
        Err(error) => {
            let text = errors::text(&error, Privilege::of_process());
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            Readiness::NotReady { reason: text.to_owned() }
        }
    }
}

fn check(args: &Ready, runtime: &Runtime) -> Result<Readiness> {
    let chosen = network::default(&args.runtime.conf_dir, runtime)?;
    let ignored_files = network::ignored_files(&chosen);
    let list = chosen.list;
    if let Some(reason) = lacks_pod_cidr(&list, &args.cidrs.pod_cidrs) {
        anyhow::bail!(reason);
    }
    runtime.status(&list).map_err(|error| {
        let about = match error.code {
            Code::NOT_AVAILABLE => "cannot accept containers",
            Code::UNSUPPORTED_FIELD | Code::DECODE | Code::INVALID_CONFIG => {
                "cannot accept containers: its configuration is invalid"
            }
            Code::LIMITED => "has limited connectivity",
            _ => "has an unknown state",
        };
        anyhow::Error::new(error).context(format!("network {:?} {about}", list.name))
    })?;
    if let Some(pod) = &args.pod {
        let state = StateFile::new(&args.state.state_dir, pod).read()?;
        let state = state.with_context(|| format!("pod {pod} is not up"))?;
        runtime
            .check(&network::recorded(&state)?, &network::container(&state)?)
            .with_context(|| format!("check the attachment of pod {pod}"))?;
    }
    Ok(Readiness::Ready { network: list.name, ignored_files })
}

fn print(readiness: &Readiness, format: Format) -> Result<()> {
    match (readiness, format) {
        (Readiness::Ready { network, ignored_files }, Format::Text) => {
            let ignored: String =
                ignored_files.iter().map(|why| format!("  ignored {why}\n")).collect();
            output::print(&format!("ready: network {network:?}\n{ignored}"))
        }
        (Readiness::NotReady { reason }, Format::Text) => {
            output::print(&format!("not ready: {reason}\n"))
        }
        (Readiness::Ready { network, ignored_files }, Format::Json) => output::print_json(
            &json!({ "ready": true, "network": network, "passedOver": ignored_files }),
        ),
        (Readiness::NotReady { reason }, Format::Json) => {
            output::print_json(&json!({ "ready": false, "reason": reason }))
        }
    }
}

/// Prints each change until interrupted.
fn watch(args: &Ready, runtime: &Runtime, format: Format) -> Result<ExitCode> {
    let stop = StopSignal::catch()?;
    let mut last = None;
    while !stop.is_set() {
        // Starts before the check, so that a change during the check is not missed.
        let watcher = DirWatcher::new(&args.runtime.conf_dir)?;
        let readiness = readiness(args, runtime);
        if last.as_ref() != Some(&readiness) {
            print(&readiness, format)?;
            last = Some(readiness);
        }
        watcher.wait(PERIOD)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Watches a directory for files that are created, written or removed.
struct DirWatcher(std::os::fd::OwnedFd);

impl DirWatcher {
    fn new(dir: &Path) -> Result<DirWatcher> {
        let open = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let watch = open.context("create a file watcher")?;
        let events = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        match inotify::add_watch(&watch, dir, events) {
            // The next round looks for a directory that is still missing.
            Ok(_) | Err(Errno::NOENT) => Ok(DirWatcher(watch)),
            Err(errno) => Err(errno).with_context(|| format!("watch {}", dir.display())),
        }
    }

    fn wait(&self, timeout: Duration) -> Result<()> {
        let timeout = Timespec::try_from(timeout).context("convert the timeout")?;
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("wait for changes"),
        }
    }
}
