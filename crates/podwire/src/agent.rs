// SPDX-License-Identifier: Apache-2.0
//! `podwire agent`: the node daemon as a process. The environment, signals and logs are here.

use std::convert::Infallible;

use agent::board::Board;
use agent::notify::{self, Notifier};
use agent::options::{self, Asked, Settings};
use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output;

/// Runs until a signal ends it.
pub fn run(args: &[String]) -> Result<()> {
    let var = |name: &str| std::env::var(name).ok();
    let settings = match options::understand(args, var, |path| std::fs::read_to_string(path))? {
        Asked::Help => return output::print(&help()),
        Asked::Version => {
            return output::print(&format!("podwire {}\n", env!("CARGO_PKG_VERSION")));
        }
        Asked::Run(settings) => *settings,
    };
    log(&settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: Settings) -> Result<()> {
    let node = settings.node_name.clone().unwrap_or_else(host_name);
    let settings = Settings { node_name: Some(node.clone()), ..settings };
    let board = Board::new(node, settings.store.name());
    let notifier = notifier()?;
    let told = async {
        match &notifier {
            Some(notifier) => notifier.keep(&board).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = agent::run::run(settings, board.clone()) => ended.map(|never: Infallible| match never {}),
        () = told => Ok(()),
        ended = stop() => return ended,
    };
    if let Some(notifier) = &notifier {
        notifier.stopping();
    }
    Ok(ended?)
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
        .with_targets(ours_are.map(|target| (target, ours)));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let layer = match settings.logs_json {
        true => lines.json().boxed(),
        false => lines.boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(())
}

fn help() -> String {
    format!(
        "Connects this node's pods to those of other nodes, as flanneld does.\n\n\
         Usage: podwire agent [OPTIONS]\n\n\
         Each option can also be a variable (FLANNELD_IFACE, PODWIRE_STORE) or a key of the TOML\n\
         file that --config names.\n\nOptions:\n{}",
        options::help()
    )
}
