// SPDX-License-Identifier: Apache-2.0
//! The check that the command `ipam check` asks for: looks at the store and at the host, repairs, and looks again.
//! [`ipam::check`] compares.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_client::pools::{CheckReport, FindingView};
use ipam::Timestamp;
use ipam::check::{self, Finding, Host, InterfaceTag, Network, PodInterface, Repair};
use ipam::collect::Collected;
use ipam::node::{AssignRequest, Attachment, JournalEntry, Stored};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::core::Core;
use super::journal::Journal;
use super::objects::{HandleListing, ObjectStore};
use super::observe::{self, Namespace, Observed};

/// Delay before the next look. Pods that start or end are finished by then.
const LOOK_DELAY: Duration = Duration::from_secs(1);

/// Looks of one check at most. Each repair may uncover the next problem: a block without owner, then its affinity.
const MAX_LOOKS: u32 = 8;

/// Time that an assignment of a repair may wait for the store.
const DEADLINE: Duration = Duration::from_secs(10);

/// A check in progress.
#[derive(Debug)]
pub(super) struct Check {
    fix: bool,
    reply: oneshot::Sender<Result<CheckReport, String>>,
    looks: u32,
    /// Findings of the last look.
    last: Vec<Finding>,
    attempted: Vec<Finding>,
}

/// The store and the host at one time.
#[derive(Debug)]
pub(super) struct Look {
    objects: Vec<Stored>,
    handles: Option<HandleListing>,
    observed: Observed,
    pods: BTreeMap<IpAddr, PodInterface>,
    saved: BTreeSet<IpAddr>,
}

/// What follows from a look.
#[derive(Debug)]
pub(super) enum Next {
    /// Carry out these repairs, then look again.
    Look(Check, Vec<Repair>),
    Done,
}

/// Looks at the store and the host.
pub(super) async fn look(
    objects: Arc<dyn ObjectStore>,
    namespaces: Vec<Namespace>,
    journal: Journal,
    is_first: bool,
) -> Result<Look, String> {
    if !is_first {
        sleep(LOOK_DELAY).await;
    }
    // The handles first: an allocation is written before its handle, and released after it.
    let handles = objects.list_handles().await?;
    let listed = objects.list().await?;
    let host = move || -> Result<_, String> {
        let failed = |what: &str, why: &dyn std::fmt::Display| format!("{what}: {why}");
        let saved = journal.addresses().map_err(|why| failed("read the journal", &why))?;
        let observed = observe::observe(namespaces).map_err(|why| failed("read routes", &why))?;
        let pods = observe::pods().map_err(|why| failed("read interfaces", &why))?;
        Ok((observed, pods, saved))
    };
    let host = spawn_blocking(host).await.map_err(|error| error.to_string())?;
    let (observed, pods, saved) = host?;
    Ok(Look { objects: listed.objects, handles, observed, pods, saved })
}

impl Check {
    pub(super) fn new(fix: bool, reply: oneshot::Sender<Result<CheckReport, String>>) -> Self {
        Self { fix, reply, looks: 0, last: Vec::new(), attempted: Vec::new() }
    }

    pub(super) fn is_first_look(&self) -> bool {
        self.looks == 0
    }

    /// Takes a look, and sends the report if it was the last one.
    pub(super) fn next(mut self, core: &Core, look: Result<Look, String>) -> Next {
        let look = match look {
            Ok(look) => look,
            Err(error) => {
                // The requester may have given up, here and below.
                let _ = self.reply.send(Err(error));
                return Next::Done;
            }
        };
        let network = network(core, &look);
        let found = findings(core, &network, &look);
        let sure = check::confirmed(&self.last, found.clone());
        self.looks += 1;
        let is_last = found.is_empty() || self.looks == MAX_LOOKS;
        if !is_last && self.looks == 1 {
            self.last = found;
            return Next::Look(self, Vec::new());
        }
        let is_automatic = |finding: &&Finding| self.fix && finding.repair.is_automatic();
        let todo: Vec<Finding> = sure.iter().filter(is_automatic).cloned().collect();
        // Something new may be confirmed by the next look.
        let is_settled = todo.is_empty() && !found.iter().any(|one| is_automatic(&one));
        if is_last || is_settled {
            let report = self.report(core, &network, &sure);
            let _ = self.reply.send(Ok(report));
            return Next::Done;
        }
        let repairs = todo.iter().map(|finding| finding.repair.clone()).collect();
        let is_known =
            |one: &Finding, two: &Finding| (one.kind, &one.object) == (two.kind, &two.object);
        let new =
            todo.into_iter().filter(|one| !self.attempted.iter().any(|two| is_known(one, two)));
        let new: Vec<_> = new.collect();
        self.attempted.extend(new);
        self.last = found;
        Next::Look(self, repairs)
    }

