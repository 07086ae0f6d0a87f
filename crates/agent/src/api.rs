// SPDX-License-Identifier: Apache-2.0
//! The local API: serves the status over HTTP, for probes and Prometheus on a TCP address, for plugins and commands on a
//! Unix socket. The pages are read-only. On the Unix socket plugins also ask for addresses from pools, by `POST`.

mod connections;
mod metrics;
mod routes;
mod socket;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use text::ErrorChain;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{sleep, timeout};

use self::connections::{Client, Connections};
use self::routes::Answer;
pub use self::socket::{Socket, socket_path};
use crate::managed_file::ManagedFile;
pub use crate::pools::api::PoolsApi;
use crate::status::StatusHub;
use crate::supervisor::Heartbeat;

/// Maximum time until the header of a request is complete, and for which a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum age of a connection, after which no further request is read from it.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(10);

/// Time after that for a client to read the response in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Maximum size of the body of a request: the list of valid attachments of a node.
const MAX_BODY: usize = 4 << 20;

/// Delay before the next accept while new connections replace young ones. Each connection has time to send its request,
/// and a client that connects in a loop does not take all of the agent's time.
const ACCEPT_DELAY: Duration = Duration::from_millis(1);

/// Delay before the next accept after an error, such as no free file descriptor. No event reports its end.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("create socket {path}")]
    Socket { path: PathBuf, source: io::Error },
    #[error(
        "another agent runs with the directory {0}: stop it first, or choose another --run-dir"
    )]
    Taken(PathBuf),
}

/// Listens on an address in the network namespace of the calling thread.
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

/// Serves a TCP address until dropped.
pub async fn over_tcp(listener: &TcpListener, hub: StatusHub) {
    let pages = Pages::new(hub, None);
    let mut connections = Connections::default();
    loop {
        let accepted = listener.accept().await;
        let accepted = accepted.map(|(stream, from)| (stream, Client::remote(from.ip())));
        admit(accepted, &pages, &mut connections).await;
    }
}

/// Serves the Unix socket until dropped, and re-creates the socket file if it disappears.
pub async fn over_socket(
    socket: &mut Socket,
    hub: StatusHub,
    pools: Option<PoolsApi>,
    heartbeat: &Heartbeat,
) {
    let mut connections = Connections::default();
    let mut file = ManagedFile::new(socket.path(), &hub);
    let pages = Pages::new(hub, pools);
    loop {
        heartbeat.beat();
        file.written(&socket.ensure().map_err(|error| ErrorChain(&error).to_string()));
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted.map(|(stream, _)| (stream, Client::Local)),
            () = file.next() => continue,
            () = heartbeat.tick() => continue,
        };
        admit(accepted, &pages, &mut connections).await;
    }
}

async fn admit<S>(accepted: io::Result<(S, Client)>, pages: &Pages, connections: &mut Connections)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Ok((stream, client)) = accepted else { return sleep(RETRY_DELAY).await };
    match connections.admit(client, serve_connection(stream, pages.clone())) {
        true => sleep(ACCEPT_DELAY).await,
        // Lets a request that arrived with its connection be answered before the next accept.
        false => yield_now().await,
    }
}

/// Answers the requests of a connection.
async fn serve_connection<S>(stream: S, pages: Pages)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|request| {
        let pages = pages.clone();
        async move { Ok::<_, Infallible>(pages.answer(request).await.into_response()) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // Errors of a client end its connection and are ignored.
    if timeout(MAX_CONNECTION_AGE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(SHUTDOWN_TIMEOUT, connection).await;
    }
}

/// The pages of one listener.
#[derive(Debug, Clone)]
struct Pages {
    hub: StatusHub,
    /// Held while a large page is rendered.
    large: Arc<Semaphore>,
    /// `None` without address pools, and over TCP.
    pools: Option<PoolsApi>,
}

impl Pages {
    fn new(hub: StatusHub, pools: Option<PoolsApi>) -> Pages {
        Pages { hub, large: Arc::new(Semaphore::new(1)), pools }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let Some(pools) = self.pools.as_ref() else { return self.get(method, path).await };
        if method == Method::GET && path == agent_client::ipam::STATUS {
            return Answer::of_pools(pools.status(&self.hub));
        }
        if method == Method::GET && path == agent_client::pools::VIEW {
            return Answer::of_pools(pools.view().await);
        }
        if method == Method::GET
            && let Some(answer) = pools.pod(&path).await
        {
            return Answer::of_pools(answer);
        }
        if method != Method::POST {
            return self.get(method, path).await;
        }
        match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => match pools.answer(&path, &body.to_bytes()).await {
                Some(answer) => Answer::of_pools(answer),
                None => self.get(method, path).await,
            },
            Err(error) => Answer::bad_request(&error.to_string()),
        }
    }

    /// Returns a page. Large pages are rendered one at a time and on another thread, so that probes never wait for one.
    async fn get(&self, method: Method, path: String) -> Answer {
        if !routes::is_large(&path) {
            return routes::answer(&method, &path, &self.hub);
        }
        let permit = Arc::clone(&self.large).acquire_owned().await;
        let hub = self.hub.clone();
        let rendered = spawn_blocking(move || {
            // Held also if the connection ends meanwhile.
            let _permit = permit;
            routes::answer(&method, &path, &hub)
        });
        rendered
            .await
            .unwrap_or_else(|_| Answer::unavailable(&["rendering the page failed".to_owned()]))
    }
}

/// Serves the address, if there is one, and the socket until dropped.
pub async fn serve(
    listener: Option<&TcpListener>,
    socket: &mut Socket,
    hub: &StatusHub,
    pools: Option<PoolsApi>,
    heartbeat: &Heartbeat,
) {
    let tcp = async {
        match listener {
            Some(listener) => over_tcp(listener, hub.clone()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = tcp => {}
        () = over_socket(socket, hub.clone(), pools, heartbeat) => {}
    }
}
