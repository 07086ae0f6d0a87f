// SPDX-License-Identifier: Apache-2.0
//! A session: one configuration of the network, one underlay, one lease. When any of these is
//! another, the session ends and the next one begins; the kernel is changed by what differs, so pods
//! notice nothing of it.

mod backends;
mod begin;
mod configuration;
mod extension;
mod follow;
mod memory;
mod paths;
mod post;
mod prepare;
mod preview;
mod remember;
mod rules;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use overlay::netconf::NetConf;
use overlay::plan;
use store::Revision;
use text::Secret;

pub(crate) use self::backends::{Backends, backends_file};
pub(crate) use self::memory::{Memory, view_file};
pub(crate) use self::prepare::underlay_of;
pub(crate) use self::remember::lease_file;
use crate::lease::{HeldLease, PeerWatch};
use crate::status::ConditionKind;

/// Why a session has ended, or did not begin.
#[derive(Debug)]
pub struct End {
    /// Whose business it is.
    pub part: ConditionKind,
    pub why: String,
    pub next: Next,
}

/// When the next session is to be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At once.
    Now,
    /// When the store has something newer than this, the interfaces change, or after a while.
    News(Option<Revision>),
    /// When the store answers, or the interfaces change.
    Away,
}

impl End {
    pub fn now(part: ConditionKind, why: impl Into<String>) -> Self {
        Self { part, why: why.into(), next: Next::Now }
    }

    /// What is wrong with a lease or a configuration may be put right in the store.
    fn until_news(self, seen: Revision) -> Self {
        match self.part {
            ConditionKind::Lease | ConditionKind::Config => {
                Self { next: Next::News(Some(seen)), ..self }
            }
            _ => self,
        }
    }

    pub fn wait(part: ConditionKind, why: impl Into<String>, seen: Option<Revision>) -> Self {
        Self { part, why: why.into(), next: Next::News(seen) }
    }
}

/// What holds for as long as a session does.
#[derive(Debug)]
pub struct Session {
    conf: NetConf,
    /// As it was written. It may hold a pre-shared key.
    conf_text: Secret,
    /// What is written there now; none where it was deleted.
    stored: Option<Secret>,
    /// Why that is not in force, if it is not.
    unfit: Option<String>,
    /// What else is to be said of the configuration.
    remarks: Vec<String>,
    underlay: plan::Underlay,
    held: HeldLease,
    follow: PeerWatch,
    /// Peers that cannot be understood, with the reason.
    bad: BTreeMap<String, String>,
    renew_at: Option<Instant>,
    /// When to look whether peers still use the previous backend; none without one.
    age_at: Option<Instant>,
    /// When to set the node's condition in Kubernetes again, after that failed.
    tell_at: Option<Instant>,
    /// The store did not answer: all this is as it was last seen, and holds until it does.
    is_from_memory: bool,
    pod_mtu: Option<u32>,
    /// Kernel and rules are what they should be: plugins may know.
    has_begun: bool,
}

/// After a renewal failed.
const RENEW_AGAIN: Duration = Duration::from_secs(60);
