// SPDX-License-Identifier: Apache-2.0
//! The open connections of one listener, limited in total and per client. A new connection is always admitted:
//! at a limit it replaces an old one, so that idle and slow clients cannot keep a probe out.

use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Maximum number of connections in total.
const MAX_CONNECTIONS: usize = 128;

/// Maximum number of connections of one client address.
const PER_CLIENT: usize = 32;

/// A connection of this age had time to send its request.
const YOUNG: Duration = Duration::from_millis(100);

/// The client of a connection, as the limits distinguish clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// A process that opened the agent's socket.
    Local,
    Remote(IpAddr),
}

impl Client {
    /// Returns the client for a remote address. A /64 counts as one IPv6 client, because a host can use any address of it.
    pub(super) fn remote(ip: IpAddr) -> Client {
        Client::Remote(match ip.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
            ip => ip,
        })
    }

    fn limit(self) -> usize {
        match self {
            Client::Local => MAX_CONNECTIONS,
            Client::Remote(_) => PER_CLIENT,
        }
    }
}

/// The connections in service. Dropping this ends them.
#[derive(Debug, Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    /// Oldest first.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    client: Client,
    since: Instant,
    task: AbortHandle,
}

impl Connections {
    /// Serves a connection. Returns true if it replaced a young one: clients connect faster than they can be served, and
    /// the caller should accept more slowly.
    pub(super) fn admit(
        &mut self,
        client: Client,
        connection: impl Future<Output = ()> + Send + 'static,
    ) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|open| !open.task.is_finished());
        let clients: Vec<Client> = self.open.iter().map(|open| open.client).collect();
        let replaced = replaced(&clients, client).map(|at| self.open.remove(at));
        if let Some(old) = &replaced {
            old.task.abort();
        }
        let task = self.tasks.spawn(connection);
        self.open.push(Open { client, since: Instant::now(), task });
        replaced.is_some_and(|old| old.since.elapsed() < YOUNG)
    }
}

/// Returns the position of the connection that a new one replaces. At the client's limit that is the oldest one of the
/// client. At the total limit it is the oldest one of the client with the most connections.
fn replaced(open: &[Client], new: Client) -> Option<usize> {
    let count = |client: &Client| open.iter().filter(|other| *other == client).count();
    if count(&new) >= new.limit() {
        return open.iter().position(|client| *client == new);
    }
    if open.len() < MAX_CONNECTIONS {
        return None;
    }
    let most = open.iter().map(count).max()?;
    open.iter().position(|client| count(client) == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> Client {
        Client::remote(IpAddr::from([192, 0, 2, number]))
    }

    /// Opens connections one after the other. Returns those that remain open.
    fn opened(clients: impl Iterator<Item = Client>) -> Vec<Client> {
        let mut open = Vec::new();
        for new in clients {
            if let Some(at) = replaced(&open, new) {
                open.remove(at);
            }
            open.push(new);
        }
        open
    }

    fn of(open: &[Client], client: Client) -> usize {
        open.iter().filter(|other| **other == client).count()
    }

    #[test]
    fn client_at_its_limit_replaces_its_own_connections() {
        let probe = client(1);
        let open = opened(std::iter::once(probe).chain(std::iter::repeat_n(client(2), 300)));
        assert_eq!((of(&open, probe), of(&open, client(2))), (1, PER_CLIENT));
    }

    #[test]
    fn client_with_most_connections_is_replaced_first() {
        let probe = client(1);
        let many = (0..3000).map(|at| client(2 + u8::try_from(at % 7).unwrap()));
        let open = opened(std::iter::once(probe).chain(many));
        assert_eq!((of(&open, probe), open.len()), (1, MAX_CONNECTIONS));
        let open = opened(open.into_iter().chain([client(99)]));
        assert_eq!((of(&open, client(99)), of(&open, probe), open.len()), (1, 1, MAX_CONNECTIONS));
    }

    #[test]
    fn oldest_of_single_connections_is_replaced() {
        let open = opened((0..=255).map(client));
        assert_eq!(open.len(), MAX_CONNECTIONS);
        assert_eq!((open[0], open[MAX_CONNECTIONS - 1]), (client(128), client(255)));
    }

    #[test]
    fn ipv6_network_counts_as_one_client() {
        let remote = |text: &str| Client::remote(text.parse().unwrap());
        assert_eq!(remote("2001:db8::1"), remote("2001:db8::ffff:1"));
        assert_ne!(remote("2001:db8::1"), remote("2001:db8:0:1::1"));
        assert_eq!(remote("::ffff:192.0.2.1"), client(1));
        assert_ne!(client(1), client(2));
    }

    #[test]
    fn local_clients_have_only_the_total_limit() {
        assert_eq!(opened(std::iter::repeat_n(Client::Local, 300)).len(), MAX_CONNECTIONS);
    }
}
