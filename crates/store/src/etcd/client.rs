// SPDX-License-Identifier: Apache-2.0
//! One connection to one of the servers, and failover to the others.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http::uri::PathAndQuery;
use text::ErrorChain;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::conf::{Credentials, EtcdConf, Tls};
use super::endpoints::{self, Rotation};
use super::failure::{Failure, FailureKind};
use super::proto::{Authenticate, Call, KEEP_ALIVE, LeaseKeepAlive, LeaseKeepAliveAnswer};
use crate::error::Cause;
use crate::{Error, Result, backoff};

/// Timeout for connecting, including TLS and login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout for one answer. Servers do not answer while they elect a leader, which takes about a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a call with all its attempts, if any server has answered before.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of HTTP/2 pings while a watch is open. etcd closes connections that ping more often than every 5 s, or
/// without an open request.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of an answer. Lists are requested in pages, and etcd splits the answers of watches.
pub(super) const LARGEST: usize = 8 << 20;

const TOO_LARGE: &str = "message length too large";

/// Maximum number of logins during one call.
const MAX_LOGINS: u32 = 2;

/// The effect of a call, which decides whether it is repeated after no answer has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect<'a> {
    /// The call can be repeated: it changes nothing, or only something that expires.
    None,
    /// The call writes the key under a condition that no longer holds afterwards. It is repeated; the condition may then
    /// fail because of the first attempt.
    Once { key: &'a str },
    /// The call writes the key and is never repeated: a late first attempt could undo changes of other nodes.
    Any { key: &'a str },
}

#[derive(Debug)]
pub(super) struct Client {
    endpoints: Vec<Uri>,
    tls: Option<Tls>,
    credentials: Option<Credentials>,
    /// Locked while connecting, so that all calls wait for the same connection.
    state: Mutex<State>,
    /// Whether any server has ever answered. Until then the configuration is probably wrong, and calls fail at once.
    has_answered: AtomicBool,
}

#[derive(Debug)]
struct State {
    rotation: Rotation,
    session: Option<Session>,
    /// Number of sessions so far.
    count: u64,
}

/// A connection and its login token.
#[derive(Clone, Debug)]
pub(super) struct Session {
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
    number: u64,
}

impl Client {
    pub(super) fn new(conf: &EtcdConf) -> Result<Self> {
        let endpoints = endpoints::parse(&conf.endpoints, conf.tls.is_some())?;
        let rotation = Rotation::new(endpoints.len(), backoff::random());
        let state = Mutex::new(State { rotation, session: None, count: 0 });
        let (tls, credentials) = (conf.tls.clone(), conf.credentials.clone());
        Ok(Self { endpoints, tls, credentials, state, has_answered: AtomicBool::new(false) })
    }

    pub(super) fn name(&self) -> String {
        let hosts: Vec<_> = self.endpoints.iter().map(|uri| uri.authority()).collect();
        let hosts: Vec<_> = hosts.into_iter().flatten().map(|host| host.as_str()).collect();
        format!("etcd at {}", hosts.join(", "))
    }

    pub(super) fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// Sends a request and returns the answer.
    pub(super) async fn call<C: Call>(&self, request: C, effect: Effect<'_>) -> Result<C::Answer> {
        self.call_with_doubt(request, effect).await.map(|(answer, _)| answer)
    }

    /// Like [`call`](Self::call). Also returns whether an earlier attempt may have been carried out.
    pub(super) async fn call_with_doubt<C: Call>(
        &self,
        request: C,
        effect: Effect<'_>,
    ) -> Result<(C::Answer, bool)> {
        let attempt = |session: Session| session.unary(request.clone());
        self.repeat(CALL_TIMEOUT, effect, attempt).await
    }

    /// Restarts the time to live of a lease. Returns `false` if the lease does not exist.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<bool> {
        let attempt = |session: Session| async move {
            let requests = tokio_stream::once(LeaseKeepAlive { id: lease });
            let mut answers = session.stream(KEEP_ALIVE, requests).await?;
            let answer: Option<LeaseKeepAliveAnswer> = answers.message().await?;
            answer.ok_or_else(|| Status::unavailable("the server closed the connection"))
        };
        let (answer, _) = self.repeat(CALL_TIMEOUT, Effect::None, attempt).await?;
        Ok(answer.ttl > 0)
    }

    /// Tries one server after the other until one answers, the call is refused, or time is up. Also returns whether an
    /// earlier attempt than the answered one may have been carried out.
    pub(super) async fn repeat<T, F>(
        &self,
        limit: Duration,
        effect: Effect<'_>,
        attempt: impl Fn(Session) -> F + Send + Sync,
    ) -> Result<(T, bool)>
    where
        F: Future<Output = std::result::Result<T, Status>> + Send,
        T: Send,
    {
        let deadline = Instant::now() + limit;
        let (mut failures, mut logins, mut is_doubtful) = (0, 0, false);
        loop {
            let (kind, cause) = match self.try_once(&attempt).await {
                Ok(answer) => return Ok((answer, is_doubtful)),
                Err(failed) => failed,
            };
            failures += 1;
            logins += u32::from(kind == FailureKind::Unauthenticated);
            tracing::debug!(store = self.name(), ?kind, %cause, failures, "call failed");
            is_doubtful |= kind == FailureKind::Unknown;
            let is_final = match kind {
                FailureKind::Refused => true,
                FailureKind::Unauthenticated => self.credentials.is_none() || logins > MAX_LOGINS,
                FailureKind::Unknown => matches!(effect, Effect::Any { .. }),
                FailureKind::NotSent => false,
            };
            let rounds = endpoints::rounds(failures, self.endpoints.len());
            let next = Instant::now() + backoff::delay(rounds, backoff::random());
            let is_late = next >= deadline || !self.has_answered.load(Relaxed);
            // Each server is tried at least once, even if the first one took all the time.
            if is_final || rounds > 0 && is_late {
                return Err(self.error(kind, effect, is_doubtful, cause));
            }
            sleep_until(next).await;
        }
    }

    fn error(
        &self,
        last: FailureKind,
        effect: Effect<'_>,
        is_doubtful: bool,
        cause: Cause,
    ) -> Error {
        match (effect, last) {
            (Effect::Once { key } | Effect::Any { key }, _) if is_doubtful => {
                self.uncertain(key, cause)
            }
            (_, FailureKind::Refused | FailureKind::Unauthenticated) => self.refused(cause),
            _ => self.unavailable(cause),
        }
    }

    pub(super) fn uncertain(&self, key: &str, cause: Cause) -> Error {
        Error::Uncertain { store: self.name(), key: key.to_owned(), cause }
    }

    pub(super) fn refused(&self, cause: Cause) -> Error {
        Error::Refused { store: self.name(), cause }
    }

    pub(super) fn unavailable(&self, cause: Cause) -> Error {
        Error::Unavailable { store: self.name(), cause }
    }

    /// Drops a session. The next one uses another server, unless only the token of this one was invalid.
    pub(super) async fn discard(&self, session: u64, kind: FailureKind) {
        let mut state = self.state.lock().await;
        let is_current = state.session.as_ref().is_some_and(|current| current.number == session);
        if !is_current {
            return;
        }
        state.session = None;
        if kind != FailureKind::Unauthenticated {
            state.rotation.advance();
        }
    }

    /// Opens a new connection to the same server for the next call.
    pub(super) fn reconnect(&self) {
        // If it is locked, a new one is being opened.
        if let Ok(mut state) = self.state.try_lock() {
            state.session = None;
        }
    }

    async fn try_once<T, F>(
        &self,
        attempt: &(impl Fn(Session) -> F + Send + Sync),
    ) -> std::result::Result<T, (FailureKind, Cause)>
    where
        F: Future<Output = std::result::Result<T, Status>> + Send,
        T: Send,
    {
        let session = self.session().await?;
        let number = session.number;
        let status = match timeout(ANSWER_TIMEOUT, attempt(session)).await {
            Ok(Ok(answer)) => {
                self.has_answered.store(true, Relaxed);
                return Ok(answer);
            }
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(format!("no answer within {ANSWER_TIMEOUT:?}")),
        };
        let kind = Failure::of(&status).kind();
        if kind != FailureKind::Refused {
            self.discard(number, kind).await;
        }
        Err((kind, self.explain(&status)))
    }

    /// Adds a hint, because a server that requires TLS closes connections without it.
    fn explain(&self, status: &Status) -> Cause {
        let cause = cause(status);
        let is_closed = std::error::Error::source(status).is_some();
        match self.tls {
            None if is_closed && !self.has_answered.load(Relaxed) => {
                format!("{cause}; if etcd uses TLS, use https and set the CA file").into()
            }
            _ => cause,
        }
    }

    /// Returns the present session, or opens one.
    async fn session(&self) -> std::result::Result<Session, (FailureKind, Cause)> {
        let mut state = self.state.lock().await;
        if let Some(session) = &state.session {
            return Ok(session.clone());
        }
        let endpoint = &self.endpoints[state.rotation.at()];
        let number = state.count + 1;
        let connecting = timeout(CONNECT_TIMEOUT, self.connect(endpoint, number)).await;
        let connected = connecting.unwrap_or_else(|_| {
            Err((
                FailureKind::NotSent,
                format!("{endpoint} did not accept the connection within {CONNECT_TIMEOUT:?}")
                    .into(),
            ))
        });
        match &connected {
            Ok(session) => {
                tracing::debug!(%endpoint, "connected");
                state.count = number;
                state.session = Some(session.clone());
            }
            Err(_) => state.rotation.advance(),
        }
        connected
    }

    async fn connect(
        &self,
        uri: &Uri,
        number: u64,
    ) -> std::result::Result<Session, (FailureKind, Cause)> {
        let channel = self.channel(uri).await.map_err(|cause| (FailureKind::NotSent, cause))?;
        let grpc = Grpc::new(channel).max_decoding_message_size(LARGEST);
        let mut session = Session { grpc, token: None, number };
        if let Some(Credentials { user, password }) = self.credentials.clone() {
            let password = password.into_exposed();
            session.token = session.clone().log_in(Authenticate { name: user, password }).await?;
        }
        Ok(session)
    }

    async fn channel(&self, uri: &Uri) -> std::result::Result<Channel, Cause> {
        let mut endpoint = Endpoint::from(uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        if let Some(tls) = self.tls.as_ref().filter(|_| uri.scheme_str() == Some("https")) {
            endpoint = endpoint.tls_config(tls.read(endpoints::server_name(uri))?)?;
        }
        endpoint.connect().await.map_err(|error| format!("{uri}: {}", ErrorChain(&error)).into())
    }
}

impl Session {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) async fn unary<C: Call>(
        mut self,
        request: C,
    ) -> std::result::Result<C::Answer, Status> {
        self.ready().await?;
        let request = self.with_metadata(request);
        let codec = ProstCodec::<C, C::Answer>::default();
        let answer = self.grpc.unary(request, PathAndQuery::from_static(C::PATH), codec).await?;
        Ok(answer.into_inner())
    }

    /// Opens a stream of requests and a stream of answers.
    pub(super) async fn stream<Q, A>(
        mut self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> std::result::Result<Streaming<A>, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.ready().await?;
        let requests = self.with_metadata(requests);
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        Ok(self.grpc.streaming(requests, path, codec).await?.into_inner())
    }

    /// Waits for the connection, which tonic re-opens if needed. If this fails, nothing was sent.
    async fn ready(&mut self) -> std::result::Result<(), Status> {
        let ready = self.grpc.ready().await;
        ready.map_err(|error| Status::from_error(Box::new(tonic::ConnectError(error.into()))))
    }

    fn with_metadata<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // Fail at once instead of waiting for a leader, so that another server is used.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn log_in(
        self,
        request: Authenticate,
    ) -> std::result::Result<Option<MetadataValue<Ascii>>, (FailureKind, Cause)> {
        match self.unary(request).await {
            Ok(answer) => match answer.token.parse::<MetadataValue<Ascii>>() {
                Ok(mut token) => {
                    token.set_sensitive(true);
                    Ok(Some(token))
                }
                Err(_) => Err((FailureKind::Refused, "the login token is not ASCII".into())),
            },
            Err(status) if is_authentication_off(&status) => Ok(None),
            Err(status) => {
                let kind = match Failure::of(&status).kind() {
                    FailureKind::Refused => FailureKind::Refused,
                    _ => FailureKind::NotSent,
                };
                Err((kind, cause(&status)))
            }
        }
    }
}

/// Returns whether the server has authentication turned off although a user is configured. As in etcd's own client, that
/// is no error.
fn is_authentication_off(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().contains("not enabled")
}

/// Returns whether an answer exceeds [`LARGEST`]. The text is tonic's.
pub(super) fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains(TOO_LARGE)
}

/// Like [`is_too_large`], for the error of a call.
pub(super) fn was_too_large(error: &Error) -> bool {
    refused_with(error, TOO_LARGE)
}

/// Returns whether the requested revision was compacted.
pub(super) fn is_compacted(error: &Error) -> bool {
    refused_with(error, "has been compacted")
}

fn refused_with(error: &Error, text: &str) -> bool {
    matches!(error, Error::Refused { cause, .. } if cause.to_string().contains(text))
}

/// Returns the server's message, or the chain of errors on the way to it.
pub(super) fn cause(status: &Status) -> Cause {
    match std::error::Error::source(status) {
        Some(source) => ErrorChain(source).to_string().into(),
        None if status.message().is_empty() => status.code().description().into(),
        None => status.message().into(),
    }
}
