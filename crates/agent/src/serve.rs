// SPDX-License-Identifier: Apache-2.0
//! What is on the board, over HTTP: for probes and Prometheus on an address, for plugins and commands
//! on a socket in the agent's directory. Nothing can be changed by either.

mod answer;
mod metrics;
mod socket;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::socket::{Socket, socket_path};
use crate::board::Board;
use crate::kept::Kept;
use crate::session::chain;

/// Whoever has so many connections waits for one of them to end.
const MOST: usize = 64;

/// A request's head must be there within that.
const HEAD: Duration = Duration::from_secs(5);

/// No connection lives longer, so that none that is never read from holds a place for ever.
const LIFE: Duration = Duration::from_secs(60);

/// Then the answer that is on its way has this long.
const GRACE: Duration = Duration::from_secs(5);

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
    let listener = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    listener.map_err(|source| Error::Listen { address, source })
}

/// Serves on an address until it is dropped.
pub async fn over_tcp(listener: TcpListener, board: Board) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        admit(accepted, &board, &mut connections).await;
    }
}

/// Serves on the agent's socket until it is dropped.
pub async fn over_socket(mut socket: Socket, board: Board) {
    let mut connections = JoinSet::new();
    let mut kept = Kept::new(socket.path(), &board);
    loop {
        kept.put(&socket.ensure().map_err(|error| chain(&error)));
        let accepted = tokio::select! {
            accepted = socket.listener.accept() => accepted.map(|(stream, _)| stream),
            () = kept.next() => continue,
        };
        admit(accepted, &board, &mut connections).await;
    }
}

async fn admit<S>(accepted: io::Result<S>, board: &Board, connections: &mut JoinSet<()>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Ok(stream) = accepted else { return sleep(PAUSE).await };
    while connections.try_join_next().is_some() {}
    if connections.len() >= MOST {
        connections.join_next().await;
    }
    connections.spawn(converse(stream, board.clone()));
}

/// Answers what comes on a connection.
async fn converse<S>(stream: S, board: Board)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(|request| {
        let answer = answer::answer(request.method(), request.uri().path(), &board);
        std::future::ready(Ok::<_, Infallible>(answer.into_response()))
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

/// Both, as far as they are wanted, until dropped.
pub fn both(
    listener: Option<TcpListener>,
    socket: Option<Socket>,
    board: &Board,
) -> impl Future<Output = ()> + use<> {
    let mut served = JoinSet::new();
    if let Some(listener) = listener {
        served.spawn(over_tcp(listener, board.clone()));
    }
    if let Some(socket) = socket {
        served.spawn(over_socket(socket, board.clone()));
    }
    async move {
        while served.join_next().await.is_some() {}
        std::future::pending::<()>().await;
    }
}
