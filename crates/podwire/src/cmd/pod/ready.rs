// SPDX-License-Identifier: Apache-2.0
//! Whether pods can be connected: a valid network, a range of addresses where it wants one, and
//! plugins that say so when asked.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use cni::Code;
use cni::runtime::{NetworkList, Runtime};
use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use serde_json::json;

use super::network;
use super::state::Store;
use crate::cli::PodReady;
use crate::output::{self, Format};
use crate::privilege::Privilege;
use crate::{interrupt, place, report};

/// A plugin's readiness makes no event; kubelet asks this often.
const PERIOD: Duration = Duration::from_secs(5);

/// The answer.
#[derive(Debug, PartialEq, Eq)]
enum Readiness {
    Ready { network: String, passed_over: Vec<String> },
    NotReady { reason: String },
}

pub fn run(asked: &PodReady, format: Format) -> Result<ExitCode> {
    let host = place::host(&asked.places);
    let runtime = place::runtime(&host, &asked.places);
    if asked.watch {
        return watch(asked, &runtime, format);
    }
    let found = find(asked, &runtime);
    tell(&found, format)?;
    Ok(match found {
        Readiness::Ready { .. } => ExitCode::SUCCESS,
        Readiness::NotReady { .. } => ExitCode::FAILURE,
    })
}

/// Why a network that wants to be told its addresses cannot be.
pub fn lacks_pod_cidr(list: &NetworkList, pod_cidrs: &[IpNet]) -> Option<String> {
    let lacks = list.capabilities().contains("ipRanges") && pod_cidrs.is_empty();
    lacks.then(|| format!("network {:?} needs ipRanges, but there is no --pod-cidr", list.name))
}

fn find(asked: &PodReady, runtime: &Runtime) -> Readiness {
    match look(asked, runtime) {
        Ok(ready) => ready,
        Err(error) => {
            let text = report::text(&error, Privilege::of_process());
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            Readiness::NotReady { reason: text.to_owned() }
        }
    }
}

fn look(asked: &PodReady, runtime: &Runtime) -> Result<Readiness> {
    let chosen = network::default(&asked.places.conf_dir, runtime)?;
    let passed_over = network::passed_over(&chosen);
    let list = chosen.list;
    if let Some(reason) = lacks_pod_cidr(&list, &asked.pod_cidrs) {
        anyhow::bail!(reason);
    }
    runtime.status(&list).map_err(|error| {
        let about = match error.code {
            Code::NOT_AVAILABLE => "cannot take containers",
            Code::UNSUPPORTED_FIELD | Code::DECODE | Code::INVALID_CONFIG => {
                "cannot take containers: its configuration is wrong"
            }
            Code::LIMITED => "has limited connectivity",
            _ => "does not know its own state",
        };
        anyhow::Error::new(error).context(format!("network {:?} {about}", list.name))
    })?;
    if let Some(pod) = &asked.pod {
        let state = Store::new(&asked.state.state_dir, pod).read()?;
        let state = state.with_context(|| format!("pod {pod} is not up"))?;
        runtime
            .check(&network::recorded(&state)?, &network::container(&state)?)
            .with_context(|| format!("pod {pod} is not as it was made"))?;
    }
    Ok(Readiness::Ready { network: list.name, passed_over })
}

fn tell(found: &Readiness, format: Format) -> Result<()> {
    match (found, format) {
        (Readiness::Ready { network, passed_over }, Format::Text) => {
            let why: String =
                passed_over.iter().map(|why| format!("  passed over {why}\n")).collect();
            output::print(&format!("ready: network {network:?}\n{why}"))
        }
        (Readiness::NotReady { reason }, Format::Text) => {
            output::print(&format!("not ready: {reason}\n"))
        }
        (Readiness::Ready { network, passed_over }, Format::Json) => output::print_json(
            &json!({ "ready": true, "network": network, "passedOver": passed_over }),
        ),
        (Readiness::NotReady { reason }, Format::Json) => {
            output::print_json(&json!({ "ready": false, "reason": reason }))
        }
    }
}

/// Tells of each change until interrupted.
fn watch(asked: &PodReady, runtime: &Runtime, format: Format) -> Result<ExitCode> {
    let stop = interrupt::Stop::catch()?;
    let mut last = None;
    while !stop.is_asked() {
        // Before looking, so that a change in between is not missed.
        let changes = Changes::of(&asked.places.conf_dir)?;
        let found = find(asked, runtime);
        if last.as_ref() != Some(&found) {
            tell(&found, format)?;
            last = Some(found);
        }
        changes.wait(PERIOD)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Files of a directory coming, going or being written.
struct Changes(std::os::fd::OwnedFd);

impl Changes {
    fn of(dir: &Path) -> Result<Changes> {
        let open = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let watch = open.context("watch for changes")?;
        let events = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO;
        match inotify::add_watch(&watch, dir, events) {
            // A directory that is not there yet is looked at again after the period.
            Ok(_) | Err(Errno::NOENT) => Ok(Changes(watch)),
            Err(errno) => Err(errno).with_context(|| format!("watch {}", dir.display())),
        }
    }

    fn wait(&self, most: Duration) -> Result<()> {
        let most = Timespec::try_from(most).context("a period of seconds fits")?;
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&most)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("wait for changes"),
        }
    }
}