    fn report(&self, core: &Core, network: &Network<'_>, left: &[Finding]) -> CheckReport {
        let is_left = |one: &&Finding| {
            left.iter().any(|other| (one.kind, &one.object) == (other.kind, &other.object))
        };
        let repaired = self.attempted.iter().filter(|one| !is_left(one));
        let mut findings: Vec<(&Finding, bool)> = repaired.map(|one| (one, true)).collect();
        findings.extend(left.iter().map(|one| (one, false)));
        findings.sort();
        let used = network.blocks.values().map(|(_, block)| block.counts().used);
        CheckReport {
            node: core.node().name().to_owned(),
            nodes: network.nodes.len() as u64,
            blocks: network.blocks.len() as u64,
            addresses: used.sum::<usize>() as u64,
            assigned: core.node().assignments().count() as u64,
            handles: network.handles.as_ref().map(|handles| handles.len() as u64),
            findings: findings.into_iter().map(|(finding, done)| view(finding, done)).collect(),
        }
    }
}

fn view(finding: &Finding, repaired: bool) -> FindingView {
    FindingView {
        problem: finding.kind.as_str().to_owned(),
        object: finding.object.clone(),
        reason: finding.reason.clone(),
        repair: finding.repair.to_string(),
        automatic: finding.repair.is_automatic(),
        repaired,
    }
}

fn network<'a>(core: &'a Core, look: &'a Look) -> Network<'a> {
    let node = core.node();
    let handles = look.handles.as_ref().map(|listing| listing.handles.as_slice());
    Network::new(node.name(), &node.settings().pools, &look.objects, handles)
}

fn findings(core: &Core, network: &Network<'_>, look: &Look) -> Vec<Finding> {
    let assigned: BTreeMap<IpAddr, &JournalEntry> =
        core.node().assignments().map(|entry| (entry.address, entry)).collect();
    let host = Host {
        assigned: &assigned,
        saved: &look.saved,
        running: &look.observed.running,
        addresses: &look.observed.addresses,
        pods: &look.pods,
    };
    check::check(network, &host)
}

/// Work of the state machine and the journal for repairs.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub collect: Vec<Collected>,
    /// Entries to write into the journal.
    pub save: Vec<JournalEntry>,
    pub assign: Vec<AssignRequest>,
}

/// Returns what to do for repairs.
pub(super) fn orders(core: &Core, repairs: Vec<Repair>, now: Timestamp) -> Orders {
    let mut orders = Orders::default();
    let mut adopted: BTreeMap<InterfaceTag, Vec<IpAddr>> = BTreeMap::new();
    for repair in repairs {
        match repair {
            Repair::Collect(collected) => orders.collect.push(collected),
            Repair::Save(address) => {
                let mut assigned = core.node().assignments();
                orders.save.extend(assigned.find(|entry| entry.address == address).cloned());
            }
            Repair::Adopt(tag, address) => adopted.entry(tag).or_default().push(address),
            Repair::Agent(_) | Repair::Manual(_) => {}
        }
    }
    orders.assign =
        adopted.into_iter().map(|(tag, addresses)| adopt(tag, addresses, now)).collect();
    orders
}

/// Returns the request with which a running container gets its addresses again.
fn adopt(tag: InterfaceTag, addresses: Vec<IpAddr>, now: Timestamp) -> AssignRequest {
    AssignRequest {
        attachment: Attachment {
            handle: tag.handle(),
            network: tag.network,
            container_id: tag.container_id,
            interface: tag.interface,
            // Unknown. The route shows that the container runs.
            netns: None,
            netns_inode: None,
            pod: None,
            tunnel: None,
        },
        ipv4: false,
        ipv6: false,
        ipv4_pools: Vec::new(),
        ipv6_pools: Vec::new(),
        addresses,
        namespace_labels: BTreeMap::new(),
        deadline: now + DEADLINE,
    }
}
