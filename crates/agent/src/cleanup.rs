// SPDX-License-Identifier: Apache-2.0
//! `podwire cleanup`: removes every trace of an agent from its node, and its lease from the store. Objects with the
//! owner tag of another agent are left alone. With `--keep-network` the network stays in place for flanneld.

mod routed;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use kernel::nexthop::{self, Nexthop, NexthopFilter};
use kernel::route::{self, KIND_BLACKHOLE, PROTOCOL_BOOT, Route, RouteFilter, TABLE_MAIN};
use kernel::{Netlink, Request, link};
use overlay::desired::BLACKHOLE_METRIC;
use overlay::lease::parse_key;
use overlay::ownership::{Ownership, PROTOCOL};
use overlay::stale_bridge;
use overlay::subnet_env::SubnetEnv;
use serde::Serialize;
use text::ErrorChain;

use crate::dataplane::nft::Rules;
use crate::dataplane::routes::{Options, Reconciler, Secrets, UdpTunnelSlot, complete};
use crate::membership::{lease_file, view_file};
use crate::node_files::{bridge, cni_conf, subnet_env};
use crate::overlay::previous_backend::backends_file;
use crate::settings::{NodeSettings, Settings, StoreChoice, saved};
use crate::{api, keys, lease, managed_file, run};

/// The result of a cleanup. With `--dry-run` nothing was done yet.
#[derive(Debug, Default, Serialize)]
pub struct Cleaned {
    pub done: Vec<String>,
    /// Objects left in place, with a hint if there is one.
    pub left: Vec<String>,
    pub failed: Vec<String>,
}

/// Removes the agent's kernel objects, files and lease. Pods are not touched. Fails if an agent is running, also with
/// `--dry-run`.
pub async fn cleanup(settings: &Settings) -> Result<Cleaned, run::Error> {
    let lock = match settings.mode.dry_run {
        true => {
            api::Socket::refuse_taken(&settings.api.run_dir)?;
            None
        }
        false => Some(api::Socket::create(&settings.api.run_dir)?),
    };
    let mut cleaner = Cleaner { settings, cleaned: Cleaned::default() };
    cleaner.withdraw_cni_conf();
    let saved_lease = SavedLease::read(settings);
    cleaner.report_damaged_record(&saved_lease);
    if settings.mode.keeps_network {
        cleaner.remove_rules()?;
        cleaner.hand_over_network(&saved_lease)?;
        cleaner.remove_records(&saved_lease);
    } else {
        let is_released = cleaner.release(&saved_lease).await;
        let mut networks = saved_lease.networks();
        networks.extend(cleaner.leave_pools().await);
        cleaner.clean_kernel(&saved_lease, &networks)?;
        cleaner.remove_files(&saved_lease, is_released);
        cleaner.remove_pool_files();
    }
    cleaner.remove(&view_file(settings), managed_file::remove);
    cleaner.remove(&backends_file(settings), managed_file::remove);
    cleaner.report_shared();
    lock.map(api::Socket::remove).transpose()?;
    Ok(cleaner.cleaned)
}

/// The agent's lease as it saved it, which tells which subnets and files are this agent's.
#[derive(Debug)]
struct SavedLease {
    path: PathBuf,
    /// Key and value of the lease in the store.
    text: Option<String>,
    subnets: Vec<IpNet>,
    /// subnet.env; `None` if the file names other subnets.
    env: Option<SubnetEnv>,
}

impl SavedLease {
    fn read(settings: &Settings) -> SavedLease {
        let path = lease_file(settings);
        let text = managed_file::read(&path).ok().flatten();
        let subnets: Vec<IpNet> = text.as_deref().map(subnets_of).unwrap_or_default();
        let env = subnet_env::read(&settings.files.subnet_env).ok().flatten();
        let is_own = |env: &SubnetEnv| env.subnets.iter().all(|one| subnets.contains(&one.trunc()));
        let env = env.filter(is_own);
        SavedLease { path, text, subnets, env }
    }

    /// Key of the lease in the store.
    fn key(&self) -> &str {
        self.text.as_deref().and_then(|text| text.split(' ').next()).unwrap_or_default()
    }

    /// The networks that the agent's routes lead to.
    fn networks(&self) -> Vec<IpNet> {
        let networks = self.env.iter().flat_map(|env| &env.networks);
        networks.chain(&self.subnets).copied().collect()
    }
}

