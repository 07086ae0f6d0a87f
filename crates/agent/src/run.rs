// SPDX-License-Identifier: Apache-2.0
//! The agent at work: sessions, one after the other, and all that shows of them.
//!
//! Everything happens on the thread that polls this, and on threads that it starts, all in the network
//! namespace of the first: one process can have an agent in each of several namespaces.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gojson::DecodeError;
use ipnet::IpNet;
use kernel::IfIndex;
use overlay::{Prefixes, plan};
use store::Revision;
use text::{ErrorChain, Secret};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};

use crate::dataplane::nft::Keeper;
use crate::dataplane::routes::{
    KernelThread, Options, Outcome, Reconciler, Report, Secrets, StartError,
};
use crate::file_watcher::FileWatcher;
use crate::lease::{self, HeldLease, LeaseBackend, OwnNode, PeerWatch};
use crate::multicast::{self, Counters};
use crate::node_files::cni_conf::CniConf;
use crate::node_files::{bridge, subnet_env};
use crate::path_check::{self, PathCheck, PathResult, ProbeIntervals};
use crate::session::{Backends, End, Memory, Next};
use crate::settings::{self, Settings};
use crate::status::log::StatusLog;
use crate::status::{BEAT_EVERY, ConditionKind, StatusHub};
use crate::{api, file_watcher, managed_file, net_config, owner};

/// What a session needs before it can begin, in this order.
pub(crate) const BEGINNING: [ConditionKind; 4] =
    [ConditionKind::Store, ConditionKind::Config, ConditionKind::Underlay, ConditionKind::Lease];
/// So long at most until a session that did not begin is tried again, whatever happens.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where an interface is missing: routes that come are not told of.
const ROUTES: Duration = Duration::from_secs(1);
/// Where the store cannot be reached: one that comes is not told of either.
const STORES: Duration = Duration::from_secs(2);
/// Between two sessions at least: nodes may fight over a lease, and stores have much news.
const PAUSE: Duration = Duration::from_millis(200);

/// After the node's condition could not be set.
const TELL_AGAIN: Duration = Duration::from_secs(30);

