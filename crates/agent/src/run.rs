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

use crate::cni_conf::CniConf;
use crate::dataplane::nft::Keeper;
use crate::dataplane::routes::{
    KernelThread, Options, Outcome, Reconciler, Report, Secrets, StartError,
};
use crate::ear::Ear;
use crate::journal::Journal;
use crate::lease::{self, HeldLease, LeaseBackend, OwnNode, PeerWatch};
use crate::multicast::{self, Counts};
use crate::options::{self, Settings};
use crate::path::{self, Pace, Verdict};
use crate::session::{Backends, End, Memory, Next};
use crate::status::{BEAT_EVERY, ConditionKind, StatusHub};
use crate::{bridge, ear, file, mark, net_config, serve, subnet_env};

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
    Mark(#[from] mark::Error),
    #[error("listen to nf_tables")]
    Rules(#[from] kernel::Error),
    #[error("option net-config")]
    NetConfig(#[from] DecodeError),
    #[error("option net-config")]
    Network(#[from] plan::Error),
    #[error("open the store")]
    Store(#[from] lease::Error),
    #[error(transparent)]
    Serve(#[from] serve::Error),
}

/// An agent at work.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) settings: Settings,
    pub(crate) hub: StatusHub,
    pub(crate) leases: Arc<dyn LeaseBackend>,
    /// Where the network's configuration is a file.
    pub(crate) config_file: Option<Ear>,
    pub(crate) kernel: KernelThread,
    pub(crate) reports: UnboundedReceiver<Report>,
    pub(crate) rules: Keeper,
    /// None where paths are not checked.
    pub(crate) paths: Option<UnboundedSender<path::Command>>,
    pub(crate) verdicts: UnboundedReceiver<Verdict>,
    /// What plugins are told.
    pub(crate) subnet_env: watch::Sender<Option<subnet_env::Told>>,
    /// The subnets that the pods' bridge is for.
    pub(crate) bridge: watch::Sender<Option<bridge::Expected>>,
    /// None where it is switched off.
    pub(crate) multicast: Option<UnboundedSender<multicast::Command>>,
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
    mark::check(&settings)?;
    let listener = settings.health.map(|(ip, port)| serve::listen(ip, port)).transpose()?;
    let socket = serve::Socket::create(&settings.run_dir)?;
    record(&settings);
    let served = serve::both(listener, Some(socket), &hub);
    let conf = CniConf::of(&settings);
    let subnet_file = settings.subnet_file.clone();
    let (subnet_env, wanted_env) = watch::channel(None);
    let (bridge, expected) = watch::channel(None);
    let (node, store) = (settings.node_name.clone().unwrap_or_default(), settings.store.name());
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(%version, %node, %store, "the agent starts");
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let ((paths, commands), (verdicts, heard)) = (unbounded_channel(), unbounded_channel());
    let paths = Some(paths).filter(|_| settings.path_check);
    let (multicast, groups) = unbounded_channel();
    let multicast = Some(multicast).filter(|_| settings.multicast);
    let counts = Arc::new(Counts::default());
    if multicast.is_some() {
        hub.set_multicast(Arc::clone(&counts));
    }
    let journal = Journal::new(&hub);
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
        () = checked(commands, verdicts) => unreachable!("it waits when it is done"),
        () = carried(groups, counts) => unreachable!("it waits when it is done"),
    }
}

/// For cleanup. One that cannot be written is no reason to end: cleanup can be told as well.
fn record(settings: &Settings) {
    let path = options::record::path(&settings.state_dir, &settings.mark);
    if let Err(error) = file::replace_secret(&path, &settings.record) {
        tracing::warn!(%error, file = %path.display(), "cannot be written");
    }
}

/// What an agent with these settings would do now, a line each; those after a `#` are in its way. Nothing is
/// changed.
pub async fn dry_run(settings: Settings, hub: StatusHub) -> Result<Vec<String>, DryError> {
    mark::check(&settings).map_err(Error::from)?;
    let (subnet_env, _) = watch::channel(None);
    let (bridge, _) = watch::channel(None);
    let heard = unbounded_channel().1;
    let ways = Ways { paths: None, heard, multicast: None, subnet_env, bridge };
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
        if let Some(text) = &settings.net_config {
            net_config::check(text.expose())?;
        }
        let leases = lease::open(&settings).await?;
        let backends = Backends::read(&settings);
        let mark = settings.mark.clone();
        let identity = identity(&settings);
        let options = Options {
            mark: mark.clone(),
            previous: Vec::new(),
            secrets: Secrets::default(),
            queues: 2,
        };
        let (kernel, reports) = KernelThread::start(options, settings.compare_every)?;
        let rules = Keeper::open(&mark, settings.compare_every)?;
        Ok(Self {
            settings,
            hub,
            config_file: leases.config_location().file().map(Ear::new),
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
                () = ear::next_of(&mut self.config_file) => return,
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
        let read = subnet_env::read(&self.settings.subnet_file);
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
    let name = settings.node_name.as_deref().unwrap_or_default();
    format!("{name} {}", machine.trim())
}

/// What a worker tells the parts beside it, and hears of them.
struct Ways {
    paths: Option<UnboundedSender<path::Command>>,
    heard: UnboundedReceiver<Verdict>,
    multicast: Option<UnboundedSender<multicast::Command>>,
    subnet_env: watch::Sender<Option<subnet_env::Told>>,
    bridge: watch::Sender<Option<bridge::Expected>>,
}

/// Multicast that cannot be carried is no reason to end.
async fn carried(groups: UnboundedReceiver<multicast::Command>, counts: Arc<Counts>) {
    if let Err(error) = multicast::run(groups, counts).await {
        tracing::error!(%error, "multicast is not carried to other nodes");
    }
    std::future::pending::<()>().await;
}

/// Paths that cannot be checked are no reason to end.
async fn checked(commands: UnboundedReceiver<path::Command>, verdicts: UnboundedSender<Verdict>) {
    if let Err(error) = path::run(Pace::default(), commands, verdicts).await {
        tracing::error!(%error, "paths to peers are not checked");
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
