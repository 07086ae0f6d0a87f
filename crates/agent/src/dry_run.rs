// SPDX-License-Identifier: Apache-2.0
//! Lists the changes that an agent would make, without making them.

use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use overlay::backend::Backend;
use overlay::lease::Lease;
use overlay::netconf::{NetConf, Pool};
use overlay::plan::{AnyNetwork, Network};
use tokio::sync::Notify;

use crate::dataplane::nft::{Rules, RulesConf};
use crate::dataplane::routes::{self, RoutesDataplane};
use crate::lease::{LeaseBackend, LeaseOrigin, LeasePreview, saved_text};
use crate::membership::{self, JoinError, JoinPreview, Joiner, Prepared, leases, underlay};
use crate::node_files::cni_conf::{self, CniConf};
use crate::node_files::{self, bridge};
use crate::overlay::previous_backend::Backends;
use crate::run::{Error, reconciler_options};
use crate::settings::{Settings, saved};
use crate::status::{ConditionKind, StatusHub};
use crate::{extension, keys, lease, managed_file, net_config, owner};

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum DryRunError {
    #[error(transparent)]
    Start(#[from] Error),
    #[error("an agent would wait: {0}")]
    NotYet(String),
}

impl From<JoinError> for DryRunError {
    fn from(error: JoinError) -> Self {
        Self::NotYet(error.reason)
    }
}

/// Returns the changes that an agent with these settings would make, a line each. Lines that start
/// with `#` are problems.
pub async fn dry_run(settings: Settings, hub: StatusHub) -> Result<Vec<String>, DryRunError> {
    owner::check(&settings).map_err(Error::from)?;
    if let Some(text) = &settings.network.config {
        net_config::check(text.expose()).map_err(Error::from)?;
    }
    let leases = lease::open(&settings).await.map_err(Error::from)?;
    let settings = Arc::new(settings);
    let every = settings.checks.compare_interval;
    let (routes, _) = routes::start(reconciler_options(&settings), every).map_err(Error::from)?;
    let routes = Arc::new(routes);
    let underlay_changed = Arc::new(Notify::new());
    let mut joiner = Joiner::new(&settings, &hub, &leases, &routes, &underlay_changed);
    let preview = joiner.preview().await?;
    Preview { settings: &settings, leases: &*leases, routes: &routes }.lines(&preview).await
}

struct Preview<'a> {
    settings: &'a Settings,
    leases: &'a dyn LeaseBackend,
    routes: &'a RoutesDataplane,
}

