// SPDX-License-Identifier: Apache-2.0
//! The node's nf_tables rules: masquerading in a table of the agent, and rules in the chain FORWARD
//! of iptables that accept the network's packets. [`Rules::compare`] compares them with the desired
//! rules and repairs them. The dataplane calls it after an event that [`Rules::is_relevant`]
//! selects. The agent's own changes cause such events too; the comparison then finds no difference.

mod change;
mod desired;
mod flannel;
mod forward;
mod plane;
mod table;

use std::fmt;

use kernel::nft::{Batch, Event, Nft, Table, TableFamily};
use kernel::{Family, iptables_legacy, sysctl};

pub use self::change::{Change, TableDamage};
pub use self::desired::RulesConf;
use self::desired::{DesiredRuleset, Direction, desired};
pub use self::plane::{MaintainedRules, NftDataplane, NftPlane, start, start_with};

/// How often a batch is computed again because another program changed nf_tables meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// The rules of one agent. They are in the network namespace of the thread that opened them, and
/// are used on that thread only.
#[derive(Debug)]
pub struct Rules {
    nft: Nft,
    owner: String,
    table: String,
    desired: Option<DesiredRuleset>,
}

/// Result of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// Changes that were made, or that a preview would make.
    pub changes: Vec<Change>,
    pub problems: Vec<Problem>,
}

/// A difference that the agent could not repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// An operation that the kernel refused.
    Kernel(&'static str, kernel::Error),
    /// `iptables-legacy` drops forwarded packets. Contains the commands that accept the network's.
    LegacyDrop(String),
    /// `iptables-legacy` has rules of flannel. Contains the commands that remove them.
    LegacyFlannel(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Kernel(operation, cause) => write!(f, "{operation}: {cause}"),
            Problem::LegacyDrop(commands) => {
                write!(f, "iptables-legacy drops the network's packets; run: {commands}")
            }
            Problem::LegacyFlannel(commands) => {
                write!(f, "flannel's rules are still in iptables-legacy; run: {commands}")
            }
        }
    }
}

/// Changes that are made together, or not at all.
#[derive(Debug, Default)]
struct Plan {
    batch: Batch,
    changes: Vec<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Apply,
    /// Only lists the changes.
    Preview,
}

impl Rules {
    /// Opens the rules of the agent with this owner tag, in the network namespace of the calling
    /// thread. The owner tag distinguishes the agents of several networks on one node.
    pub fn open(owner: &str) -> kernel::Result<Self> {
        let (owner, table) = (owner.to_owned(), table_name(owner));
        Ok(Self { nft: Nft::open()?, owner, table, desired: None })
    }

    /// Sets the desired rules and applies them.
    pub fn set(&mut self, conf: &RulesConf) -> Outcome {
        self.desired = Some(desired(conf));
        self.compare()
    }

    /// Repairs the rules. Does nothing before the first [`Rules::set`].
    pub fn compare(&self) -> Outcome {
        let desired = self.desired.as_ref();
        desired.map(|desired| self.reconcile(desired, Mode::Apply)).unwrap_or_default()
    }

    /// Repairs the rules and removes those of flannel again: a running flanneld writes them at
    /// intervals, and once more when it stops.
    pub fn compare_with_flannel(&self) -> Outcome {
        let mut outcome = self.compare();
        if self.desired.is_some() {
            outcome.changes.extend(self.remove_flannel().changes);
        }
        outcome
    }

    /// Lists the changes that [`Rules::set`] would make.
    pub fn preview(&self, conf: &RulesConf) -> Outcome {
        self.reconcile(&desired(conf), Mode::Preview)
    }

    /// Removes all rules of this agent. The forwarding sysctls stay, because other programs may
    /// need them.
    pub fn remove(&mut self) -> Outcome {
        self.set(&RulesConf::default())
    }

    /// Lists the changes that [`Rules::remove`] would make.
    pub fn preview_removal(&self) -> Outcome {
        self.preview(&RulesConf::default())
    }

    /// Removes the rules of flannel. The caller sets the agent's own rules first.
    pub fn remove_flannel(&self) -> Outcome {
        self.reconcile_flannel(Mode::Apply)
    }

    /// Lists the changes that [`Rules::remove_flannel`] would make.
    pub fn preview_flannel_removal(&self) -> Outcome {
        self.reconcile_flannel(Mode::Preview)
    }

    /// Returns whether an event may concern a desired rule.
    pub fn is_relevant(&self, event: &Event) -> bool {
        let accepts = self.desired.iter().flat_map(|desired| &desired.accepts);
        let mut families = accepts.map(|accept| accept.family().table_family());
        let is_forward_chain = event.table == forward::TABLE
            && event.chain.as_deref() == Some(forward::CHAIN)
            && families.any(|family| family == event.family);
        is_forward_chain || (event.family == TableFamily::Inet && event.table == self.table)
    }

