// SPDX-License-Identifier: Apache-2.0
//! One attachment and its leases, from ADD to DEL.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use cni::CniResult;
use ipnet::IpNet;

use super::super::conf::LeaseOptions;
use super::super::exchange::DhcpClient;
use super::super::lease::{self, Lease};
use super::super::protocol::AttachmentKey;
use super::super::state_machine::{RetryTimes, StateMachine};
use super::super::{v4, v6};
use super::family_lease::{AnyFamilyLease, AttachmentContext, FamilyLease, Outcome};
use super::flags::Flags;
use super::interface::ContainerInterface;
use super::store::{Clock, Record, SavedLease};
use super::transport::{Transport, Transport4, Transport6};

/// An attachment with its leases.
pub(super) struct LeasedAttachment {
    pub key: AttachmentKey,
    pub interface: ContainerInterface,
    options: LeaseOptions,
    name: String,
    ipv4: Option<Box<dyn AnyFamilyLease>>,
    ipv6: Option<Box<dyn AnyFamilyLease>>,
    is_added: bool,
    is_ending: bool,
}

impl LeasedAttachment {
    /// Starts to acquire leases, preferably of these addresses.
    pub(super) fn new(
        key: AttachmentKey,
        interface: ContainerInterface,
        options: LeaseOptions,
        hints: &[IpNet],
        flags: &Flags,
    ) -> (LeasedAttachment, Outcome) {
        let record = Record { key, interface, options, ipv4: None, ipv6: None };
        LeasedAttachment::start(record, flags, &StartMode::Acquire(hints))
    }

    /// Resumes the leases of an earlier daemon.
    pub(super) fn resume(record: Record, flags: &Flags) -> (LeasedAttachment, Outcome) {
        LeasedAttachment::start(record, flags, &StartMode::Resume)
    }

    /// Loads the leases of an earlier daemon in order to release them.
    pub(super) fn for_release(record: Record, flags: &Flags) -> LeasedAttachment {
        LeasedAttachment::start(record, flags, &StartMode::ReleaseOnly).0
    }

    fn start(record: Record, flags: &Flags, mode: &StartMode) -> (LeasedAttachment, Outcome) {
        let Record { key, interface, options, ipv4: saved4, ipv6: saved6 } = record;
        let name = key.name();
        let is_added = !matches!(mode, StartMode::Acquire(_));
        let context = AttachmentContext {
            name: &name,
            interface: &interface,
            priority: options.priority,
            is_added,
        };
        let mut outcome = Outcome::default();
        let ipv4 = options.ipv4.then(|| {
            let client = client4(&name, &interface, &options, flags.broadcast);
            let (family, done) = begin::<_, Transport4>(client, saved4, flags, mode, context);
            outcome = outcome.and(done);
            family
        });
        let ipv6 = options.ipv6.then(|| {
            let (duid, association) = v6::duid(&name);
            let client = v6::Client { duid, association };
            let (family, done) = begin::<_, Transport6>(client, saved6, flags, mode, context);
            outcome = outcome.and(done);
            family
        });
        (
            LeasedAttachment {
                key,
                interface,
                options,
                name,
                ipv4,
                ipv6,
                is_added,
                is_ending: false,
            },
            outcome,
        )
    }

    /// Returns the state for the next daemon.
    pub(super) fn record(&self) -> Record {
        let clock = Clock::read();
        let saved = |family: &Option<Box<dyn AnyFamilyLease>>| {
            family
                .as_ref()
                .and_then(|family| family.lease())
                .map(|lease| SavedLease::new(lease, clock))
        };
        let (ipv4, ipv6) = (saved(&self.ipv4), saved(&self.ipv6));
        let (key, interface, options) =
            (self.key.clone(), self.interface.clone(), self.options.clone());
        Record { key, interface, options, ipv4, ipv6 }
    }

    /// Returns the name for logs.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the ADD is complete.
    pub(super) fn is_added(&self) -> bool {
        self.is_added
    }

    /// Returns whether the leases are being released.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Returns whether all leases are released.
    pub(super) fn has_ended(&self) -> bool {
        self.is_ending && self.families().all(|family| family.is_idle())
    }

    /// Returns the result of the ADD as soon as there is a lease of each family.
    pub(super) fn result(&self) -> Option<CniResult> {
        let leases: Option<Vec<&Lease>> = self.families().map(|family| family.lease()).collect();
        let terms = leases?.into_iter().map(|lease| &lease.terms);
        Some(lease::result(terms, self.options.priority))
    }