/// Why an agent cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Kernel(#[from] StartError),
    #[error(transparent)]
    Mark(#[from] owner::Error),
    #[error("listen to nf_tables")]
    Rules(#[from] kernel::Error),
    #[error("option net-config")]
    NetConfig(#[from] DecodeError),
    #[error("option net-config")]
    Network(#[from] plan::Error),
    #[error("open the store")]
    Store(#[from] lease::Error),
    #[error(transparent)]
    Serve(#[from] api::Error),
}

/// An agent at work.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) settings: Settings,
    pub(crate) hub: StatusHub,
    pub(crate) leases: Arc<dyn LeaseBackend>,
    /// Where the network's configuration is a file.
    pub(crate) config_file: Option<FileWatcher>,
    pub(crate) kernel: KernelThread,
    pub(crate) reports: UnboundedReceiver<Report>,
    pub(crate) rules: Keeper,
    /// None where paths are not checked.
    pub(crate) paths: Option<UnboundedSender<path_check::Command>>,
    pub(crate) verdicts: UnboundedReceiver<PathResult>,
    /// What plugins are told.
    pub(crate) subnet_env: watch::Sender<Option<subnet_env::Told>>,
    /// The subnets that the pods' bridge is for.
    pub(crate) bridge: watch::Sender<Option<bridge::Expected>>,
    /// None where it is switched off.
    pub(crate) multicast: multicast::Handle,
    /// Of this session, or of the last one.
    pub(crate) held: Option<HeldLease>,
    /// The way to other nodes of this session, or of the last one.
    pub(crate) interface: Option<IfIndex>,
    /// The network's configuration of this session, or of the last one.
    pub(crate) in_force: Option<Secret>,
    /// Backends that this node has published.
    pub(crate) backends: Backends,
    pub(crate) memory: Memory,
    /// What Kubernetes says of this node.
    pub(crate) own: OwnNode,
    pub(crate) mark: String,
    /// What it never changes, whatever its addresses are.
    pub(crate) identity: String,
    /// What the command before the start has printed, where the backend has one.
    pub(crate) extension_output: Option<String>,
    /// Subnets of peers for which a command of the backend's has failed, with what it said.
    pub(crate) not_added: BTreeMap<IpNet, String>,
}

/// Works until it is dropped, or cannot begin. What it has made in the kernel stays.
pub async fn run(settings: Settings, hub: StatusHub) -> Result<Infallible, Error> {
    owner::check(&settings)?;
    let listener = settings.api.health.map(|(ip, port)| api::listen(ip, port)).transpose()?;
    let socket = api::Socket::create(&settings.api.run_dir)?;
    record(&settings);
    let served = api::both(listener, Some(socket), &hub);
    let conf = CniConf::of(&settings);
    let subnet_file = settings.files.subnet_env.clone();
    let (subnet_env, wanted_env) = watch::channel(None);
    let (bridge, expected) = watch::channel(None);
    let (node, store) = (settings.node.name.clone().unwrap_or_default(), settings.store.name());
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(%version, %node, %store, "the agent starts");
    settings.sources.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let ((paths, commands), (verdicts, heard)) = (unbounded_channel(), unbounded_channel());
    let paths = Some(paths).filter(|_| settings.checks.path_check);
    let counters = Arc::new(Counters::default());
    let (mut multicast, groups) = multicast::Handle::channel();
    if settings.multicast {
        hub.set_multicast(Arc::clone(&counters));
    } else {
        multicast = multicast::Handle::default();
    }
    let journal = StatusLog::new(&hub);
    let worker =
        Worker::start(settings, hub.clone(), Ways { paths, heard, multicast, subnet_env, bridge })
            .await?;
    let kept = async {
        match conf {
            Some(conf) => conf.keep(hub.clone()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        never = worker.work() => match never {},
        () = served => unreachable!("it serves until it is dropped"),
        () = journal.keep() => unreachable!("it is kept until it is dropped"),
        () = kept => unreachable!("it is kept until it is dropped"),
        () = subnet_env::keep(&subnet_file, wanted_env, &hub) => unreachable!("the same"),
        () = bridge::keep(expected, &hub) => unreachable!("the same"),
        () = run_path_check(commands, verdicts) => unreachable!("it waits when it is done"),
        () = run_multicast(groups, counters) => unreachable!("it waits when it is done"),
    }
}

/// For cleanup. One that cannot be written is no reason to end: cleanup can be told as well.
fn record(settings: &Settings) {
    let path = settings::saved::path(&settings.node.state_dir, &settings.node.owner);
    if let Err(error) = managed_file::replace_secret(&path, &settings.sources.saved) {
        tracing::warn!(%error, file = %path.display(), "cannot be written");
    }
}

/// What an agent with these settings would do now, a line each; those after a `#` are in its way. Nothing is
/// changed.
pub async fn dry_run(settings: Settings, hub: StatusHub) -> Result<Vec<String>, DryError> {
    owner::check(&settings).map_err(Error::from)?;
    let (subnet_env, _) = watch::channel(None);
    let (bridge, _) = watch::channel(None);
    let heard = unbounded_channel().1;
    let ways =
        Ways { paths: None, heard, multicast: multicast::Handle::default(), subnet_env, bridge };
    let mut worker = Worker::start(settings, hub, ways).await?;
    worker.preview().await.map_err(|end| DryError::NotYet(end.why))
}

/// Why nothing can be told.
#[derive(Debug, thiserror::Error)]
pub enum DryError {
    #[error(transparent)]
    Start(#[from] Error),
    #[error("an agent would wait: {0}")]
    NotYet(String),
}

impl Worker {
    async fn start(
        settings: Settings,
        hub: StatusHub,
        Ways { paths, heard, multicast, subnet_env, bridge }: Ways,
    ) -> Result<Self, Error> {
        if let Some(text) = &settings.network.config {
            net_config::check(text.expose())?;
        }
        let leases = lease::open(&settings).await?;
        let backends = Backends::read(&settings);
        let mark = settings.node.owner.clone();
        let identity = identity(&settings);
        let options = Options {
            mark: mark.clone(),
            previous: Vec::new(),
            secrets: Secrets::default(),
            queues: 2,
        };
        let (kernel, reports) = KernelThread::start(options, settings.checks.compare_interval)?;
        let rules = Keeper::open(&mark, settings.checks.compare_interval)?;
        Ok(Self {
            settings,
            hub,
            config_file: leases.config_location().file().map(FileWatcher::new),
            leases,
            kernel,
            reports,
            rules,
            paths,
            verdicts: heard,
            multicast,
            subnet_env,
            bridge,
            held: None,
            interface: None,
            in_force: None,
            backends,
            memory: Memory::default(),
            own: OwnNode::default(),
            mark,
            identity,
            extension_output: None,
            not_added: BTreeMap::new(),
        })
    }

    async fn work(mut self) -> Infallible {
        loop {
            let started = Instant::now();
            let end = match self.begin().await {
                Ok(mut session) => match self.follow(&mut session).await {
                    Ok(never) => match never {},
                    Err(end) => end,
                },
                Err(end) => end,
            };
            self.pause(end, started).await;
        }
    }

    /// Tells why there is no session, and waits for what may change that.
    async fn pause(&mut self, end: End, started: Instant) {
        let End { part, why, next } = end;
        match next {
            Next::Now => {
                tracing::info!(%why, "begins anew");
                sleep_until(started + PAUSE).await;
            }
            Next::News(_) | Next::Away => {
                // What comes before it is there by now; of what comes after it nothing is known. The store says
                // itself that it is there.
                let before = BEGINNING.into_iter().take_while(|other| *other != part);
                before
                    .filter(|other| *other != ConditionKind::Store)
                    .for_each(|one| self.hub.clear_problem(one));
                self.hub.set_problem(part, why);
                let patience = match part {
                    ConditionKind::Underlay => ROUTES,
                    ConditionKind::Store => STORES,
                    _ => PATIENCE,
                };
                let seen = if let Next::News(seen) = next { seen } else { None };
                self.wait(seen, patience).await;
                sleep_until(started + PAUSE).await;
            }
        }
    }

    async fn wait(&mut self, seen: Option<Revision>, patience: Duration) {
        let mut follow = seen.map(|revision| PeerWatch::new(&*self.leases, revision));
        let deadline = Instant::now() + patience;
        let mut beats = interval(BEAT_EVERY);
        loop {
            tokio::select! {
                () = news(&mut follow) => return,
                () = file_watcher::next_of(&mut self.config_file) => return,
                report = self.reports.recv() => match report {
                    Some(Report::Underlay) => return self.leases.reconnect(),
                    None => return,
                    Some(other) => self.take_aside(other),
                },
                mended = self.rules.next() => self.post_rules(&mended, true),
                _ = beats.tick() => self.hub.heartbeat(),
                () = sleep_until(deadline) => return,
            }
        }
    }

    /// What the kernel thread tells while there is no session.
    pub(crate) fn take_aside(&mut self, report: Report) {
        match report {
            Report::Repaired(outcome) => self.post_changes(&outcome, true),
            Report::TriedAgain(outcome) => self.post_changes(&outcome, false),
            Report::Rules => self.rules.nudge(),
            Report::Compared { took, changes } => self.hub.compared(took, changes),
            Report::Deaf(why) => {
                let text = format!("no events of changes in the kernel: {why}");
                self.hub.set_problem(ConditionKind::Watch, text);
            }
            Report::Underlay => {}
        }
    }

    /// Kubernetes keeps pods away from a node until somebody says that its network is there.
    /// Returns when to try again, if that failed.
    pub(crate) async fn tell_cluster(&self) -> Option<std::time::Instant> {
        let error = self.leases.set_network_available().await.err()?;
        tracing::warn!(error = %ErrorChain(&error), "node condition not set, retrying");
        Some(std::time::Instant::now() + TELL_AGAIN)
    }

    /// Has the kernel thread do something.
    pub(crate) async fn kernel(
        &self,
        command: impl FnOnce(&mut Reconciler) -> Outcome + Send + 'static,
    ) -> Result<Outcome, End> {
        let done = self.kernel.run(command).await;
        done.map_err(|stopped| End::wait(ConditionKind::Kernel, stopped.to_string(), None))
    }

    /// What this node had when an agent, or flanneld, last ran here.
    pub(crate) fn previous(&self) -> Option<Prefixes> {
        let read = subnet_env::read(&self.settings.files.subnet_env);
        let env = read.inspect_err(
            |error| tracing::warn!(error = %ErrorChain(error), "ignoring unreadable subnet file"),
        );
        Prefixes::of(env.ok()??.subnets)
    }

    pub(crate) fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0)
    }
}

/// Machines may be copies of each other, and nodes may share one: both tell them apart.
fn identity(settings: &Settings) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let name = settings.node.name.as_deref().unwrap_or_default();
    format!("{name} {}", machine.trim())
}

/// What a worker tells the parts beside it, and hears of them.
struct Ways {
    paths: Option<UnboundedSender<path_check::Command>>,
    heard: UnboundedReceiver<PathResult>,
    multicast: multicast::Handle,
    subnet_env: watch::Sender<Option<subnet_env::Told>>,
    bridge: watch::Sender<Option<bridge::Expected>>,
}

/// Runs multicast, and restarts it after an error.
async fn run_multicast(commands: UnboundedReceiver<multicast::Command>, counters: Arc<Counters>) {
    let mut multicast = multicast::Multicast::new(commands, counters);
    while let Err(error) = multicast.run().await {
        tracing::error!(error = %ErrorChain(&error), "multicast failed, restarting");
        sleep_until(Instant::now() + PATIENCE).await;
    }
    std::future::pending::<()>().await;
}

/// Runs the path check, and restarts it after an error.
async fn run_path_check(
    commands: UnboundedReceiver<path_check::Command>,
    results: UnboundedSender<PathResult>,
) {
    let mut check = PathCheck::new(ProbeIntervals::default(), commands, results);
    while let Err(error) = check.run().await {
        tracing::error!(%error, "path check failed, restarting");
        sleep_until(Instant::now() + PATIENCE).await;
    }
    std::future::pending::<()>().await;
}

/// Never, where nothing is followed. An error ends the wait as well: the next session tells it.
async fn news(follow: &mut Option<PeerWatch>) {
    match follow {
        Some(follow) => drop(follow.next().await),
        None => std::future::pending().await,
    }
}
