// SPDX-License-Identifier: Apache-2.0
//! The event loop of the daemon: waits for signals, connections, DHCP messages and deadlines, and dispatches them.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use cni::{Attachment, Code, Error, Version};
use ipnet::IpNet;
use kernel::daemon::TerminationSignals;
use kernel::poll::wait_readable;

use super::super::conf::LeaseOptions;
use super::super::protocol::{
    AddRequest, AttachmentKey, CheckRequest, DaemonReply, DaemonRequest, Location,
};
use super::attachment::LeasedAttachment;
use super::connections::{ConnectionId, Connections, Input, ListenSocket};
use super::family_lease::Outcome;
use super::flags::Flags;
use super::interface::ContainerInterface;
use super::log;
use super::store::Store;
use crate::error::Context;

/// Time limit for a CHECK that adopts a lease.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(4);

/// State of the daemon.
pub(super) struct Daemon<'a> {
    flags: &'a Flags,
    store: Store,
    socket: &'a ListenSocket,
    signals: &'a TerminationSignals,
    connections: Connections,
    entries: BTreeMap<AttachmentKey, Entry>,
}

/// An attachment and the connections that wait for it.
struct Entry {
    attachment: LeasedAttachment,
    /// Connection that waits for leases.
    pending_add: Option<PendingAdd>,
    /// Connections that wait for the release, with their replies.
    ending: Vec<(ConnectionId, DaemonReply)>,
}

/// A connection that waits for leases.
#[derive(Debug, Clone)]
struct PendingAdd {
    connection: ConnectionId,
    since: Instant,
    timeout: Duration,
    /// Addresses that the leases must have, for a CHECK.
    expected: Option<Vec<IpNet>>,
}

impl PendingAdd {
    fn deadline(&self) -> Instant {
        self.since + self.timeout
    }
}

/// The origin of an event.
#[derive(Debug, Clone)]
enum Source {
    Signals,
    Listener,
    Connection(ConnectionId),
    Attachment(AttachmentKey),
}