fn subnets_of(text: &str) -> Vec<IpNet> {
    let key = text.split(' ').next().unwrap_or_default();
    parse_key(key)
        .map(|subnets| subnets.iter().map(|one| one.trunc()).collect())
        .unwrap_or_default()
}

/// A cleanup in progress.
struct Cleaner<'a> {
    settings: &'a Settings,
    cleaned: Cleaned,
}

impl Cleaner<'_> {
    /// Removes the CNI configuration. This comes first: new pods would have no network.
    fn withdraw_cni_conf(&mut self) {
        let Some(path) = &self.settings.files.cni_conf else { return };
        let Some(path) = self.find_cni_conf(path) else { return };
        let path = path.as_path();
        match cni_conf::refuse_foreign(path) {
            Err(foreign @ cni_conf::Error::Foreign(_)) => {
                self.cleaned.left.push(foreign.to_string());
            }
            _ => self.remove(path, cni_conf::withdraw),
        }
    }

    /// Finds the CNI configuration. The saved path of an agent in a container is the container's: on this machine the
    /// directory may be missing, or be another one. The file in the usual directory is the same file if it has the
    /// agent's content.
    fn find_cni_conf(&mut self, path: &Path) -> Option<PathBuf> {
        if path.exists() {
            return Some(path.to_owned());
        }
        let usual = Path::new(cni_conf::USUAL_DIR).join(path.file_name()?);
        if cni_conf::belongs_to(&usual, self.settings) {
            return Some(usual);
        }
        if path.parent().is_none_or(Path::exists) {
            return Some(path.to_owned());
        }
        let (path, usual) = (path.display(), usual.display());
        self.cleaned.left.push(format!(
            "CNI configuration {path}: its directory does not exist here, and {usual} does not belong to this agent; if the agent ran in a container, pass the directory on this machine with --cni-conf-dir"
        ));
        None
    }

    /// Reports that the agent's saved options are unusable.
    fn report_damaged_record(&mut self, saved: &SavedLease) {
        let Some(record) = &self.settings.sources.damaged_record else { return };
        let path = saved::path(&self.settings.node.state_dir, &self.settings.node.owner);
        let text = format!(
            "cannot read the agent's options in {} ({}): run podwire cleanup with the options of the agent, such as --etcd-endpoints or --store-file, --cni-conf-dir and --subnet-file",
            path.display(),
            record.problem
        );
        let is_lease_kept =
            saved.text.is_some() && !record.names_store && !self.settings.mode.keeps_network;
        match is_lease_kept {
            true => self.cleaned.failed.push(format!("release lease {}: {text}", saved.key())),
            false => self.cleaned.left.push(text),
        }
    }

    /// Releases the lease, so that other nodes need not wait for its expiry. Returns whether nothing is left to
    /// release.
    async fn release(&mut self, saved: &SavedLease) -> bool {
        let Some(text) = &saved.text else { return true };
        if self.settings.sources.damaged_record.as_ref().is_some_and(|record| !record.names_store) {
            // Reported already. A store other than the agent's may have a lease with the same key.
            return false;
        }
        let key = saved.key();
        match &self.settings.store {
            StoreChoice::Embedded(path) if !path.exists() => {
                let path = path.display();
                self.cleaned.left.push(format!(
                    "lease {key}: the store {path} does not exist; pass the agent's store with --store-file"
                ));
                return false;
            }
            StoreChoice::Kubernetes(kubernetes) => {
                let prefix = kubernetes.annotation_prefix.as_str();
                let node = self.settings.node.name.as_deref().unwrap_or("NODE");
                self.cleaned.left.push(format!(
                    "annotations of the node, which make it part of the network: kubectl annotate node {node} {prefix}kube-subnet-manager-"
                ));
                return true;
            }
            _ => {}
        }
        let released = async {
            let leases = lease::open(self.settings).await?;
            leases.release_saved(text, self.settings.mode.dry_run).await
        };
        match released.await {
            Ok(true) => self.done(format_args!("release lease {key}")),
            Ok(false) => {
                let store = self.settings.store.name();
                self.cleaned.left.push(format!(
                    "lease {key} in the {store} store is not the one that the agent wrote: it has expired, it is a reservation, or the agent used another store"
                ));
            }
            Err(error) => {
                let error: lease::Error = error;
                self.cleaned.failed.push(format!("release lease {key}: {}", ErrorChain(&error)));
                return false;
            }
        }
        true
    }

    /// `networks` tells the agent's blackhole routes from those of others.
    fn clean_kernel(&mut self, saved: &SavedLease, networks: &[IpNet]) -> Result<(), run::Error> {
        let options = Options {
            owner: self.settings.node.owner.clone(),
            earlier_networks: networks.to_vec(),
            secrets: Secrets::default(),
            queues: 1,
            udp: UdpTunnelSlot::default(),
        };
        let mut reconciler = Reconciler::open(options)?;
        if self.settings.mode.dry_run {
            reconciler.preview_removal()?.iter().for_each(|change| self.done(change));
        } else {
            let outcome = reconciler.remove_all();
            outcome.changes.iter().for_each(|change| self.done(change));
            self.cleaned.failed.extend(outcome.failures.iter().map(ToString::to_string));
        }
        self.remove_rules()?;
        self.report_blackholes(&Netlink::open()?, networks)?;
        self.report_bridge(saved)
    }

    fn remove_rules(&mut self) -> Result<(), run::Error> {
        let mut rules = Rules::open(&self.settings.node.owner)?;
        let dry_run = self.settings.mode.dry_run;
        let rules = if dry_run { rules.preview_removal() } else { rules.remove() };
        rules.changes.iter().for_each(|change| self.done(change));
        self.cleaned.failed.extend(rules.problems.iter().map(ToString::to_string));
        Ok(())
    }

    /// Reports blackhole routes outside the saved networks of this agent and of other agents with the same state
    /// directory. They may belong to either, or to an agent with another state directory.
    fn report_blackholes(&mut self, nl: &Netlink, networks: &[IpNet]) -> Result<(), run::Error> {
        let mut known = networks.to_vec();
        for owner in self.other_owners() {
            let mut others = self.settings.clone();
            others.node.owner = owner;
            known.extend(SavedLease::read(&others).subnets);
        }
        let is_known = |dst: &IpNet| known.iter().any(|network| network.contains(dst));
        let filter = RouteFilter { kind: Some(KIND_BLACKHOLE), ..AGENTS_ROUTES };
        for Route { dst, .. } in route::list(nl, filter)?.iter().filter(|one| !is_known(&one.dst)) {
            self.cleaned.left.push(format!(
                "blackhole {dst}, which may belong to another agent: ip route delete blackhole {dst} metric {BLACKHOLE_METRIC}"
            ));
        }
        Ok(())
    }

    /// Reports the pods' bridge. It has no owner tag, so cleanup does not remove it.
    fn report_bridge(&mut self, saved: &SavedLease) -> Result<(), run::Error> {
        if let Some((name, address)) = bridge::within(&saved.networks())? {
            self.cleaned.left.push(format!(
                "{name} with {address}; if this node gets another subnet, {}",
                stale_bridge::hint(name)
            ));
        }
        Ok(())
    }

    /// Removes the owner tag from devices, and our protocol number and next-hop objects from routes. flanneld removes
    /// a route by its gateway, and the kernel does not match a route with a next-hop object that way.
    fn hand_over_network(&mut self, saved: &SavedLease) -> Result<(), run::Error> {
        let nl = Netlink::open()?;
        let steps = hand_over_steps(&nl, &self.settings.node.owner, &saved.networks())?;
        for Step { description, request } in steps {
            let done = if self.settings.mode.dry_run { Ok(()) } else { nl.apply([request]) };
            match done {
                Ok(()) => self.done(description),
                Err(error) => {
                    self.cleaned.failed.push(format!("{description}: {error}"));
                    break;
                }
            }
        }
        self.report_blackholes(&nl, &saved.networks())
    }

    /// Removes the agent's files. If the lease was not released, the files that identify it stay for the next cleanup.
    fn remove_files(&mut self, saved: &SavedLease, is_released: bool) {
        let subnet_env = &self.settings.files.subnet_env;
        if saved.env.is_some() {
            self.remove(subnet_env, subnet_env::remove);
        } else if subnet_env.exists() {
            let why = format!("{} names a subnet of another agent", subnet_env.display());
            self.cleaned.left.push(why);
        }
        if is_released {
            self.remove_records(saved);
        }
        if self.other_owners().is_empty() {
            let key = keys::wireguard_file(&self.settings.node.state_dir);
            self.remove(&key, managed_file::remove);
        }
    }

    /// Removes the saved lease and the saved options.
    fn remove_records(&mut self, saved: &SavedLease) {
        self.remove(&saved.path, managed_file::remove);
        let NodeSettings { state_dir, owner, .. } = &self.settings.node;
        self.remove(&saved::path(state_dir, owner), managed_file::remove);
    }

    /// Reports what other agents may still use.
    fn report_shared(&mut self) {
        for owner in self.other_owners() {
            self.cleaned.left.push(format!(
                "objects of the agent with owner tag {owner}: podwire cleanup --owner {owner}"
            ));
        }
        if let StoreChoice::Embedded(path) = &self.settings.store
            && path.exists()
        {
            let path = path.display();
            self.cleaned.left.push(format!("store {path}, which other agents may share"));
        }
    }

    /// Owner tags of other agents with the same state directory.
    fn other_owners(&self) -> Vec<String> {
        let NodeSettings { state_dir, owner, .. } = &self.settings.node;
        saved::owners(state_dir).into_iter().filter(|other| other != owner).collect()
    }

    fn remove<E: std::error::Error>(
        &mut self,
        path: &Path,
        remove: impl FnOnce(&Path) -> Result<bool, E>,
    ) {
        let removed = if self.settings.mode.dry_run { Ok(path.exists()) } else { remove(path) };
        match removed {
            Ok(true) => self.done(format_args!("remove {}", path.display())),
            Ok(false) => {}
            Err(error) => self.cleaned.failed.push(ErrorChain(&error).to_string()),
        }
    }

    fn done(&mut self, description: impl Display) {
        self.cleaned.done.push(description.to_string());
    }
}

