// SPDX-License-Identifier: Apache-2.0
//! The node's rules in nf_tables: masquerading in a table of our own, and what lets the network's packets
//! through the chain FORWARD of iptables. They are compared with what is wanted whenever [`Rules::compare`]
//! is called, and mended where somebody has changed them; [`kernel::nft::Events`] and [`Rules::is_ours`]
//! tell when that is due. Our own changes are told as well: comparing once more then finds nothing to do.

mod desired;
mod flannel;
mod forward;
mod plane;
mod table;

use std::fmt;

use kernel::nft::{Batch, Event, Nft, Table, TableFamily};
use kernel::{Family, iptables_legacy, sysctl};

pub use self::desired::{
    Direction, OwnTable, Pass, RulesConf, Ruleset, WantedRule, WantedSet, wanted,
};
pub(crate) use self::flannel::REMOVAL;
pub use self::plane::{MaintainedRules, NftDataplane, NftPlane, start, start_with};

/// How often a change is planned anew when others change nf_tables meanwhile.
const TRIES: usize = 10;

/// The rules of one agent. All is done in the namespace of the thread that opened them, which must be the
/// one that calls.
#[derive(Debug)]
pub struct Rules {
    nft: Nft,
    mark: String,
    table: String,
    wanted: Option<Ruleset>,
}

/// What became of a comparison: what was done, one line each, and what could not be.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Outcome {
    /// What was changed, or would be.
    pub changes: Vec<String>,
    /// What stays wrong.
    pub problems: Vec<Problem>,
}

/// Something that stays wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The kernel refused something.
    Kernel(&'static str, kernel::Error),
    /// `iptables-legacy` drops what is forwarded: run this.
    OldIptables(String),
    /// `iptables-legacy` has rules of flannel: run this.
    OldFlannel(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Kernel(doing, cause) => write!(f, "{doing}: {cause}"),
            Problem::OldIptables(run) => {
                write!(f, "iptables-legacy drops the network's packets; let them pass: {run}")
            }
            Problem::OldFlannel(run) => {
                write!(f, "iptables-legacy has rules of flannel; remove them: {run}")
            }
        }
    }
}

/// Changes that go together.
#[derive(Debug, Default)]
struct Plan {
    batch: Batch,
    changes: Vec<String>,
}

/// Whether changes are made or only told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Apply,
    Tell,
}

impl Rules {
    /// The rules of the agent with this mark, in the calling thread's namespace. The mark tells apart agents
    /// of several networks on one node.
    pub fn open(mark: &str) -> kernel::Result<Self> {
        let (mark, table) = (mark.to_owned(), table_name(mark));
        Ok(Self { nft: Nft::open()?, mark, table, wanted: None })
    }

    /// Makes the rules what they should be from now on.
    pub fn set(&mut self, conf: &RulesConf) -> Outcome {
        self.wanted = Some(wanted(conf));
        self.compare()
    }

    /// Mends what others have changed. Before [`Rules::set`] nothing is wanted to be so or otherwise.
    pub fn compare(&self) -> Outcome {
        self.wanted.as_ref().map(|wanted| self.settle(wanted, Mode::Apply)).unwrap_or_default()
    }

    /// [`Rules::compare`], and flanneld's rules go once more: it writes them again while it runs, and may do so
    /// as it ends.
    pub fn keep(&self) -> Outcome {
        let mut outcome = self.compare();
        if self.wanted.is_some() {
            outcome.changes.extend(self.take_over().changes);
        }
        outcome
    }

    /// What [`Rules::set`] would do.
    pub fn preview(&self, conf: &RulesConf) -> Outcome {
        self.settle(&wanted(conf), Mode::Tell)
    }

    /// Removes all rules of this agent's. The switches for forwarding stay: others may count on them.
    pub fn remove(&mut self) -> Outcome {
        self.set(&RulesConf::default())
    }

    /// What [`Rules::remove`] would do.
    pub fn preview_removal(&self) -> Outcome {
        self.preview(&RulesConf::default())
    }

    /// Removes what flanneld has left. Call it when our own rules are there.
    pub fn take_over(&self) -> Outcome {
        self.flannels(Mode::Apply)
    }

    /// What [`Rules::take_over`] would do.
    pub fn preview_take_over(&self) -> Outcome {
        self.flannels(Mode::Tell)
    }

    /// Whether a change may be one of what we keep.
    pub fn is_ours(&self, event: &Event) -> bool {
        let passes = self.wanted.iter().flat_map(|wanted| &wanted.passes);
        let mut families = passes.map(|pass| Family::of(pass.network.addr()).table_family());
        let is_chain = event.table == forward::TABLE
            && event.chain.as_deref() == Some(forward::CHAIN)
            && families.any(|family| family == event.family);
        is_chain || (event.family == TableFamily::Inet && event.table == self.table)
    }

