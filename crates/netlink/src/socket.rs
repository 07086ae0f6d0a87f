// SPDX-License-Identifier: Apache-2.0
//! Synchronous netlink socket: pipelined requests with one acknowledgement, lookups of single
//! objects, and dumps, which are repeated if the kernel reports an interruption. The socket belongs
//! to the network namespace of the thread that opened it.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use rustix::net::{SendFlags, send};

use crate::error::Error;
use crate::fd::{open_fd, receive_whole, wait_readable};
use crate::message::{Message, NLM_F_ACK, NLM_F_DUMP};
use crate::replies::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, Replies, Reply};

/// Buffer length for long dumps. The kernel fills dump replies up to the largest buffer used so
/// far, at most 32 KiB. Most sockets never receive more than a page, and clearing 32 KiB would cost
/// them 20 µs.
const DUMP_BUFFER_LEN: usize = 32 * 1024;
/// Number of datagrams after which a dump counts as long.
const LONG_DUMP: usize = 3;

/// Maximum number of messages per `sendmsg`. The kernel answers a failing message even without
/// NLM_F_ACK. The default receive buffer holds 128 answers; with 500, the kernel drops the expected
/// one (ENOBUFS).
const MAX_MESSAGES: usize = 128;
/// Maximum number of bytes per `sendmsg`.
const MAX_BYTES: usize = 64 * 1024;
/// Number of replies of one page that fit into the default receive buffer.
const MAX_REPLIES: usize = 48;
/// Send buffer size that every kernel allows; a long nf_tables batch needs more.
const DEFAULT_SEND_BUFFER: usize = 64 * 1024;
/// Size that an answer uses in the receive buffer, with some reserve.
const ANSWER_LEN: usize = 2048;

const MAX_DUMP_TRIES: usize = 10;

/// A netlink protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, rules, neighbours, tc.
    Route,
    /// nf_tables and conntrack.
    Netfilter,
    /// Generic netlink families, such as WireGuard and ethtool.
    Generic,
}

impl Protocol {
    pub(crate) fn number(self) -> Option<rustix::net::Protocol> {
        match self {
            // NETLINK_ROUTE is 0, which rustix calls "no protocol".
            Self::Route => None,
            Self::Netfilter => Some(rustix::net::netlink::NETFILTER),
            Self::Generic => Some(rustix::net::netlink::GENERIC),
        }
    }
}

/// A rejected message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Index among the sent messages.
    pub index: usize,
    /// Reason of the rejection.
    pub error: Error,
}

/// Type and payload of a reply, or the reason why there is none.
pub type ReplyResult = Result<(u16, Vec<u8>), Error>;

/// State of a message that another process sent on this socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AckStatus {
    /// The kernel has not answered yet.
    Pending,
    /// The kernel acknowledged the message.
    Done,
    /// The kernel rejected the message.
    Failed(Error),
}

