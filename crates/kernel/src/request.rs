// SPDX-License-Identifier: Apache-2.0
//! Requests as values, and the rtnetlink socket that sends them.

use std::os::fd::{AsFd, BorrowedFd};

use ::netlink::{Message, Protocol, Socket};

use crate::error::{Error, Result};

/// One change, ready to be sent, with the words for its failure.
#[derive(Debug, Clone)]
pub struct Request {
    /// What it does: `create link`.
    pub op: &'static str,
    object: Object,
    /// The bytes.
    pub message: Message,
}

/// To what something is done.
#[derive(Debug, Clone)]
enum Object {
    Said(String),
    /// Says it of the message, for what is sent by the thousand and seldom fails.
    Read(fn(&[u8]) -> Option<String>),
}

impl Request {
    pub(crate) fn new(op: &'static str, object: String, message: Message) -> Self {
        Self { op, object: Object::Said(object), message }
    }

    /// Its object is read from what is sent: the words cost as much as the rest of the request.
    pub(crate) fn read(
        op: &'static str,
        message: Message,
        object: fn(&[u8]) -> Option<String>,
    ) -> Self {
        Self { op, object: Object::Read(object), message }
    }

    /// To what: `vethab12`.
    pub fn object(&self) -> String {
        match &self.object {
            Object::Said(object) => object.clone(),
            Object::Read(read) => read(self.message.payload()).unwrap_or_default(),
        }
    }
}

/// The object follows from the message.
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        (self.op, &self.message) == (other.op, &other.message)
    }
}

impl Eq for Request {}

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

    /// Sends all requests in one go and returns what became of each.
    pub fn apply_each(&self, requests: impl IntoIterator<Item = Request>) -> Vec<Result<()>> {
        let requests: Vec<Request> = requests.into_iter().collect();
        let failed =
            |request: &Request, cause| Err(Error::new(request.op, request.object(), cause));
        match self.socket.request(requests.iter().map(|request| &request.message)) {
            Ok(failures) => {
                let mut results = vec![Ok(()); requests.len()];
                for failure in failures {
                    results[failure.index] = failed(&requests[failure.index], failure.error);
                }
                results
            }
            Err(error) => requests.iter().map(|request| failed(request, error.clone())).collect(),
        }
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