impl Preview<'_> {
    /// Lists the changes in the order in which they would be made, then files and problems.
    async fn lines(
        &self,
        JoinPreview { stores_config, prepared, lease: preview }: &JoinPreview,
    ) -> Result<Vec<String>, DryRunError> {
        let conf = &prepared.evaluated.conf;
        let mut lines = Vec::new();
        if *stores_config {
            let location = self.leases.config_location();
            lines.push(format!("write the network's configuration to {location}"));
        }
        lines.extend(extension::line_before_start(conf).map(|line| format!("run {line}")));
        lines.extend(lease_lines(preview, prepared));
        let (changes, pod_mtu) = self.routes(prepared, preview).await?;
        lines.extend(changes);
        let lease = &preview.lease;
        let networks: Vec<IpNet> = conf.networks.iter().collect();
        let subnets: Vec<IpNet> = lease.subnets.iter().collect();
        lines.extend(self.rules(networks, subnets)?);
        let expected = node_files::expected_bridge(self.settings, conf, lease);
        lines.extend(match bridge::preview(&expected) {
            Ok(changes) => changes,
            Err(error) => vec![format!("# {error}")],
        });
        lines.extend(self.files(conf, lease, pod_mtu));
        Ok(lines)
    }

    /// Returns the changes of devices and routes, and the pods' MTU.
    async fn routes(
        &self,
        Prepared { evaluated, items, .. }: &Prepared,
        LeasePreview { lease, obsolete, .. }: &LeasePreview,
    ) -> Result<(Vec<String>, u32), DryRunError> {
        let own = lease.key();
        let is_own = |name: &str| {
            name == own
                || obsolete.iter().any(|old| old == name)
                || self.leases.node_name() == Some(name)
        };
        let peers = leases(items)
            .filter(|(name, ..)| !is_own(name))
            .map(|(name, since, lease)| (name.to_owned(), (since, lease.clone())))
            .collect();
        let (conf, underlay) = (evaluated.conf.clone(), underlay::planned(&evaluated.underlay));
        let mut network = Network::new(conf, lease.clone(), underlay, peers)
            .map_err(|error| JoinError::new(ConditionKind::Config, error.to_string()))?;
        network.set_own_blackholes(self.settings.nat.blackhole);
        Backends::read(self.settings).preview(evaluated.text.expose(), &mut network);
        let mut network = AnyNetwork::from(network);
        let run = self.routes.run(move |reconciler| (reconciler.dry_run(&mut network), network));
        let (diff, network) = run.await.map_err(|error| failed(&error))?;
        let rejected = network.plan().rejected.iter().map(|rejected| format!("# {rejected}"));
        let diff = diff.map_err(|error| failed(&error))?;
        let changes = diff.changes.iter().map(ToString::to_string);
        let conflicts = diff.conflicts.iter().map(|conflict| format!("# {conflict}"));
        Ok((changes.chain(conflicts).chain(rejected).collect(), network.plan().pod_mtu))
    }

    fn rules(&self, networks: Vec<IpNet>, subnets: Vec<IpNet>) -> Result<Vec<String>, DryRunError> {
        let masquerade = self.settings.nat.masquerade.clone();
        let forwards = self.settings.nat.forwards;
        let conf = RulesConf { networks, subnets, sources: None, masquerade, forwards };
        let rules = Rules::open(&self.settings.node.owner).map_err(|error| failed(&error))?;
        let outcomes = [rules.preview(&conf), rules.preview_flannel_removal()];
        let lines = outcomes.into_iter().flat_map(|outcome| {
            let problems = outcome.problems.into_iter().map(|problem| format!("# {problem}"));
            let changes = outcome.changes.iter().map(ToString::to_string);
            changes.chain(problems).collect::<Vec<_>>()
        });
        Ok(lines.collect())
    }

    /// Lists all files, also those that are up to date.
    fn files(&self, conf: &NetConf, lease: &Lease, mtu: u32) -> Vec<String> {
        let settings = self.settings;
        let mut lines = Vec::new();
        let key = keys::wireguard_file(&settings.node.state_dir);
        if matches!(conf.backend, Backend::Wireguard(_)) && !key.exists() {
            lines.push(format!("write {}: a private key", key.display()));
        }
        let options = saved::path(&settings.node.state_dir, &settings.node.owner);
        lines.extend(file_lines(&options, &settings.sources.saved));
        lines.extend(file_lines(&membership::lease_file(settings), &saved_text(lease)));
        let env = node_files::subnet_env(settings, conf, lease, mtu);
        lines.extend(file_lines(&settings.files.subnet_env, &env.to_string()));
        if let Some(CniConf { path, text }) = CniConf::of(settings) {
            lines.extend(match cni_conf::refuse_foreign(&path) {
                Ok(()) => file_lines(&path, &text),
                Err(error) => vec![format!("# {error}")],
            });
        }
        lines
    }
}

fn failed(error: &dyn std::fmt::Display) -> DryRunError {
    DryRunError::NotYet(error.to_string())
}

/// Names the file, and lists its lines if they would change.
fn file_lines(path: &Path, text: &str) -> Vec<String> {
    let shown = path.display();
    match managed_file::read(path) {
        Ok(found) if found.as_deref() == Some(text) => vec![format!("leave {shown} unchanged")],
        Ok(_) => {
            let lines = text.lines().map(|line| format!("    {line}"));
            [format!("write {shown}:")].into_iter().chain(lines).collect()
        }
        Err(error) => vec![format!("# read {shown}: {error}")],
    }
}

/// Names the lease. If the agent would take any free subnet, an example stands for it.
fn lease_lines(
    LeasePreview { lease, origin, obsolete }: &LeasePreview,
    prepared: &Prepared,
) -> Vec<String> {
    let key = lease.key();
    let deleted = obsolete.iter().map(|old| format!("delete lease {old}, which no longer fits"));
    let taken = match origin {
        LeaseOrigin::Kept => format!("keep lease {key}"),
        LeaseOrigin::Known => format!("take lease {key}"),
        LeaseOrigin::Free => {
            let pools = ranges(prepared.evaluated.pools.iter().map(|(_, pool)| pool));
            format!("take a lease that is free {pools}; {key} stands for it below")
        }
    };
    deleted.chain([taken]).collect()
}

fn ranges<'a>(pools: impl Iterator<Item = &'a Pool>) -> String {
    let range = |pool: &Pool| {
        let length = pool.subnet_len();
        format!("from {}/{length} to {}/{length}", pool.min(), pool.max())
    };
    pools.map(range).collect::<Vec<_>>().join(" and ")
}