/// A netlink socket with one receive buffer; threads cannot share it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    next_seq: Cell<u32>,
    buffer: RefCell<Vec<u8>>,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let fd = open_fd(protocol)?;
        Ok(Self { fd, next_seq: Cell::new(1), buffer: RefCell::default() })
    }

    /// Sends the messages with as few `sendmsg` calls as possible and returns those that the kernel
    /// rejected, in order. The kernel continues after a rejected message.
    pub fn request<'m>(
        &self,
        messages: impl IntoIterator<Item = &'m Message>,
    ) -> Result<Vec<Failure>, Error> {
        let messages: Vec<_> = messages.into_iter().collect();
        let mut failures = Vec::new();
        let mut done = 0;
        while done < messages.len() {
            let chunk = &messages[done..done + chunk_len(&messages[done..])];
            let rejected = self.exchange(chunk, chunk.len() - 1, false)?;
            let among_all = |one: Failure| Failure { index: one.index + done, ..one };
            failures.extend(rejected.into_iter().map(among_all));
            done += chunk.len();
        }
        Ok(failures)
    }

    /// Sends a batch that succeeds or fails as a whole (nf_tables), with one `sendmsg`. It requests
    /// an acknowledgement of message `ack`, and returns at the first rejected message.
    pub fn transact(&self, messages: &[Message], ack: usize) -> Result<Option<Failure>, Error> {
        let messages: Vec<_> = messages.iter().collect();
        Ok(self.exchange(&messages, ack, true)?.into_iter().next())
    }

    /// Sends one message and returns the type and payload of its reply.
    pub fn get(&self, message: &Message) -> ReplyResult {
        let seq = self.send(&[message], 0, 0)?;
        loop {
            let result = self.receive(|reply| match reply.kind {
                _ if reply.seq != seq => None,
                NLMSG_ERROR => Some(reply.outcome().and(Err(Errno::NODATA.into()))),
                kind => Some(Ok((kind, reply.payload.to_vec()))),
            })?;
            if let Some(result) = result {
                return result;
            }
        }
    }

    /// Sends messages that have one reply each, with as few `sendmsg` calls as possible. Returns
    /// the type and payload of each reply in order.
    pub fn get_each(&self, messages: &[Message]) -> Result<Vec<ReplyResult>, Error> {
        let mut replies = Vec::with_capacity(messages.len());
        let messages: Vec<_> = messages.iter().collect();
        while replies.len() < messages.len() {
            let rest = &messages[replies.len()..];
            // The receive buffer has to hold all replies, unlike acknowledgements.
            replies.extend(self.get_chunk(&rest[..chunk_len(rest).min(MAX_REPLIES)])?);
        }
        Ok(replies)
    }

    /// Dumps objects. `parse` turns the type and payload of each object into a `T`, or returns
    /// `None` to skip it. An interrupted dump (`NLM_F_DUMP_INTR`) is discarded and repeated.
    pub fn dump<T>(
        &self,
        message: &Message,
        mut parse: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..MAX_DUMP_TRIES {
            if let Some(items) = self.dump_once(message, &mut parse)? {
                return Ok(items);
            }
        }
        Err(Error::explained(Errno::AGAIN, "objects changed during every dump"))
    }

    /// Numbers and encodes a message that a forked child will send on this socket, with a request
    /// for an acknowledgement. [`Socket::ack_status`] reads the acknowledgement.
    pub fn prepare(&self, message: &Message) -> (u32, Vec<u8>) {
        let mut bytes = Vec::with_capacity(message.len());
        let seq = self.reserve(1);
        message.encode(&mut bytes, seq, NLM_F_ACK);
        (seq, bytes)
    }

    /// Waits at most `timeout` for the acknowledgement of message `seq`.
    pub fn ack_status(&self, seq: u32, timeout: Duration) -> Result<AckStatus, Error> {
        if !wait_readable(self.fd.as_fd(), timeout)? {
            return Ok(AckStatus::Pending);
        }
        let outcome = self.receive(|reply| {
            (reply.seq == seq && reply.kind == NLMSG_ERROR).then(|| reply.outcome())
        })?;
        Ok(match outcome {
            None => AckStatus::Pending,
            Some(Ok(())) => AckStatus::Done,
            Some(Err(error)) => AckStatus::Failed(error),
        })
    }

    fn dump_once<T>(
        &self,
        message: &Message,
        parse: &mut impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Error> {
        let seq = self.send(&[message], 0, NLM_F_DUMP)?;
        let mut items = Vec::new();
        let mut interrupted = false;
        let mut datagrams = 0;
        loop {
            datagrams += 1;
            if datagrams == LONG_DUMP {
                self.buffer.borrow_mut().resize(DUMP_BUFFER_LEN, 0);
            }
            let end = self.receive(|reply| {
                if reply.seq != seq {
                    return None;
                }
                interrupted |= reply.flags & NLM_F_DUMP_INTR != 0;
                if matches!(reply.kind, NLMSG_DONE | NLMSG_ERROR) {
                    return Some(reply.outcome());
                }
                items.extend(parse(reply.kind, reply.payload));
                None
            })?;
            match end {
                None => {}
                Some(Ok(())) if interrupted => return Ok(None),
                Some(outcome) => return outcome.map(|()| Some(items)),
            }
        }
    }

    fn get_chunk(&self, messages: &[&Message]) -> Result<Vec<ReplyResult>, Error> {
        let first = self.send(messages, 0, 0)?;
        let nothing = || Err(Errno::NODATA.into());
        let mut replies: Vec<Option<ReplyResult>> = vec![None; messages.len()];
        while replies.iter().any(Option::is_none) {
            self.receive(|reply| {
                let index = usize::try_from(reply.seq.wrapping_sub(first)).ok()?;
                let answer = match reply.kind {
                    NLMSG_ERROR => reply.outcome().and_then(|()| nothing()),
                    kind => Ok((kind, reply.payload.to_vec())),
                };
                replies.get_mut(index)?.get_or_insert(answer);
                None::<()>
            })?;
        }
        Ok(replies.into_iter().map(|reply| reply.unwrap_or_else(nothing)).collect())
    }

    fn exchange(
        &self,
        messages: &[&Message],
        ack: usize,
        stop_at_failure: bool,
    ) -> Result<Vec<Failure>, Error> {
        let first = self.send(messages, ack, NLM_F_ACK)?;
        let mut failures = Vec::new();
        loop {
            let answered = self.receive(|reply| {
                let index = usize::try_from(reply.seq.wrapping_sub(first)).ok()?;
                if index >= messages.len() || reply.kind != NLMSG_ERROR {
                    return None;
                }
                let outcome = reply.outcome();
                let ends = index == ack || (stop_at_failure && outcome.is_err());
                failures.extend(outcome.err().map(|error| Failure { index, error }));
                ends.then_some(())
            })?;
            if answered.is_some() {
                return Ok(failures);
            }
        }
    }

    fn reserve(&self, count: usize) -> u32 {
        let first = self.next_seq.get();
        // One sendmsg limits the count to far below 2^32.
        self.next_seq.set(first.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX)));
        first
    }

    /// Sends all messages with one `sendmsg` and adds `flags` to the message at index `flagged`.
    /// Returns the first sequence number.
    fn send(&self, messages: &[&Message], flagged: usize, flags: u16) -> Result<u32, Error> {
        if messages.iter().any(|message| message.is_oversized()) {
            return Err(Error::explained(Errno::MSGSIZE, "an attribute is longer than 64 KiB"));
        }
        let first = self.reserve(messages.len());
        let mut bytes = Vec::with_capacity(messages.iter().map(|message| message.len()).sum());
        for (index, message) in messages.iter().enumerate() {
            let flags = if flagged == index { flags } else { 0 };
            let offset = u32::try_from(index).unwrap_or(u32::MAX);
            message.encode(&mut bytes, first.wrapping_add(offset), flags);
        }
        if bytes.len() > DEFAULT_SEND_BUFFER {
            // Best effort: without CAP_NET_ADMIN the send below fails with the reason.
            let _ = set_socket_send_buffer_size_force(&self.fd, 2 * bytes.len());
        }
        if messages.len() > MAX_MESSAGES {
            // Best effort: the kernel may answer every message of a batch with an error.
            let _ = set_socket_recv_buffer_size_force(&self.fd, messages.len() * ANSWER_LEN);
        }
        retry_on_intr(|| send(&self.fd, &bytes, SendFlags::empty()))?;
        Ok(first)
    }

    /// Receives one datagram and passes its messages to `find` until `find` returns a value.
    fn receive<T>(&self, mut find: impl FnMut(Reply<'_>) -> Option<T>) -> Result<Option<T>, Error> {
        let mut buffer = self.buffer.borrow_mut();
        let len = receive_whole(self.fd.as_fd(), &mut buffer)?;
        Ok(Replies::new(&buffer[..len]).find_map(&mut find))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of messages in the next `sendmsg`, at least one.
fn chunk_len(messages: &[&Message]) -> usize {
    let mut bytes = 0;
    let fitting = messages.iter().take(MAX_MESSAGES).take_while(|message| {
        bytes += message.len();
        bytes <= MAX_BYTES
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// Returns a socket and its other end, on which the test plays the kernel.
    fn scripted() -> (Socket, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let (fd, kernel) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let buffer = RefCell::new(vec![0; 64]);
        (Socket { fd, next_seq: Cell::new(1), buffer }, kernel)
    }

    fn reply(kernel: &OwnedFd, kind: u16, flags: u16, seq: u32, payload: &[u8]) {
        let mut message = Message::new(kind, flags);
        message.header(payload);
        let mut bytes = Vec::new();
        message.encode(&mut bytes, seq, 0);
        send(kernel, &bytes, SendFlags::empty()).unwrap();
    }

    #[test]
    fn interrupted_dump_is_repeated() {
        let (socket, kernel) = scripted();
        reply(&kernel, 16, 0, 1, b"old1");
        reply(&kernel, 16, NLM_F_DUMP_INTR, 1, b"old2");
        reply(&kernel, NLMSG_DONE, 0, 1, &[0; 4]);
        reply(&kernel, 16, 0, 7, b"late");
        reply(&kernel, 16, 0, 2, b"new1");
        reply(&kernel, NLMSG_DONE, 0, 2, &[0; 4]);
        let items = socket.dump(&Message::new(18, 0), |_, payload| Some(payload.to_vec()));
        assert_eq!(items.unwrap(), [b"new1"]);
    }

    #[test]
    fn dump_interrupted_every_time_fails() {
        let (socket, kernel) = scripted();
        for seq in (1..).take(MAX_DUMP_TRIES) {
            reply(&kernel, NLMSG_DONE, NLM_F_DUMP_INTR, seq, &[0; 4]);
        }
        let error = socket.dump(&Message::new(18, 0), |_, _| Some(())).unwrap_err();
        assert_eq!(error.errno, Errno::AGAIN);
    }

    #[test]
    fn failed_dump_returns_the_error() {
        let (socket, kernel) = scripted();
        reply(&kernel, NLMSG_DONE, 0, 1, &(-2_i32).to_ne_bytes());
        let error = socket.dump(&Message::new(18, 0), |_, _| Some(())).unwrap_err();
        assert_eq!(error.errno, Errno::NOENT);
    }

    #[test]
    fn get_each_returns_replies_in_order() {
        let (socket, kernel) = scripted();
        reply(&kernel, 24, 0, 2, b"two!");
        reply(&kernel, NLMSG_ERROR, 0, 1, &(-2_i32).to_ne_bytes());
        reply(&kernel, 24, 0, 7, b"late");
        reply(&kernel, NLMSG_ERROR, 0, 3, &[0; 4]);
        let requests = vec![Message::new(26, 0); 3];
        let replies = socket.get_each(&requests).unwrap();
        let nothing = Err(Errno::NODATA.into());
        let expected = [Err(Errno::NOENT.into()), Ok((24, b"two!".to_vec())), nothing];
        assert_eq!(replies, expected);
    }

    #[test]
    fn reply_longer_than_the_buffer_is_complete() {
        let (socket, kernel) = scripted();
        reply(&kernel, 16, 0, 1, &[7; 5000]);
        assert_eq!(socket.get(&Message::new(18, 0)).unwrap(), (16, vec![7; 5000]));
    }
}