    /// Returns which leases are missing.
    pub(super) fn missing_leases(&self) -> String {
        let missing = self.families().filter(|family| family.lease().is_none());
        let names: Vec<&str> = missing.map(|family| family.protocol()).collect();
        format!("no {} server gave {:?} an address", names.join(" and no "), self.key.ifname)
    }

    /// Returns whether an IPv6 lease is wanted.
    pub(super) fn has_ipv6(&self) -> bool {
        self.ipv6.is_some()
    }

    /// Records that the plugin has the result and applies it.
    pub(super) fn mark_added(&mut self) {
        self.is_added = true;
        self.families_mut().for_each(|family| family.mark_added());
    }

    /// Returns the next deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.families().filter_map(|family| family.deadline()).min()
    }

    /// Returns the descriptors to wait for.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.families().flat_map(|family| family.fds()).collect()
    }

    /// Handles deadlines.
    pub(super) fn wake(&mut self, now: Instant) -> Outcome {
        self.each(|family, context| {
            let is_due = family.deadline().is_some_and(|deadline| now >= deadline);
            if is_due { family.wake(context, now) } else { Outcome::default() }
        })
    }

    /// Handles received messages.
    pub(super) fn receive(&mut self, now: Instant) -> Outcome {
        self.each(|family, context| family.receive(context, now))
    }

    /// Releases the leases.
    pub(super) fn end(&mut self, now: Instant) -> Outcome {
        self.is_ending = true;
        self.each(|family, context| family.release(context, now))
    }

    fn families(&self) -> impl Iterator<Item = &dyn AnyFamilyLease> {
        [&self.ipv4, &self.ipv6].into_iter().flatten().map(|family| &**family)
    }

    fn families_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn AnyFamilyLease>> {
        [&mut self.ipv4, &mut self.ipv6].into_iter().flatten()
    }

    fn each(
        &mut self,
        step: impl Fn(&mut dyn AnyFamilyLease, AttachmentContext) -> Outcome,
    ) -> Outcome {
        let LeasedAttachment { name, interface, options, ipv4, ipv6, is_added, .. } = self;
        let (priority, is_added) = (options.priority, *is_added);
        let context = AttachmentContext { name, interface, priority, is_added };
        let families = [ipv4, ipv6].into_iter().flatten();
        families.map(|family| step(&mut **family, context)).fold(Outcome::default(), Outcome::and)
    }
}

fn client4(
    name: &str,
    interface: &ContainerInterface,
    options: &LeaseOptions,
    broadcast: bool,
) -> v4::Client {
    v4::Client {
        mac: interface.mac(),
        id: v4::client_id(name),
        provided: options.provided.clone(),
        requested: options.requested.clone(),
        broadcast,
    }
}

/// How the leases of an attachment start.
enum StartMode<'a> {
    /// Acquire new leases, preferably of these addresses.
    Acquire(&'a [IpNet]),
    /// Resume the leases of an earlier daemon.
    Resume,
    /// Load the leases of an earlier daemon in order to release them.
    ReleaseOnly,
}

fn begin<D: DhcpClient + 'static, W: Transport + Default + 'static>(
    client: D,
    saved: Option<SavedLease>,
    flags: &Flags,
    mode: &StartMode,
    context: AttachmentContext,
) -> (Box<dyn AnyFamilyLease>, Outcome) {
    let clock = Clock::read();
    let times = RetryTimes { timeout: flags.timeout, resend_max: flags.resend_max };
    let applied = saved.as_ref().map(|saved| saved.terms().clone());
    let lease = saved.and_then(|saved| saved.lease(clock));
    let started = match (mode, lease) {
        (StartMode::ReleaseOnly, lease) => (StateMachine::idle(client, times, lease), Vec::new()),
        (StartMode::Resume, Some(lease)) => StateMachine::resume(client, times, lease, clock.now),
        (StartMode::Resume, None) => StateMachine::start(client, times, None, clock.now),
        (StartMode::Acquire(hints), _) => {
            let hint = hints.iter().map(IpNet::addr).find(|hint| D::is_own_family(*hint));
            StateMachine::start(client, times, hint, clock.now)
        }
    };
    let (family, outcome) = FamilyLease::<D, W>::new(started, applied, context);
    (Box::new(family), outcome)
}