    fn settle(&self, wanted: &Ruleset, mode: Mode) -> Outcome {
        let mut outcome = Outcome::default();
        let own = Table { family: TableFamily::Inet, name: &self.table };
        let table = || table::plan(&self.nft, own, wanted.masquerade.as_ref());
        outcome.add("masquerade", self.carry_out(mode, table));
        for family in [Family::V4, Family::V6] {
            outcome.add("let packets pass FORWARD", self.settle_forward(family, wanted, mode));
            if wanted.passes.iter().any(|pass| Family::of(pass.network.addr()) == family) {
                outcome.add("enable forwarding", enable_forwarding(family, mode));
                outcome.problems.extend(old_drop(family, wanted));
            }
        }
        outcome
    }

    fn settle_forward(
        &self,
        family: Family,
        wanted: &Ruleset,
        mode: Mode,
    ) -> kernel::Result<Vec<String>> {
        let plan =
            |form| move || forward::plan(&self.nft, family, &self.mark, &wanted.passes, form);
        match self.carry_out(mode, plan(forward::Form::Iptables)) {
            // The kernel's word also for a match that it lacks.
            Err(error) if error.is_not_found() || error.is_unsupported() => {
                self.carry_out(mode, plan(forward::Form::Nft))
            }
            done => done,
        }
    }

    fn flannels(&self, mode: Mode) -> Outcome {
        let mut outcome = Outcome::default();
        let removed = self.carry_out(mode, || flannel::plan(&self.nft));
        outcome.add("remove flannel's rules", removed);
        outcome.problems.extend(flannel::out_of_reach());
        outcome
    }

    /// Carries a plan out. It was made from what was read: where anybody has changed anything since, it is
    /// made anew.
    fn carry_out(
        &self,
        mode: Mode,
        plan: impl Fn() -> kernel::Result<Plan>,
    ) -> kernel::Result<Vec<String>> {
        for _ in 1..TRIES {
            let generation = self.nft.generation()?;
            let Plan { batch, changes } = plan()?;
            if mode == Mode::Tell {
                return Ok(changes);
            }
            match self.nft.commit_at(generation, &batch) {
                Err(error) if error.is_stale_generation() => {}
                done => return done.map(|()| changes),
            }
        }
        // Others change their tables all the time; ours and theirs seldom meet.
        let Plan { batch, changes } = plan()?;
        self.nft.commit(&batch).map(|()| changes)
    }
}

impl Outcome {
    fn add(&mut self, doing: &'static str, result: kernel::Result<Vec<String>>) {
        match result {
            Ok(changes) => self.changes.extend(changes),
            Err(cause) => self.problems.push(Problem::Kernel(doing, cause)),
        }
    }
}

/// A name that `nft` reads without quotes.
fn table_name(mark: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let plain: String = mark.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    format!("podwire-agent-{plain}")
}

fn enable_forwarding(family: Family, mode: Mode) -> kernel::Result<Vec<String>> {
    let switch = match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    };
    if sysctl::read(switch)? == "1" {
        return Ok(Vec::new());
    }
    let name = switch.replace('/', ".");
    if mode == Mode::Apply {
        if !sysctl::is_writable(switch)? {
            let hint = format!("/proc/sys is read-only here; set {name} to 1 on the node");
            let (op, object, errno) = ("set sysctl", name, kernel::Errno::ROFS);
            return Err(kernel::Error { op, object, errno, ext: Some(hint) });
        }
        sysctl::write(switch, "1")?;
    }
    Ok(vec![format!("set {name} to 1")])
}

/// The kernel's older filter, which nf_tables cannot overrule. Rules of flannel's in it let packets pass,
/// and so do those that we advise.
fn old_drop(family: Family, wanted: &Ruleset) -> Option<Problem> {
    const ADVISED: &str = "podwire agent";
    let is_told = |text| iptables_legacy::mentions(family, forward::TABLE, text).unwrap_or(false);
    if !iptables_legacy::drops_forwarded(family).unwrap_or(false)
        || is_told(ADVISED)
        || is_told("FLANNEL-FWD")
    {
        return None;
    }
    let program = if family == Family::V4 { "iptables-legacy" } else { "ip6tables-legacy" };
    let passes = wanted.passes.iter().filter(|pass| Family::of(pass.network.addr()) == family);
    let commands = passes.map(|pass| {
        let flag = if pass.direction == Direction::From { "-s" } else { "-d" };
        let network = pass.network;
        format!(
            "{program} -A FORWARD {flag} {network} -m comment --comment \"{ADVISED}\" -j ACCEPT"
        )
    });
    Some(Problem::OldIptables(commands.collect::<Vec<_>>().join("; ")))
}