impl<'a> Daemon<'a> {
    /// Creates a daemon without attachments.
    pub(super) fn new(
        flags: &'a Flags,
        store: Store,
        socket: &'a ListenSocket,
        signals: &'a TerminationSignals,
    ) -> Daemon<'a> {
        let (connections, entries) = (Connections::default(), BTreeMap::new());
        Daemon { flags, store, socket, signals, connections, entries }
    }

    /// Runs until a signal arrives. The leases stay for the next daemon.
    pub(super) fn run(mut self) -> Result<(), Error> {
        self.resume();
        log::line(&format!(
            "dhcp daemon started, leases resumed for {} attachments",
            self.entries.len()
        ));
        loop {
            for source in self.wait()? {
                match source {
                    Source::Signals => return Ok(()),
                    Source::Listener => self.accept(),
                    Source::Connection(id) => self.read_connection(id),
                    Source::Attachment(key) => self.step(&key, LeasedAttachment::receive),
                }
            }
            self.handle_deadlines();
        }
    }

    /// Resumes the leases of earlier daemons. Removes those whose container is gone.
    fn resume(&mut self) {
        for record in self.store.load() {
            let key = record.key.clone();
            if record.interface.enter().is_none() {
                log::attachment(&key.name(), "container is gone, lease dropped");
                self.store.remove(&key);
                continue;
            }
            let (attachment, outcome) = LeasedAttachment::resume(record, self.flags);
            self.entries
                .insert(key.clone(), Entry { attachment, pending_add: None, ending: Vec::new() });
            self.apply_outcome(&key, outcome);
        }
    }

    /// Waits for the next events or deadline.
    fn wait(&self) -> Result<Vec<Source>, Error> {
        let mut watched: Vec<(Source, BorrowedFd)> =
            vec![(Source::Signals, self.signals.as_fd()), (Source::Listener, self.socket.as_fd())];
        watched.extend(self.connections.fds().map(|(id, fd)| (Source::Connection(id), fd)));
        for (key, entry) in &self.entries {
            let fds = entry.attachment.fds().into_iter();
            watched.extend(fds.map(|fd| (Source::Attachment(key.clone()), fd)));
        }
        let deadlines = self.entries.values().flat_map(|entry| {
            let add_deadline = entry.pending_add.as_ref().map(PendingAdd::deadline);
            [entry.attachment.deadline(), add_deadline].into_iter().flatten()
        });
        let deadline = deadlines.chain(self.connections.deadline()).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let fds: Vec<BorrowedFd> = watched.iter().map(|(_, fd)| *fd).collect();
        let ready = wait_readable(&fds, left).context("wait")?;
        let sources = watched.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready);
        Ok(sources.map(|((source, _), _)| source).collect())
    }

    fn accept(&mut self) {
        while let Some(stream) = self.socket.accept() {
            self.connections.accept(stream, Instant::now());
        }
    }

    fn handle_deadlines(&mut self) {
        let now = Instant::now();
        self.connections.drop_idle(now);
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        let due = |entry: &Entry| {
            is_due(entry.attachment.deadline())
                || is_due(entry.pending_add.as_ref().map(PendingAdd::deadline))
        };
        let keys: Vec<AttachmentKey> = self
            .entries
            .iter()
            .filter(|(_, entry)| due(entry))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.step(&key, LeasedAttachment::wake);
            self.time_out_add(&key, now);
        }
    }

    fn time_out_add(&mut self, key: &AttachmentKey, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(pending_add) =
            entry.pending_add.take_if(|pending_add| now >= pending_add.deadline())
        else {
            return;
        };
        let attachment = &entry.attachment;
        let reason = format!("{} within {:?}", attachment.missing_leases(), pending_add.timeout);
        log::attachment(attachment.name(), &reason);
        let mut error = Error::new(Code::TRY_LATER, "error calling DHCP.Allocate: no more tries");
        // Scripts compare the Go plugin's message, which is for ADD with IPv4.
        if pending_add.expected.is_some() || attachment.has_ipv6() {
            error = error.with_details(reason);
        }
        self.end(key, Some((pending_add.connection, DaemonReply::failed(&error))));
    }

    fn read_connection(&mut self, id: ConnectionId) {
        match self.connections.receive(id) {
            Input::Incomplete => {}
            Input::Closed => self.abandon_add(id),
            Input::Request(request) => {
                if let Some(reply) = self.handle_request(id, request) {
                    self.connections.reply(id, &reply);
                }
            }
        }
    }

    /// Releases the leases of an ADD whose plugin was killed.
    fn abandon_add(&mut self, id: ConnectionId) {
        let is_waiting = |entry: &&Entry| {
            entry.pending_add.as_ref().is_some_and(|pending_add| pending_add.connection == id)
        };
        let key = self.entries.values().find(is_waiting).map(|entry| entry.attachment.key.clone());
        if let Some(key) = key {
            self.end(&key, None);
        }
    }

    /// Handles a request. Returns the reply if it is known at once.
    fn handle_request(&mut self, id: ConnectionId, request: DaemonRequest) -> Option<DaemonReply> {
        match request {
            DaemonRequest::Status => Some(DaemonReply::Done(None)),
            DaemonRequest::Add(request) => {
                let AddRequest { location, options } = *request;
                let timeout = self.flags.resend_timeout;
                self.add(id, location, options, timeout, None)
                    .err()
                    .map(|error| DaemonReply::failed(&error))
            }
            DaemonRequest::Del(location) if self.entries.contains_key(&location.key) => {
                self.end(&location.key, Some((id, DaemonReply::Done(None))));
                None
            }
            DaemonRequest::Del(_) => Some(DaemonReply::Done(None)),
            DaemonRequest::Check(request) => self.check(id, *request),
            DaemonRequest::Gc { network, valid } => {
                self.gc(&network, &valid);
                Some(DaemonReply::Done(None))
            }
        }
    }

    fn add(
        &mut self,
        connection: ConnectionId,
        location: Location,
        options: LeaseOptions,
        timeout: Duration,
        expected: Option<Vec<IpNet>>,
    ) -> Result<(), Error> {
        let key = location.key;
        let netns = format!("{}{}", self.flags.host_prefix, location.netns);
        let interface = ContainerInterface::find(Path::new(&netns), &key.ifname, options.ipv6)?;
        if let Some(entry) = self.entries.get(&key) {
            if entry.attachment.interface.is_same(&interface) && !entry.attachment.is_ending() {
                let msg = format!("{} has a lease already", key.name());
                return Err(Error::internal(msg).with_details("DEL must come before a second ADD"));
            }
            // The interface was replaced. Servers identify the client by name, so the new lease has the same address.
            self.remove_attachment(&key);
        }
        log::attachment(&key.name(), "requesting a lease");
        let hints = expected.as_deref().unwrap_or_default();
        let (attachment, outcome) =
            LeasedAttachment::new(key.clone(), interface, options, hints, self.flags);
        let pending_add = Some(PendingAdd { connection, since: Instant::now(), timeout, expected });
        self.entries.insert(key.clone(), Entry { attachment, pending_add, ending: Vec::new() });
        self.apply_outcome(&key, outcome);
        Ok(())
    }

    /// Adopts a container that this daemon does not know, such as one of the Go daemon: servers identify the client by
    /// name and grant the address that it has.
    fn check(&mut self, id: ConnectionId, request: CheckRequest) -> Option<DaemonReply> {
        let CheckRequest { location, options, addresses } = request;
        let entry = self.entries.get(&location.key).filter(|entry| !entry.attachment.is_ending());
        let Some(entry) = entry else {
            let adopted = self.add(id, location, options, ADOPT_TIMEOUT, Some(addresses));
            return adopted.err().map(|error| DaemonReply::failed(&error));
        };
        Some(match entry.attachment.result() {
            Some(_) => DaemonReply::Done(None),
            None => DaemonReply::failed(&Error::internal(entry.attachment.missing_leases())),
        })
    }

    fn gc(&mut self, network: &str, valid: &[Attachment]) {
        let valid: HashSet<(&str, &str)> =
            valid.iter().map(|a| (a.container_id.as_str(), a.ifname.as_str())).collect();
        let is_stale = |key: &&AttachmentKey| {
            key.network == network && !valid.contains(&(&*key.container_id, &*key.ifname))
        };
        let stale: Vec<AttachmentKey> = self.entries.keys().filter(is_stale).cloned().collect();
        for key in stale {
            self.end(&key, None);
        }
    }

    /// Releases the leases. The connection gets its reply after the release.
    fn end(&mut self, key: &AttachmentKey, connection: Option<(ConnectionId, DaemonReply)>) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Some(PendingAdd { connection: waiting, .. }) = entry.pending_add.take() {
            let error =
                Error::internal(format!("{} was removed during the ADD", entry.attachment.name()));
            entry.ending.push((waiting, DaemonReply::failed(&error)));
        }
        entry.ending.extend(connection);
        if entry.attachment.is_ending() {
            return;
        }
        log::attachment(entry.attachment.name(), "releasing the lease");
        self.step(key, LeasedAttachment::end);
    }

    fn step(
        &mut self,
        key: &AttachmentKey,
        act: impl FnOnce(&mut LeasedAttachment, Instant) -> Outcome,
    ) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let outcome = act(&mut entry.attachment, Instant::now());
        self.apply_outcome(key, outcome);
    }

    /// Updates files and connections after a step.
    fn apply_outcome(&mut self, key: &AttachmentKey, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if outcome.gone {
            log::attachment(entry.attachment.name(), "container is gone, lease dropped");
            return self.remove_attachment(key);
        }
        if entry.attachment.has_ended() {
            return self.remove_attachment(key);
        }
        if entry.attachment.is_added()
            && outcome.changed
            && !entry.attachment.is_ending()
            && let Err(cause) = self.store.save(&entry.attachment.record())
        {
            log::attachment(entry.attachment.name(), format!("save the lease: {cause}"));
        }
        self.finish_add(key);
    }

    /// Completes an ADD. Saves the lease before the reply, so that a crash of the daemon does not lose it.
    fn finish_add(&mut self, key: &AttachmentKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(result) = entry.attachment.result() else { return };
        let Some(PendingAdd { connection, expected, .. }) = entry.pending_add.take() else {
            return;
        };
        let mut granted = result.ips.iter().map(|ip| ip.address);
        let unexpected = granted.find(|ip| expected.as_ref().is_some_and(|all| !all.contains(ip)));
        let saved = match unexpected {
            Some(other) => Err(Error::internal(format!(
                "no daemon had the lease of {}, and the server now grants {other} instead",
                key.name()
            ))),
            None => self.store.save(&entry.attachment.record()).map_err(|cause| {
                Error::because(Code::IO, format!("save the lease of {}", key.name()), &cause)
            }),
        };
        match saved.and_then(|()| result.to_json(Version::LATEST)) {
            Err(error) => self.end(key, Some((connection, DaemonReply::failed(&error)))),
            Ok(result) => {
                entry.attachment.mark_added();
                if !self.connections.reply(connection, &DaemonReply::Done(Some(result))) {
                    self.end(key, None);
                }
            }
        }
    }

    /// Removes an attachment and replies to all connections that waited for it.
    fn remove_attachment(&mut self, key: &AttachmentKey) {
        self.store.remove(key);
        let Some(entry) = self.entries.remove(key) else { return };
        for (connection, reply) in entry.ending {
            self.connections.reply(connection, &reply);
        }
        if let Some(PendingAdd { connection, .. }) = entry.pending_add {
            let error = Error::internal(format!("{} is gone", entry.attachment.name()));
            self.connections.reply(connection, &DaemonReply::failed(&error));
        }
    }
}
