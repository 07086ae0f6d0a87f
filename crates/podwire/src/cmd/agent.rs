// SPDX-License-Identifier: Apache-2.0
//! `podwire agent`: the node daemon as a process. The environment, signals and logs are here.

use std::convert::Infallible;
use std::io::{self, Write};
use std::process::ExitCode;

use agent::notify::{self, Notifier};
use agent::options::{self, Asked, Command, Settings};
use agent::status::StatusHub;
use anyhow::{Context, Result, anyhow};
use text::escape;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::{AGENT_EXAMPLES, CLEANUP_EXAMPLES};
use crate::output::{self, Format};
use crate::privilege::Privilege;
use crate::report::Hint;

/// Runs until a signal ends it; with `--dry-run` it only tells what it would do.
pub fn run(args: &[String]) -> Result<()> {
    let Some(settings) = understand(Command::Agent, args)? else { return Ok(()) };
    log(&settings)?;
    let hub = StatusHub::new(settings.node_name.clone().unwrap_or_default(), settings.store.name());
    match settings.dry_run {
        _ if settings.replaces_net_config => {
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

/// Removes every trace of an agent with these options; with `--dry-run` it only tells.
pub fn clean(args: &[String], format: Format) -> Result<ExitCode> {
    let Some(settings) = understand(Command::Cleanup, args)? else { return Ok(ExitCode::SUCCESS) };
    let cleaned = runtime()?.block_on(agent::cleanup::cleanup(&settings))?;
    if format == Format::Json {
        output::print_json(&serde_json::to_value(&cleaned)?)?;
        return Ok(u8::from(!cleaned.failed.is_empty()).into());
    }
    let left = cleaned.left.iter().map(|line| format!("# left: {line}"));
    let mut lines: Vec<String> = cleaned.done.iter().cloned().chain(left).collect();
    if lines.is_empty() {
        lines.push("there is nothing to remove".to_owned());
    }
    output::print_lines(&lines)?;
    anyhow::ensure!(cleaned.failed.is_empty(), "{}", cleaned.failed.join("; "));
    Ok(ExitCode::SUCCESS)
}

/// The options, with this machine's name where none was told; none where they asked for help alone.
fn understand(command: Command, args: &[String]) -> Result<Option<Settings>> {
    let var = |name: &str| std::env::var(name).ok();
    match options::understand(command, args, var, |path| std::fs::read_to_string(path))? {
        Asked::Help => output::print(&help(command)).map(|()| None),
        Asked::Version => {
            output::print(&format!("podwire {}\n", env!("CARGO_PKG_VERSION"))).map(|()| None)
        }
        Asked::Run(mut settings) => {
            if !settings.store.tells_name() {
                settings.node_name.get_or_insert_with(host_name);
            }
            Ok(Some(*settings))
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

async fn serve(settings: Settings, hub: StatusHub) -> Result<()> {
    let notifier = notifier()?;
    let told = async {
        match &notifier {
            Some(notifier) => notifier.keep(&hub).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = agent::run::run(settings, hub.clone()) => {
            ended.map(|never: Infallible| match never {}).map_err(Into::into)
        }
        () = told => Ok(()),
        ended = stop() => ended,
    };
    if let Some(notifier) = &notifier {
        notifier.stopping();
    }
    ended
}

async fn stop() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("ends; what is in the kernel stays");
    Ok(())
}

fn notifier() -> Result<Option<Notifier>> {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let var = |name| std::env::var(name).ok();
    let (usec, pid) = (var("WATCHDOG_USEC"), var("WATCHDOG_PID"));
    let watchdog = notify::watchdog(usec.as_deref(), pid.as_deref(), std::process::id());
    Notifier::new(&address, watchdog).map(Some).context("NOTIFY_SOCKET")
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// To standard error, a line each. Of libraries only what is wrong.
fn log(settings: &Settings) -> Result<()> {
    let ours = match settings.verbosity {
        0 => LevelFilter::INFO,
        1..=3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let ours_are = ["agent", "store", "podwire", "tunnel"];
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        // It logs whatever we try again; what comes of that we tell ourselves.
        .with_target("kube_client", LevelFilter::OFF)
        .with_targets(ours_are.map(|target| (target, ours)));
    let is_json = settings.logs_json;
    let lines = tracing_subscriber::fmt::layer().with_writer(move || LogLines { is_json });
    let layer = match settings.logs_json {
        true => lines.json().boxed(),
        false => lines.boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(())
}

/// Standard error for lines of the log, which may hold text of others.
struct LogLines {
    is_json: bool,
}

impl Write for LogLines {
    /// Of a whole line: the log writes each at once.
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

const AGENT: &str = "\
Connects this node's pods to those of other nodes, as flanneld does.

Usage: podwire agent [OPTIONS]";

const CLEANUP: &str = "\
Removes every trace of an agent from this node: devices, routes, rules, files, and its lease.
It goes by what the agent has written down in its state-dir, and by options. What bears another agent's mark is left alone.

Usage: podwire cleanup [OPTIONS]";

fn help(command: Command) -> String {
    let (about, examples) = match command {
        Command::Agent => (AGENT, AGENT_EXAMPLES),
        Command::Cleanup => (CLEANUP, CLEANUP_EXAMPLES),
    };
    format!(
        "{about}\n\n\
         Each option can also be a variable (FLANNELD_IFACE, PODWIRE_STORE) or a key of the TOML\n\
         file that --config names.\n\nOptions:\n{}\n{examples}\n",
        options::help()
    )
}
