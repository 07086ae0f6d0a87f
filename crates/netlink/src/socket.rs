// SPDX-License-Identifier: Apache-2.0
//! Synchronous netlink socket: pipelined requests with one acknowledgement, single look-ups,
//! and dumps that are repeated when the kernel says they were interrupted.
//! It belongs to the network namespace of the thread that opened it.

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

/// The kernel fills dump replies up to the largest buffer it was offered, at most 32 KiB. Most
/// sockets never see a reply of more than a page, and clearing eight would cost them 20 µs.
const DUMP_BUFFER_LEN: usize = 32 * 1024;
/// After so many datagrams a dump is long.
const LONG_DUMP: usize = 3;

// A failing message is answered even without NLM_F_ACK. 128 answers fit the default receive
// buffer; 500 do not, and the kernel then drops the one we wait for (ENOBUFS).
const MAX_MESSAGES: usize = 128;
const MAX_BYTES: usize = 64 * 1024;
/// So many replies of a page each fit the default receive buffer.
const MAX_REPLIES: usize = 48;
/// What every kernel lets a socket send at once; a long batch of nf_tables needs more.
const USUAL_SEND_BUFFER: usize = 64 * 1024;

/// What the kernel counts for an answer in the receive buffer, and some more.
const ANSWER_LEN: usize = 2048;

const MAX_DUMP_TRIES: usize = 10;

/// A netlink family we talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, rules, neighbours, tc.
    Route,
    /// nf_tables and conntrack.
    Netfilter,
    /// Families registered at run time (wireguard, ethtool).
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

/// A message of a pipeline the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its place among the messages sent.
    pub index: usize,
    /// Why.
    pub error: Error,
}

/// Kind and payload of a reply, or why there is none.
pub type Got = Result<(u16, Vec<u8>), Error>;

/// What is known about a message sent earlier by someone else on this socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    Pending,
    /// Acknowledged.
    Done,
    /// Refused.
    Failed(Error),
}

