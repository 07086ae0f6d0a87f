// SPDX-License-Identifier: Apache-2.0
//! `podwire agent`: the node agent as a process, with its signals, its log and its messages to
//! systemd.

use std::convert::Infallible;
use std::io::{self, Write};

use agent::settings::{Command, Settings};
use agent::status::StatusHub;
use agent::status::systemd::{self, Notifier};
use anyhow::{Context, Result, anyhow};
use text::escape;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::agent_options::AgentOptions;
use crate::errors::Hint;
use crate::output;
use crate::privilege::Privilege;

pub(crate) const EXAMPLES: &str = "\
Examples:
  podwire agent --net-config '{\"Network\": \"10.244.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}'
  podwire agent --etcd-endpoints https://10.0.0.1:2379        use the keys of flannel in etcd
  podwire agent --config /etc/podwire/agent.toml              read options from a file
  podwire agent --config /etc/podwire/agent.toml --dry-run    print what the agent would change

Each option can also be set by an environment variable (FLANNELD_IFACE for --iface; `--help` shows the
names) or by a key of the TOML file that --config names. The command line takes precedence over the
environment, the environment over the file. Options may be written with one dash, as for flanneld.";

/// Runs the agent until a signal stops it. With `--dry-run` it only prints the changes.
pub(crate) fn run(options: &AgentOptions) -> Result<()> {
    let settings = options.settings(Command::Agent)?;
    init_log(&settings)?;
    let hub = StatusHub::new(settings.node.name.clone().unwrap_or_default(), settings.store.name());
    match settings.mode.dry_run {
        _ if settings.mode.replaces_net_config => {
            let done = runtime()?.block_on(agent::net_config::replace(&settings))?;
            output::print_lines(&[done])
        }
        true => {
            let lines = runtime()?.block_on(agent::run::dry_run(settings, hub))?;
            output::print_lines(&lines)
        }
        false => {
            if let Some(hint) = Privilege::of_process().lacks_net_admin() {
                return Err(anyhow!("the agent cannot change this node's network")).hint(|| hint);
            }
            runtime()?.block_on(serve(settings, hub))
        }
    }
}

/// Single-threaded tokio runtime, as the agent needs it.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

async fn serve(settings: Settings, hub: StatusHub) -> Result<()> {
    let notifier = notifier()?;
    let notify = async {
        match &notifier {
            Some(notifier) => notifier.run(&hub).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        ended = agent::run::run(settings, hub.clone()) => {
            ended.map(|never: Infallible| match never {}).map_err(Into::into)
        }
        () = notify => Ok(()),
        stopped = stop_signal() => stopped,
    };
    if let Some(notifier) = &notifier {
        notifier.stopping();
    }
    result
}

async fn stop_signal() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("shutting down, kernel state left in place");
    Ok(())
}

/// Sender of messages to systemd, if systemd started this process.
fn notifier() -> Result<Option<Notifier>> {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let var = |name| std::env::var(name).ok();
    let (usec, pid) = (var("WATCHDOG_USEC"), var("WATCHDOG_PID"));
    let watchdog = systemd::watchdog(usec.as_deref(), pid.as_deref(), std::process::id());
    Notifier::new(&address, watchdog).map(Some).context("NOTIFY_SOCKET")
}

/// Logs to standard error, one line per event. Libraries log warnings and errors only.
fn init_log(settings: &Settings) -> Result<()> {
    let level = match settings.log.verbosity {
        0 => LevelFilter::INFO,
        1..=3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let own_crates = ["agent", "store", "podwire", "tunnel"];
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        // kube_client logs every failed attempt; the agent logs the final result.
        .with_target("kube_client", LevelFilter::OFF)
        .with_targets(own_crates.map(|target| (target, level)));
    let is_json = settings.log.json;
    let lines = tracing_subscriber::fmt::layer().with_writer(move || LogWriter { is_json });
    let layer = match settings.log.json {
        true => lines.json().boxed(),
        false => lines.boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(())
}

/// Writes log lines to standard error and escapes control characters: a line may quote text from
/// the store.
struct LogWriter {
    is_json: bool,
}

impl Write for LogWriter {
    /// tracing-subscriber passes one whole line per call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = if self.is_json { escape::json(text) } else { escape::line(text) };
        io::stderr().write_all(format!("{text}\n").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