/// Routes of all agents on this node.
const AGENTS_ROUTES: RouteFilter = RouteFilter {
    table: Some(TABLE_MAIN),
    protocol: Some(PROTOCOL),
    family: None,
    kind: None,
    oif: None,
};

/// One change of a handover to flanneld.
struct Step {
    description: String,
    request: Request,
}

/// Returns the changes in an order that keeps traffic going: routes leave their next-hop objects before these are
/// removed, because the kernel removes the routes of a next hop with it.
fn hand_over_steps(nl: &Netlink, owner: &str, networks: &[IpNet]) -> kernel::Result<Vec<Step>> {
    let mut steps = Vec::new();
    let routes = route::list(nl, AGENTS_ROUTES)?;
    // flanneld makes its own, with another metric.
    let is_own_blackhole = |route: &&Route| {
        route.kind == KIND_BLACKHOLE && networks.iter().any(|network| network.contains(&route.dst))
    };
    for blackhole in routes.iter().filter(is_own_blackhole) {
        let description = format!("remove route blackhole {}", blackhole.dst);
        steps.push(Step { description, request: route::remove(blackhole) });
    }
    for link in link::list(nl)?.iter().filter(|link| link.alias.as_deref() == Some(owner)) {
        let description = format!("leave device {} to flanneld", link.name);
        steps.push(Step { description, request: link::set_alias(link.index, "") });
    }
    let ownership = Ownership::for_cleanup(owner, Vec::new());
    let is_ours = |id: &u32| ownership.nexthops.as_ref().is_some_and(|range| range.contains(id));
    let nexthops = match nexthop::list(nl, NexthopFilter::default()) {
        Err(error) if error.is_unsupported() => return Ok(steps),
        listed => listed?,
    };
    let ours: HashMap<u32, &Nexthop> =
        nexthops.iter().map(|one| (one.id, one)).filter(|(id, _)| is_ours(id)).collect();
    for mut route in routes {
        if !route.nexthop.is_some_and(|id| ours.contains_key(&id)) {
            continue;
        }
        complete(&mut route, &ours);
        let description = format!("leave route {} to flanneld", route.dst);
        let flannels = Route { protocol: PROTOCOL_BOOT, nexthop: None, ..route };
        steps.push(Step { description, request: route::replace(&flannels) });
    }
    let mut ids: Vec<u32> = ours.into_keys().collect();
    ids.sort_unstable();
    let remove =
        |id| Step { description: format!("remove nexthop {id}"), request: nexthop::remove(id) };
    steps.extend(ids.into_iter().map(remove));
    Ok(steps)
}
