// SPDX-License-Identifier: Apache-2.0
//! Requests as values, and the rtnetlink socket that sends them.

use std::os::fd::{AsFd, BorrowedFd};

use ::netlink::{Message, Protocol, Socket};

use crate::error::{Error, Result};

/// How many requests are built before they are sent; a node has four for each of its peers.
const AT_ONCE: usize = 1024;

/// One change, ready to be sent, with the words for its failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What it does: `create link`.
    pub op: &'static str,
    /// To what: `vethab12`.
    pub object: String,
    /// The bytes.
    pub message: Message,
}

impl Request {
    pub(crate) fn new(op: &'static str, object: String, message: Message) -> Self {
        Self { op, object, message }
    }
}

/// An rtnetlink socket. It acts in the network namespace of the thread that opened it,
/// wherever that thread goes later.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace; see [`crate::Netns::netlink`].
    pub fn open() -> Result<Self> {
        match Socket::open(Protocol::Route) {
            Ok(socket) => Ok(Self { socket }),
            Err(cause) => Err(Error::new("open netlink socket", "", cause)),
        }
    }

    /// Sends all requests in one go and returns the first refusal. The kernel does not stop
    /// at a refused request: those behind it are carried out all the same.
    pub fn apply(&self, requests: impl IntoIterator<Item = Request>) -> Result<()> {
        self.apply_each(requests).into_iter().collect()
    }

    /// Sends all requests in one go and returns what became of each. Of very many, only some thousand
    /// are in memory at a time.
    pub fn apply_each(&self, requests: impl IntoIterator<Item = Request>) -> Vec<Result<()>> {
        let mut requests = requests.into_iter();
        let mut results = Vec::new();
        loop {
            let mut some = self.apply_some(requests.by_ref().take(AT_ONCE));
            let is_last = some.len() < AT_ONCE;
            results.append(&mut some);
            if is_last {
                return results;
            }
        }
    }

    fn apply_some(&self, requests: impl Iterator<Item = Request>) -> Vec<Result<()>> {
        let (names, messages): (Vec<_>, Vec<_>) =
            requests.map(|r| ((r.op, r.object), r.message)).unzip();
        let mut results = vec![Ok(()); messages.len()];
        match self.socket.request(&messages) {
            Ok(failures) => {
                for failure in failures {
                    results[failure.index] = Err(failure.error);
                }
            }
            Err(error) => results.fill(Err(error)),
        }
        let named = names.into_iter().zip(results);
        named.map(|((op, object), r)| r.map_err(|cause| Error::new(op, object, cause))).collect()
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn dump<T>(
        &self,
        op: &'static str,
        message: &Message,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let items = self.socket.dump(message, |_, payload| read(payload));
        items.map_err(|cause| Error::new(op, "", cause))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
