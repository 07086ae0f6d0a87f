// SPDX-License-Identifier: Apache-2.0
//! The netfilter socket: commits batches and reads the generation. [`super::dump`] has all other
//! reads.

use ::netlink::{Attrs, Errno, Message, Protocol, Socket};

use super::uapi::{HEADER_LEN, NFT_MSG_GETGEN, NFTA_GEN_ID, SUBSYS_NFTABLES};
use super::{Batch, TableFamily, message};
use crate::deferred_close;
use crate::error::{Error, Result};

// linux/netfilter/nfnetlink.h
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_BATCH_GENID: u16 = 1;

/// A netfilter socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nft {
    /// `None` if the kernel has no netfilter netlink: every read is empty and every commit fails.
    socket: Option<Socket>,
}

/// Generation of the ruleset: the kernel changes it with every change of a namespace's nf_tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Nft {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        match Socket::open(Protocol::Netfilter) {
            Ok(socket) => Ok(Self { socket: Some(socket) }),
            Err(cause) if cause.errno == Errno::PROTONOSUPPORT => Ok(Self { socket: None }),
            Err(cause) => Err(Error::new("open netfilter socket", "", cause)),
        }
    }

    /// Reads the current generation, for [`Nft::commit_at`].
    pub fn generation(&self) -> Result<Generation> {
        let request = message(NFT_MSG_GETGEN, 0, TableFamily::Inet);
        let payload = self.get("read", "nf_tables generation".to_owned(), &request)?;
        let payload = payload.unwrap_or_default();
        let number = Attrs::after(&payload, HEADER_LEN).find_kind(NFTA_GEN_ID);
        // The kernel never uses generation 0, and accepts it in a batch as "any".
        Ok(Generation(number.and_then(|number| number.be32()).unwrap_or_default()))
    }

    /// Applies a batch completely or not at all.
    pub fn commit(&self, batch: &Batch) -> Result<()> {
        self.send(batch, batch_message(NFNL_MSG_BATCH_BEGIN))
    }

    /// Like [`Nft::commit`], but fails with [`Error::is_stale_generation`] if the namespace's
    /// nf_tables has changed since this generation was read.
    pub fn commit_at(&self, generation: Generation, batch: &Batch) -> Result<()> {
        let mut begin = batch_message(NFNL_MSG_BATCH_BEGIN);
        begin.be32(NFNL_BATCH_GENID, generation.0);
        self.send(batch, begin)
    }

    fn send(&self, batch: &Batch, begin: Message) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let Some(socket) = &self.socket else {
            return Err(Error::from_errno("change nf_tables", "", Errno::PROTONOSUPPORT));
        };
        let changes = batch.messages();
        let mut messages = Vec::with_capacity(changes.len() + 2);
        messages.push(begin);
        messages.extend_from_slice(changes);
        messages.push(batch_message(NFNL_MSG_BATCH_END));
        if batch.has_removals() {
            deferred_close::note_removal();
        }
        let failure = socket.transact(&messages, changes.len());
        match failure.map_err(|cause| Error::new("change nf_tables", "", cause))? {
            None => Ok(()),
            Some(failure) => {
                // Index 0 is the message that begins the batch; the kernel rejects it without
                // CAP_NET_ADMIN.
                let change = failure.index.checked_sub(1).and_then(|at| batch.describe(at));
                let (op, object) = change.unwrap_or(("change nf_tables", String::new()));
                Err(Error::new(op, object, failure.error))
            }
        }
    }

    /// Requests one object; `None` if it does not exist.
    pub(super) fn get(
        &self,
        op: &'static str,
        object: String,
        request: &Message,
    ) -> Result<Option<Vec<u8>>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        match socket.get(request).map_err(|cause| Error::new(op, object, cause)) {
            Ok((_, payload)) => Ok(Some(payload)),
            Err(error) if is_missing(socket, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Requests a list of objects; empty if what contains them does not exist.
    pub(super) fn list<T>(
        &self,
        op: &'static str,
        object: String,
        request: &Message,
        mut parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let Some(socket) = &self.socket else { return Ok(Vec::new()) };
        let listed = socket.dump(request, |_, payload| parse(payload));
        match listed.map_err(|cause| Error::new(op, object, cause)) {
            Err(error) if is_missing(socket, &error) => Ok(Vec::new()),
            other => other,
        }
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            deferred_close::defer_close(socket);
        }
    }
}

/// Returns whether an error means that the object, or all of nf_tables, is missing. A kernel with
/// netfilter netlink but without nf_tables answers EINVAL to every nf_tables message, even to the
/// request for the generation.
fn is_missing(socket: &Socket, error: &Error) -> bool {
    let is_invalid = |errno: Errno| errno == Errno::INVAL;
    let generation = || socket.get(&message(NFT_MSG_GETGEN, 0, TableFamily::Inet));
    error.is_not_found()
        || (is_invalid(error.errno) && generation().is_err_and(|cause| is_invalid(cause.errno)))
}

/// Builds the message that begins or ends a batch.
fn batch_message(kind: u16) -> Message {
    let mut message = Message::new(kind, 0);
    let [high, low] = SUBSYS_NFTABLES.to_be_bytes();
    message.header(&[0, 0, high, low]);
    message
}
