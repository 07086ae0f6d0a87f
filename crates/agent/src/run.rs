// SPDX-License-Identifier: Apache-2.0
//! Starts the agent: opens the store and the dataplanes, connects the controllers, and hands them to the
//! supervisor.
//!
//! Everything runs on the thread that polls [`run`] and on threads that it starts, all in the network
//! namespace of the first: one process can run agents in several namespaces.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use gojson::DecodeError;
use overlay::plan;
use text::ErrorChain;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::try_join;

use crate::dataplane::nft::NftDataplane;
use crate::dataplane::routes::{Options, Report, RoutesDataplane, Secrets, UdpTunnelSlot};
use crate::dataplane::thread::StartError;
use crate::dataplane::{nft, routes};
pub use crate::dry_run::{DryRunError, dry_run};
use crate::extension::ExtensionController;
use crate::membership::{Joiner, Membership};
use crate::multicast::{self, Counters, Multicast};
use crate::nat::{self, Nat};
use crate::node_files::cni_conf::CniConf;
use crate::node_files::{bridge, calico, subnet_env};
use crate::overlay::{Inputs, Outputs, Overlay, Programmed};
use crate::path_check::{self, PathCheck, PathResult, ProbeIntervals};
use crate::paths::Paths;
use crate::pools::api::PoolsApi;
use crate::pools::{self, KnownPods, PoolsController};
use crate::routed::{self, Routed};
use crate::settings::{self, Pods, Settings, StoreChoice};
use crate::status::StatusHub;
use crate::status::log::StatusLog;
use crate::supervisor::{Faults, Supervisor, Timing};
use crate::{api, lease, managed_file, net_config, node_condition, owner};

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Dataplane(#[from] StartError),
    #[error(transparent)]
    Owner(#[from] owner::Error),
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    #[error("option net-config")]
    NetConfig(#[from] DecodeError),
    #[error("option net-config")]
    Network(#[from] plan::Error),
    #[error("open the store")]
    Store(#[from] lease::Error),
    #[error(transparent)]
    Serve(#[from] api::Error),
}

/// Runs an agent until it is dropped. Its kernel state stays.
pub async fn run(settings: Settings, hub: StatusHub) -> Result<Infallible, Error> {
    run_with(settings, hub, Timing::default(), None).await
}

/// [`run`] with another timing of the supervisor, and with faults that a test injects.
pub async fn run_with(
    settings: Settings,
    hub: StatusHub,
    timing: Timing,
    faults: Option<Faults>,
) -> Result<Infallible, Error> {
    owner::check(&settings)?;
    let listener = settings.api.health.map(|(ip, port)| api::listen(ip, port)).transpose()?;
    let mut socket = api::Socket::create(&settings.api.run_dir)?;
    save_options(&settings);
    let (node, store) = (settings.node.name.clone().unwrap_or_default(), settings.store.name());
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(%version, %node, %store, "agent starting");
    settings.sources.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let mut log = StatusLog::new(&hub);
    let supervisor = Supervisor::new(&hub, timing, faults);
    let shown = hub.clone();
    let (to_pools, requests) = unbounded_channel();
    let pods = matches!(settings.store, StoreChoice::Kubernetes(_)).then(KnownPods::default);
    let pools = matches!(settings.network.pods, Pods::Routed { .. });
    let pools = pools.then(|| PoolsApi::new(to_pools, pods.clone()));
    let inputs = PoolInputs { requests, pods };
    supervisor.add("api", async move |heartbeat| {
        api::serve(listener.as_ref(), &mut socket, &shown, pools.clone(), heartbeat).await;
        Ok(())
    });
    supervisor.add("log", async move |heartbeat| {
        log.run(heartbeat).await;
        Ok(())
    });
    // The socket answers while the store opens.
    let running = supervisor.during(add_controllers(settings, &hub, &supervisor, inputs)).await;
    running?;
    Ok(supervisor.run().await)
}

/// Channels between the API and the controllers of address pools.
struct PoolInputs {
    requests: UnboundedReceiver<pools::Request>,
    /// Set when the store is open. Only with Kubernetes.
    pods: Option<KnownPods>,
}

/// Opens the store and the dataplanes, and adds the controllers. Each needs one call of `add`.
async fn add_controllers(
    settings: Settings,
    hub: &StatusHub,
    supervisor: &Supervisor,
    inputs: PoolInputs,
) -> Result<(), Error> {
    if let Some(text) = &settings.network.config {
        net_config::check(text.expose())?;
    }
    let settings = Arc::new(settings);
    if let Some(conf) = CniConf::of(&settings) {
        let shown = hub.clone();
        supervisor.add("cni_conf", async move |heartbeat| conf.run(&shown, heartbeat).await);
    }
    match &settings.network.pods {
        Pods::Bridged => add_bridged(&settings, hub, supervisor).await,
        Pods::Routed { .. } => add_routed(&settings, hub, supervisor, inputs).await,
    }
}

/// The dataplanes, with what they report.
struct Planes {
    routes: Arc<RoutesDataplane>,
    reports: UnboundedReceiver<Report>,
    nft: Arc<NftDataplane>,
    repairs: UnboundedReceiver<nft::Outcome>,
    underlay_changed: Arc<Notify>,
    forwarding_changed: Arc<Notify>,
}

/// Opens both dataplanes, each in the blocking pool: opening one reads all links and next hops.
async fn open_planes(
    settings: &Arc<Settings>,
    hub: &StatusHub,
    supervisor: &Supervisor,
) -> Result<Planes, Error> {
    let (underlay_changed, forwarding_changed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (reported, reports) = unbounded_channel();
    let every = settings.checks.compare_interval;
    let (underlay, forwarding) = (Arc::clone(&underlay_changed), Arc::clone(&forwarding_changed));
    let options = reconciler_options(settings);
    hub.set_udp(options.udp.clone());
    let routes = spawn_blocking(move || {
        routes::start_with(options, every, move |report| match report {
            Report::UnderlayChanged => underlay.notify_one(),
            Report::ForwardingChanged => forwarding.notify_one(),
            Report::Restarted => {
                underlay.notify_one();
                forwarding.notify_one();
                drop(reported.send(report));
            }
            other => drop(reported.send(other)),
        })
    });
    let owner = settings.node.owner.clone();
    let nft = spawn_blocking(move || nft::start(&owner, every));
    let panicked = |error| StartError::Thread(io::Error::other(error));
    let routes = Arc::new(routes.await.map_err(panicked)??);
    let (nft, repairs) = nft.await.map_err(panicked)??;
    let nft = Arc::new(nft);
    let hang = supervisor.hang_duration();
    let (faulty_routes, faulty_nft) = (Arc::clone(&routes), Arc::clone(&nft));
    supervisor.add_fault_target("routes", move |fault| faulty_routes.inject(fault, hang));
    supervisor.add_fault_target("nft", move |fault| faulty_nft.inject(fault, hang));
    Ok(Planes { routes, reports, nft, repairs, underlay_changed, forwarding_changed })
}

/// Adds the controllers for pods with addresses from pools.
async fn add_routed(
    settings: &Arc<Settings>,
    hub: &StatusHub,
    supervisor: &Supervisor,
    inputs: PoolInputs,
) -> Result<(), Error> {
    let store = async { lease::open_objects(settings).await.map_err(Error::from) };
    let opened = try_join!(store, open_planes(settings, hub, supervisor))?;
    let ((objects, directory), planes) = opened;
    let Planes { routes, reports, nft, repairs, underlay_changed, forwarding_changed } = planes;
    let PoolInputs { requests, pods } = inputs;
    let (to_routed, messages) = unbounded_channel();
    let (to_path_check, path_commands) = unbounded_channel();
    let (path_result, path_results) = unbounded_channel();
    let (programmed, has_routes) = watch::channel(None);
    let (translated, has_rules) = watch::channel(None);

    let store = Arc::clone(&objects);
    let mut pools =
        PoolsController::new(settings, hub, store, &underlay_changed, requests, to_routed);
    supervisor.add("pools", async move |heartbeat| pools.run(heartbeat).await);

    let paths = Some(to_path_check).filter(|_| settings.checks.path_check);
    let paths = Paths::new(hub, &routes, paths);
    let inputs = routed::Inputs { messages, reports, path_results };
    let excludes_nodes = settings.nat.excludes_nodes;
    let mut routed = Routed::new(hub, &routes, paths, inputs, programmed, excludes_nodes);
    supervisor.add("routed", async move |heartbeat| routed.run(heartbeat).await);

    let inputs = nat::Inputs { programmed: has_routes, repairs, forwarding_changed };
    let mut nat = Nat::new(settings, hub, nft, inputs, translated);
    supervisor.add("nat", async move |heartbeat| nat.run(heartbeat).await);

    let (conf, shown, mut network) = (Arc::clone(settings), hub.clone(), has_rules.clone());
    supervisor.add("calico_files", async move |heartbeat| {
        calico::run(&conf, &mut network, &shown, heartbeat).await
    });

    add_path_check(supervisor, path_commands, path_result);

    if let (Some(directory), Some(pods)) = (directory, pods) {
        let (mut network, store) = (has_rules, Arc::clone(&objects));
        pods.get_or_init(|| directory.clone());
        supervisor.add("pods", async move |heartbeat| {
            let name = heartbeat.during(objects.node_name()).await?;
            directory.run(&name.unwrap_or_default(), heartbeat).await
        });

        supervisor.add("node_condition", async move |heartbeat| {
            let set = async || store.set_network_available().await;
            node_condition::run(&mut network, |_| true, set, heartbeat).await
        });
    }
    Ok(())
}

/// Adds the controllers for nodes with a subnet for the pods on their bridge.
async fn add_bridged(
    settings: &Arc<Settings>,
    hub: &StatusHub,
    supervisor: &Supervisor,
) -> Result<(), Error> {
    let store = async { lease::open(settings).await.map_err(Error::from) };
    let (leases, planes) = try_join!(store, open_planes(settings, hub, supervisor))?;
    let Planes { routes, reports, nft, repairs, underlay_changed, forwarding_changed } = planes;
    let (to_overlay, messages) = unbounded_channel();
    let (to_path_check, path_commands) = unbounded_channel();
    let (path_result, path_results) = unbounded_channel();
    let (to_extension, jobs) = unbounded_channel();
    let (commands_ran, extension_progress) = watch::channel(Default::default());
    let (programmed, has_routes) = watch::channel(None);
    let (translated, has_rules) = watch::channel(None);
    let counters = Arc::new(Counters::default());
    let (multicast, multicast_commands) = match settings.multicast {
        true => {
            hub.set_multicast(Arc::clone(&counters));
            let (handle, commands) = multicast::Handle::channel();
            (handle, Some(commands))
        }
        false => (multicast::Handle::default(), None),
    };

    let joiner = Joiner::new(settings, hub, &leases, &routes, &underlay_changed);
    let mut membership = Membership::new(joiner, to_overlay);
    supervisor.add("membership", async move |heartbeat| membership.run(heartbeat).await);

    let inputs = Inputs { messages, reports, path_results, extension: extension_progress };
    let paths = Some(to_path_check).filter(|_| settings.checks.path_check);
    let paths = Paths::new(hub, &routes, paths);
    let outputs = Outputs { multicast, extension: to_extension, programmed };
    let mut overlay = Overlay::new(settings, hub, &leases, &routes, paths, inputs, outputs).await;
    supervisor.add("overlay", async move |heartbeat| overlay.run(heartbeat).await);

    let inputs = nat::Inputs { programmed: has_routes, repairs, forwarding_changed };
    let mut nat = Nat::new(settings, hub, nft, inputs, translated);
    supervisor.add("nat", async move |heartbeat| nat.run(heartbeat).await);

    let mut extension = ExtensionController::new(hub, jobs, commands_ran);
    supervisor.add("extension", async move |heartbeat| extension.run(heartbeat).await);

    let (conf, shown, mut network) = (Arc::clone(settings), hub.clone(), has_rules.clone());
    supervisor.add("subnet_env", async move |heartbeat| {
        subnet_env::run(&conf, &mut network, &shown, heartbeat).await
    });

    let (conf, shown, mut network) = (Arc::clone(settings), hub.clone(), has_rules.clone());
    supervisor.add("bridge", async move |heartbeat| {
        bridge::run(&conf, &mut network, &shown, heartbeat).await
    });

    let mut network = has_rules;
    supervisor.add("node_condition", async move |heartbeat| {
        let is_member = |network: &Arc<Programmed>| !network.joined.from_cache;
        let set = async || {
            let set = leases.set_network_available().await;
            set.map_err(|error| ErrorChain(&error).to_string())
        };
        node_condition::run(&mut network, is_member, set, heartbeat).await
    });

    add_path_check(supervisor, path_commands, path_result);

    if let Some(commands) = multicast_commands {
        let mut multicast = Multicast::new(commands, counters);
        supervisor.add("multicast", async move |heartbeat| {
            let ended = multicast.run(heartbeat).await;
            ended.map_err(|error| ErrorChain(&error).to_string())
        });
    }
    Ok(())
}

fn add_path_check(
    supervisor: &Supervisor,
    commands: UnboundedReceiver<path_check::Command>,
    results: UnboundedSender<PathResult>,
) {
    let mut path_check = PathCheck::new(ProbeIntervals::default(), commands, results);
    supervisor.add("path_check", async move |heartbeat| {
        path_check.run(heartbeat).await.map_err(|error| error.to_string())
    });
}

pub(crate) fn reconciler_options(settings: &Settings) -> Options {
    Options {
        owner: settings.node.owner.clone(),
        earlier_networks: Vec::new(),
        secrets: Secrets::default(),
        queues: 2,
        udp: UdpTunnelSlot::default(),
    }
}

/// Saves the options that cleanup needs. A failure is no reason to stop: cleanup takes options as well.
fn save_options(settings: &Settings) {
    let path = settings::saved::path(&settings.node.state_dir, &settings.node.owner);
    if let Err(error) = managed_file::replace_secret(&path, &settings.sources.saved) {
        tracing::warn!(%error, file = %path.display(), "write failed");
    }
}
