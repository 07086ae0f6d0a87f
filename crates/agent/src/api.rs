// SPDX-License-Identifier: Apache-2.0
//! What is on the hub, over HTTP: for probes and Prometheus on an address, for plugins and commands
//! on a socket in the agent's directory. Nothing can be changed by either.

mod connections;
mod metrics;
mod routes;
mod socket;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use text::ErrorChain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::{sleep, timeout};

use self::connections::{Client, Connections};
use self::routes::Answer;
pub use self::socket::{Socket, socket_path};
use crate::managed_file::ManagedFile;
use crate::status::StatusHub;

/// Maximum time until the head of a request is complete, and for which a connection may be idle.
const HEAD: Duration = Duration::from_secs(3);

/// Maximum life of a connection, after which no further request is read from it.
const LIFE: Duration = Duration::from_secs(10);

/// Time after that for a client to read the answer that is being sent.
const GRACE: Duration = Duration::from_secs(5);

/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 1024;

/// Delay before the next accept while new connections replace young ones: each then has time to send its request,
/// and a client that connects again and again does not take the agent's whole time.
const PACE: Duration = Duration::from_millis(1);

/// Before the next try where there are no more file descriptors: nothing tells when there are.
const PAUSE: Duration = Duration::from_millis(200);

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("make the socket {path}")]
    Socket { path: PathBuf, source: io::Error },
    #[error(
        "another agent runs with the directory {0}: stop it first, or give this one another --run-dir"
    )]
    Taken(PathBuf),
}

/// Listens on an address of the namespace that this thread is in.
pub fn listen(ip: IpAddr, port: u16) -> Result<TcpListener, Error> {
    let address = SocketAddr::new(ip, port);
    let listen = || {
        let socket = if ip.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|source| Error::Listen { address, source })
}

/// Serves on an address until it is dropped.
pub async fn over_tcp(listener: TcpListener, hub: StatusHub) {
    let pages = Pages::new(hub);
    let mut connections = Connections::default();
    loop {
        let accepted = listener.accept().await;
        let accepted = accepted.map(|(stream, from)| (stream, Client::remote(from.ip())));
        admit(accepted, &pages, &mut connections).await;
    }
}

/// Serves on the agent's socket until it is dropped.
pub async fn over_socket(mut socket: Socket, hub: StatusHub) {
    let mut connections = Connections::default();
    let mut kept = ManagedFile::new(socket.path(), &hub);
    let pages = Pages::new(hub);
    loop {
        kept.put(&socket.ensure().map_err(|error| ErrorChain(&error).to_string()));
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted.map(|(stream, _)| (stream, Client::Local)),
            () = kept.next() => continue,
        };
        admit(accepted, &pages, &mut connections).await;
    }
}

async fn admit<S>(accepted: io::Result<(S, Client)>, pages: &Pages, connections: &mut Connections)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Ok((stream, client)) = accepted else { return sleep(PAUSE).await };
    match connections.admit(client, converse(stream, pages.clone())) {
        true => sleep(PACE).await,
        // A request that has arrived with its connection is answered before the next one is accepted.
        false => yield_now().await,
    }
}

/// Answers what comes on a connection.
async fn converse<S>(stream: S, pages: Pages)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|request| {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(pages.get(method, path).await.into_response()) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Whatever a client does wrong ends its connection, and is of no interest to us.
    if timeout(LIFE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(GRACE, connection).await;
    }
}

/// The pages of one listener.
#[derive(Debug, Clone)]
struct Pages {
    hub: StatusHub,
    /// Held while a large page is made.
    large: Arc<Semaphore>,
}

impl Pages {
    fn new(hub: StatusHub) -> Pages {
        Pages { hub, large: Arc::new(Semaphore::new(1)) }
    }

    /// Large pages are made one at a time and on another thread, so that probes never wait for one.
    async fn get(&self, method: Method, path: String) -> Answer {
        if !routes::is_large(&path) {
            return routes::answer(&method, &path, &self.hub);
        }
        let turn = Arc::clone(&self.large).acquire_owned().await;
        let hub = self.hub.clone();
        let made = spawn_blocking(move || {
            // Also if the connection ends meanwhile.
            let _turn = turn;
            routes::answer(&method, &path, &hub)
        });
        made.await.unwrap_or_else(|_| Answer::unavailable(&["the page cannot be made".to_owned()]))
    }
}

/// Both, as far as they are wanted, until dropped.
pub fn both(
    listener: Option<TcpListener>,
    socket: Option<Socket>,
    hub: &StatusHub,
) -> impl Future<Output = ()> + use<> {
    let mut served = JoinSet::new();
    if let Some(listener) = listener {
        served.spawn(over_tcp(listener, hub.clone()));
    }
    if let Some(socket) = socket {
        served.spawn(over_socket(socket, hub.clone()));
    }
    async move {
        while served.join_next().await.is_some() {}
        std::future::pending::<()>().await;
    }
}