/// A netlink socket. Not for sharing between threads: it owns one receive buffer.
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

    /// Sends the messages in one `sendmsg` (or few, if they are many) and returns those the
    /// kernel refused, in order. It goes on after a refused message.
    pub fn request<'m>(
        &self,
        messages: impl IntoIterator<Item = &'m Message>,
    ) -> Result<Vec<Failure>, Error> {
        let messages: Vec<_> = messages.into_iter().collect();
        let mut failures = Vec::new();
        let mut done = 0;
        while done < messages.len() {
            let chunk = &messages[done..done + chunk_len(&messages[done..])];
            let refused = self.exchange(chunk, chunk.len() - 1, false)?;
            let among_all = |one: Failure| Failure { index: one.index + done, ..one };
            failures.extend(refused.into_iter().map(among_all));
            done += chunk.len();
        }
        Ok(failures)
    }

    /// Sends a batch that succeeds or fails as a whole (nf_tables): one `sendmsg`, the
    /// acknowledgement asked of message `ack`, and the first refusal ends the waiting.
    pub fn transact(&self, messages: &[Message], ack: usize) -> Result<Option<Failure>, Error> {
        let messages: Vec<_> = messages.iter().collect();
        Ok(self.exchange(&messages, ack, true)?.into_iter().next())
    }

    /// Sends one message and returns kind and payload of its reply.
    pub fn get(&self, message: &Message) -> Got {
        let seq = self.send(&[message], 0, 0)?;
        loop {
            let found = self.receive(|reply| match reply.kind {
                _ if reply.seq != seq => None,
                NLMSG_ERROR => Some(reply.outcome().and(Err(Errno::NODATA.into()))),
                kind => Some(Ok((kind, reply.payload.to_vec()))),
            })?;
            if let Some(result) = found {
                return result;
            }
        }
    }

    /// Sends the messages in one `sendmsg` (or few, if they are many), each of which has one reply, and
    /// returns kind and payload of each, in order.
    pub fn get_each(&self, messages: &[Message]) -> Result<Vec<Got>, Error> {
        let mut replies = Vec::with_capacity(messages.len());
        let messages: Vec<_> = messages.iter().collect();
        while replies.len() < messages.len() {
            let rest = &messages[replies.len()..];
            // Unlike an acknowledgement, each of these is kept in the receive buffer.
            replies.extend(self.get_some(&rest[..chunk_len(rest).min(MAX_REPLIES)])?);
        }
        Ok(replies)
    }

    /// Dumps: `read` turns kind and payload of each object into a `T`, or `None` to skip it.
    /// An interrupted dump (`NLM_F_DUMP_INTR`) is thrown away and repeated whole.
    pub fn dump<T>(
        &self,
        message: &Message,
        mut read: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        for _ in 0..MAX_DUMP_TRIES {
            if let Some(items) = self.dump_once(message, &mut read)? {
                return Ok(items);
            }
        }
        Err(Error::explained(Errno::AGAIN, "objects changed during every try to dump them"))
    }

    /// Numbers and encodes a message that somebody else (a forked child) will send on this
    /// socket, with an acknowledgement asked for; [`Socket::answer`] looks for it.
    pub fn prepare(&self, message: &Message) -> (u32, Vec<u8>) {
        let mut bytes = Vec::with_capacity(message.len());
        let seq = self.reserve(1);
        message.encode(&mut bytes, seq, NLM_F_ACK);
        (seq, bytes)
    }

    /// Waits at most `timeout` for the answer to message `seq`.
    pub fn answer(&self, seq: u32, timeout: Duration) -> Result<Answer, Error> {
        if !wait_readable(self.fd.as_fd(), timeout)? {
            return Ok(Answer::Pending);
        }
        let found = self.receive(|reply| {
            (reply.seq == seq && reply.kind == NLMSG_ERROR).then(|| reply.outcome())
        })?;
        Ok(match found {
            None => Answer::Pending,
            Some(Ok(())) => Answer::Done,
            Some(Err(error)) => Answer::Failed(error),
        })
    }

    fn dump_once<T>(
        &self,
        message: &Message,
        read: &mut impl FnMut(u16, &[u8]) -> Option<T>,
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
                items.extend(read(reply.kind, reply.payload));
                None
            })?;
            match end {
                None => {}
                Some(Ok(())) if interrupted => return Ok(None),
                Some(outcome) => return outcome.map(|()| Some(items)),
            }
        }
    }

    fn get_some(&self, messages: &[&Message]) -> Result<Vec<Got>, Error> {
        let first = self.send(messages, 0, 0)?;
        let nothing = || Err(Errno::NODATA.into());
        let mut replies: Vec<Option<Got>> = vec![None; messages.len()];
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
        first_refusal_ends: bool,
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
                let ends = index == ack || (first_refusal_ends && outcome.is_err());
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
        // The count is far below 2^32: it is bounded by what one sendmsg can carry.
        self.next_seq.set(first.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX)));
        first
    }

    /// Sends all in one `sendmsg`, message `marked` with `flags` added; returns the first
    /// sequence number.
    fn send(&self, messages: &[&Message], marked: usize, flags: u16) -> Result<u32, Error> {
        if messages.iter().any(|message| message.is_oversized()) {
            return Err(Error::explained(Errno::MSGSIZE, "an attribute is longer than 64 KiB"));
        }
        let first = self.reserve(messages.len());
        let mut bytes = Vec::with_capacity(messages.iter().map(|message| message.len()).sum());
        for (index, message) in messages.iter().enumerate() {
            let flags = if marked == index { flags } else { 0 };
            let offset = u32::try_from(index).unwrap_or(u32::MAX);
            message.encode(&mut bytes, first.wrapping_add(offset), flags);
        }
        if bytes.len() > USUAL_SEND_BUFFER {
            // Best effort: without the right to do so, the send is refused and says why.
            let _ = set_socket_send_buffer_size_force(&self.fd, 2 * bytes.len());
        }
        if messages.len() > MAX_MESSAGES {
            // As far as we may: each message of a batch may be refused, and each refusal is told.
            let _ = set_socket_recv_buffer_size_force(&self.fd, messages.len() * ANSWER_LEN);
        }
        retry_on_intr(|| send(&self.fd, &bytes, SendFlags::empty()))?;
        Ok(first)
    }

    /// Receives one datagram and offers its messages to `look` until it has what it wants.
    fn receive<T>(&self, mut look: impl FnMut(Reply<'_>) -> Option<T>) -> Result<Option<T>, Error> {
        let mut buffer = self.buffer.borrow_mut();
        let len = receive_whole(self.fd.as_fd(), &mut buffer)?;
        Ok(Replies::new(&buffer[..len]).find_map(&mut look))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many messages go into the next `sendmsg`: at least one.
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

    /// A socket whose kernel is the test, and the kernel's end.
    fn scripted() -> (Socket, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let (ours, kernels) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let buffer = RefCell::new(vec![0; 64]);
        (Socket { fd: ours, next_seq: Cell::new(1), buffer }, kernels)
    }

    fn say(kernel: &OwnedFd, kind: u16, flags: u16, seq: u32, payload: &[u8]) {
        let mut message = Message::new(kind, flags);
        message.header(payload);
        let mut bytes = Vec::new();
        message.encode(&mut bytes, seq, 0);
        send(kernel, &bytes, SendFlags::empty()).unwrap();
    }

    #[test]
    fn an_interrupted_dump_is_thrown_away_and_repeated() {
        let (socket, kernel) = scripted();
        say(&kernel, 16, 0, 1, b"old1");
        say(&kernel, 16, NLM_F_DUMP_INTR, 1, b"old2");
        say(&kernel, NLMSG_DONE, 0, 1, &[0; 4]);
        say(&kernel, 16, 0, 7, b"late");
        say(&kernel, 16, 0, 2, b"new1");
        say(&kernel, NLMSG_DONE, 0, 2, &[0; 4]);
        let items = socket.dump(&Message::new(18, 0), |_, payload| Some(payload.to_vec()));
        assert_eq!(items.unwrap(), [b"new1"]);
    }

    #[test]
    fn a_dump_interrupted_each_time_is_an_error() {
        let (socket, kernel) = scripted();
        for seq in (1..).take(MAX_DUMP_TRIES) {
            say(&kernel, NLMSG_DONE, NLM_F_DUMP_INTR, seq, &[0; 4]);
        }
        let error = socket.dump(&Message::new(18, 0), |_, _| Some(())).unwrap_err();
        assert_eq!(error.errno, Errno::AGAIN);
    }

    #[test]
    fn a_failed_dump_is_an_error() {
        let (socket, kernel) = scripted();
        say(&kernel, NLMSG_DONE, 0, 1, &(-2_i32).to_ne_bytes());
        let error = socket.dump(&Message::new(18, 0), |_, _| Some(())).unwrap_err();
        assert_eq!(error.errno, Errno::NOENT);
    }

    #[test]
    fn each_of_many_questions_has_its_answer() {
        let (socket, kernel) = scripted();
        say(&kernel, 24, 0, 2, b"two!");
        say(&kernel, NLMSG_ERROR, 0, 1, &(-2_i32).to_ne_bytes());
        say(&kernel, 24, 0, 7, b"late");
        say(&kernel, NLMSG_ERROR, 0, 3, &[0; 4]);
        let questions = vec![Message::new(26, 0); 3];
        let answers = socket.get_each(&questions).unwrap();
        let nothing = Err(Errno::NODATA.into());
        let expected = [Err(Errno::NOENT.into()), Ok((24, b"two!".to_vec())), nothing];
        assert_eq!(answers, expected);
    }

    #[test]
    fn a_reply_longer_than_the_buffer_is_whole() {
        let (socket, kernel) = scripted();
        say(&kernel, 16, 0, 1, &[7; 5000]);
        assert_eq!(socket.get(&Message::new(18, 0)).unwrap(), (16, vec![7; 5000]));
    }
}