    fn reconcile(&self, desired: &DesiredRuleset, mode: Mode) -> Outcome {
        let mut outcome = Outcome::default();
        let table = Table { family: TableFamily::Inet, name: &self.table };
        let plan = || table::plan(&self.nft, table, desired.masquerade.as_ref());
        outcome.add("masquerade", self.apply(mode, plan));
        for family in [Family::V4, Family::V6] {
            let forward = self.reconcile_forward(family, desired, mode);
            outcome.add("accept forwarded packets", forward);
            if desired.accepts.iter().any(|accept| accept.family() == family) {
                outcome.add("enable forwarding", enable_forwarding(family, mode));
                outcome.problems.extend(legacy_drop(family, desired));
            }
        }
        outcome
    }

    fn reconcile_forward(
        &self,
        family: Family,
        desired: &DesiredRuleset,
        mode: Mode,
    ) -> kernel::Result<Vec<Change>> {
        let plan =
            |form| move || forward::plan(&self.nft, family, &self.owner, &desired.accepts, form);
        match self.apply(mode, plan(forward::Form::Iptables)) {
            // The kernel returns these errors also if it lacks the comment match of iptables.
            Err(error) if error.is_not_found() || error.is_unsupported() => {
                self.apply(mode, plan(forward::Form::Nft))
            }
            applied => applied,
        }
    }

    fn reconcile_flannel(&self, mode: Mode) -> Outcome {
        let mut outcome = Outcome::default();
        let removed = self.apply(mode, || flannel::plan(&self.nft));
        outcome.add("remove flannel's rules", removed);
        outcome.problems.extend(flannel::legacy_rules());
        outcome
    }

    /// Commits a plan. Computes it again if another program has changed nf_tables since it was
    /// read.
    fn apply(
        &self,
        mode: Mode,
        plan: impl Fn() -> kernel::Result<Plan>,
    ) -> kernel::Result<Vec<Change>> {
        for _ in 1..MAX_ATTEMPTS {
            let generation = self.nft.generation()?;
            let Plan { batch, changes } = plan()?;
            if mode == Mode::Preview {
                return Ok(changes);
            }
            match self.nft.commit_at(generation, &batch) {
                Err(error) if error.is_stale_generation() => {}
                result => return result.map(|()| changes),
            }
        }
        // Another program changes the ruleset all the time, so the generation is not checked any more. It rarely changes
        // the agent's own rules.
        let Plan { batch, changes } = plan()?;
        self.nft.commit(&batch).map(|()| changes)
    }
}

impl Outcome {
    fn add(&mut self, operation: &'static str, result: kernel::Result<Vec<Change>>) {
        match result {
            Ok(changes) => self.changes.extend(changes),
            Err(cause) => self.problems.push(Problem::Kernel(operation, cause)),
        }
    }
}

/// Returns the name of the agent's table, which `nft` can parse without quotes.
fn table_name(owner: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let plain: String = owner.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("podwire-agent-{plain}")
}

fn enable_forwarding(family: Family, mode: Mode) -> kernel::Result<Vec<Change>> {
    let path = match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    };
    if sysctl::read(path)? == "1" {
        return Ok(Vec::new());
    }
    let name = path.replace('/', ".");
    if mode == Mode::Apply {
        if !sysctl::is_writable(path)? {
            let hint = format!("/proc/sys is read-only here; set {name} to 1 on the node");
            let (op, object, errno) = ("set sysctl", name, kernel::Errno::ROFS);
            return Err(kernel::Error { op, object, errno, ext: Some(hint) });
        }
        sysctl::write(path, "1")?;
    }
    Ok(vec![Change::EnableForwarding { sysctl: name }])
}

/// Returns a problem if `iptables-legacy` drops forwarded packets: an accept rule in nf_tables does
/// not override that. Accept rules of flannel in `iptables-legacy` are sufficient, and so are those
/// of the commands in the problem.
fn legacy_drop(family: Family, desired: &DesiredRuleset) -> Option<Problem> {
    const COMMENT: &str = "podwire agent";
    let mentions = |text| iptables_legacy::mentions(family, forward::TABLE, text).unwrap_or(false);
    if !iptables_legacy::drops_forwarded(family).unwrap_or(false)
        || mentions(COMMENT)
        || mentions("FLANNEL-FWD")
    {
        return None;
    }
    let program = if family == Family::V4 { "iptables-legacy" } else { "ip6tables-legacy" };
    let accepts = desired.accepts.iter().filter(|accept| accept.family() == family);
    let commands = accepts.map(|accept| {
        let flag = if accept.direction == Direction::From { "-s" } else { "-d" };
        let network = accept.network;
        format!(
            "{program} -A FORWARD {flag} {network} -m comment --comment \"{COMMENT}\" -j ACCEPT"
        )
    });
    Some(Problem::LegacyDrop(commands.collect::<Vec<_>>().join("; ")))
}
