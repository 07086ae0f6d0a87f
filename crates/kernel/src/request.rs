// SPDX-License-Identifier: Apache-2.0
//! Requests as values, and the rtnetlink socket that sends them.

use std::os::fd::{AsFd, BorrowedFd};

use ::netlink::{Message, Protocol, Socket};

use crate::error::{Error, Result};

/// A change to send, with its description for errors.
#[derive(Debug, Clone)]
pub struct Request {
    /// Operation, such as `create link`.
    pub op: &'static str,
    object: Object,
    /// Netlink message.
    pub message: Message,
}

/// Object of a request.
#[derive(Debug, Clone)]
enum Object {
    Text(String),
    /// Function that parses the message, for requests that are sent by the thousand and rarely
    /// fail.
    Parsed(fn(&[u8]) -> Option<String>),
}

impl Request {
    pub(crate) fn new(op: &'static str, object: String, message: Message) -> Self {
        Self { op, object: Object::Text(object), message }
    }

    /// Creates a request whose object is parsed from the message if an error needs it: formatting
    /// the object costs as much as the rest of the request.
    pub(crate) fn with_parsed_object(
        op: &'static str,
        message: Message,
        object: fn(&[u8]) -> Option<String>,
    ) -> Self {
        Self { op, object: Object::Parsed(object), message }
    }

    /// Returns the object, such as `vethab12`.
    pub fn object(&self) -> String {
        match &self.object {
            Object::Text(object) => object.clone(),
            Object::Parsed(parse) => parse(self.message.payload()).unwrap_or_default(),
        }
    }
}

/// The object is a function of the message, so it is not compared.
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        (self.op, &self.message) == (other.op, &other.message)
    }
}

impl Eq for Request {}

/// An rtnetlink socket. It belongs to the network namespace of the thread that opened it, even if
/// that thread enters another one later.
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

    /// Sends all requests at once and returns the first error. The kernel continues after a
    /// rejected request.
    pub fn apply(&self, requests: impl IntoIterator<Item = Request>) -> Result<()> {
        self.apply_each(requests).into_iter().collect()
    }

    /// Sends all requests at once and returns the result of each.
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
        mut parse: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let items = self.socket.dump(message, |_, payload| parse(payload));
        items.map_err(|cause| Error::new(op, "", cause))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
