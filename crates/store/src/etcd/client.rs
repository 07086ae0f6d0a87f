// SPDX-License-Identifier: Apache-2.0
//! One connection to one of the servers, and trying the others when it fails.

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

/// For a connection with all its greetings, and for one answer. An election of a leader, during which
/// servers are silent, takes about a second.
const CONNECT: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_secs(5);

/// After this long without an answer by anybody who has answered before a call fails.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A silent server is asked for a sign of life while there is a watch. etcd shuts out who asks more
/// often than every 5 s, or asks while nothing is going on.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);

/// Largest answer. A list is asked for in pages, and etcd splits what a watch tells.
pub const LARGEST: usize = 8 << 20;

const TOO_LARGE: &str = "message length too large";

/// How often in one call to log in anew.
const LOGINS: u32 = 2;

/// What a call does if it is carried out, and so, when there was no answer, what to do about it.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'a> {
    /// Nothing that a second time could change, or that would not go away by itself. It is repeated.
    None,
    /// It writes the key, under a condition that its own success ends for ever. It is repeated; the
    /// condition may then fail because of the first time.
    Once { key: &'a str },
    /// It writes the key, and it is never repeated: coming through late the first could undo what
    /// others have done since.
    Any { key: &'a str },
}

#[derive(Debug)]
pub struct Client {
    endpoints: Vec<Uri>,
    tls: Option<Tls>,
    credentials: Option<Credentials>,
    /// Held while connecting, so that all wait for the one connection.
    state: Mutex<State>,
    /// Whether anybody has ever answered. Until then what is wrong is likely to be what we were told, and whoever
    /// asks has to know at once.
    has_answered: AtomicBool,
}

#[derive(Debug)]
struct State {
    rotation: Rotation,
    session: Option<Session>,
    /// Of sessions so far.
    count: u64,
}

/// A connection, with what tells the server who we are.
#[derive(Clone, Debug)]
pub struct Session {
    grpc: Grpc<Channel>,
    token: Option<MetadataValue<Ascii>>,
    number: u64,
}

impl Client {
    pub fn new(conf: &EtcdConf) -> Result<Self> {
        let endpoints = endpoints::parse(&conf.endpoints, conf.tls.is_some())?;
        let rotation = Rotation::new(endpoints.len(), backoff::noise());
        let state = Mutex::new(State { rotation, session: None, count: 0 });
        let (tls, credentials) = (conf.tls.clone(), conf.credentials.clone());
        Ok(Self { endpoints, tls, credentials, state, has_answered: AtomicBool::new(false) })
    }

    /// For people.
    pub fn name(&self) -> String {
        let hosts: Vec<_> = self.endpoints.iter().map(|uri| uri.authority()).collect();
        let hosts: Vec<_> = hosts.into_iter().flatten().map(|host| host.as_str()).collect();
        format!("etcd at {}", hosts.join(", "))
    }

    pub fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// One request, one answer.
    pub async fn call<C: Call>(&self, request: C, effect: Effect<'_>) -> Result<C::Answer> {
        self.call_twice(request, effect).await.map(|(answer, _)| answer)
    }

    /// Like [`call`](Self::call), and says whether it may have been carried out more than once.
    pub async fn call_twice<C: Call>(
        &self,
        request: C,
        effect: Effect<'_>,
    ) -> Result<(C::Answer, bool)> {
        let attempt = |session: Session| session.unary(request.clone());
        self.repeat(PATIENCE, effect, attempt).await
    }

    /// Starts a lease's time anew. `false` if there is no such lease any more.
    pub async fn keep_alive(&self, lease: i64) -> Result<bool> {
        let attempt = |session: Session| async move {
            let requests = tokio_stream::once(LeaseKeepAlive { id: lease });
            let mut answers = session.stream(KEEP_ALIVE, requests).await?;
            let answer: Option<LeaseKeepAliveAnswer> = answers.message().await?;
            answer.ok_or_else(|| Status::unavailable("the server hung up"))
        };
        let (answer, _) = self.repeat(PATIENCE, Effect::None, attempt).await?;
        Ok(answer.ttl > 0)
    }

    /// Tries with one server after the other, for as long as that makes sense. Says whether an
    /// earlier try than the one that was answered may have been carried out.
    pub async fn repeat<T, F>(
        &self,
        patience: Duration,
        effect: Effect<'_>,
        attempt: impl Fn(Session) -> F + Send + Sync,
    ) -> Result<(T, bool)>
    where
        F: Future<Output = std::result::Result<T, Status>> + Send,
        T: Send,
    {
        let deadline = Instant::now() + patience;
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
                FailureKind::Unauthenticated => self.credentials.is_none() || logins > LOGINS,
                FailureKind::Unknown => matches!(effect, Effect::Any { .. }),
                FailureKind::NotDone => false,
            };
            let rounds = endpoints::rounds(failures, self.endpoints.len());
            let next = Instant::now() + backoff::pause(rounds, backoff::noise());
            let is_late = next >= deadline || !self.has_answered.load(Relaxed);
            // Everybody gets a chance, even where the first took all the time.
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

    pub fn uncertain(&self, key: &str, cause: Cause) -> Error {
        Error::Uncertain { store: self.name(), key: key.to_owned(), cause }
    }

    pub fn refused(&self, cause: Cause) -> Error {
        Error::Refused { store: self.name(), cause }
    }

    pub fn unavailable(&self, cause: Cause) -> Error {
        Error::Unavailable { store: self.name(), cause }
    }

    /// Never uses this session again. Unless only its token was at fault, the next one will be with
    /// another server.
    pub async fn discard(&self, session: u64, kind: FailureKind) {
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

    /// The next session will be a new one, with the same server.
    pub fn reconnect(&self) {
        // Where it is locked a new one is being made.
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
        let status = match timeout(ANSWER, attempt(session)).await {
            Ok(Ok(answer)) => {
                self.has_answered.store(true, Relaxed);
                return Ok(answer);
            }
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(format!("no answer within {ANSWER:?}")),
        };
        let kind = Failure::of(&status).kind();
        if kind != FailureKind::Refused {
            self.discard(number, kind).await;
        }
        Err((kind, self.explained(&status)))
    }

    /// A server that wants TLS hangs up on whoever does not begin with it.
    fn explained(&self, status: &Status) -> Cause {
        let cause = cause(status);
        let hung_up = std::error::Error::source(status).is_some();
        match self.tls {
            None if hung_up && !self.has_answered.load(Relaxed) => {
                format!("{cause}; does it want https, and the file of its authority?").into()
            }
            _ => cause,
        }
    }

    /// The session there is, or a new one.
    async fn session(&self) -> std::result::Result<Session, (FailureKind, Cause)> {
        let mut state = self.state.lock().await;
        if let Some(session) = &state.session {
            return Ok(session.clone());
        }
        let endpoint = &self.endpoints[state.rotation.at()];
        let number = state.count + 1;
        let connecting = timeout(CONNECT, self.connect(endpoint, number)).await;
        let connected = connecting.unwrap_or_else(|_| {
            Err((
                FailureKind::NotDone,
                format!("{endpoint} did not greet within {CONNECT:?}").into(),
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
        let channel = self.channel(uri).await.map_err(|cause| (FailureKind::NotDone, cause))?;
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
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        if let Some(tls) = self.tls.as_ref().filter(|_| uri.scheme_str() == Some("https")) {
            endpoint = endpoint.tls_config(tls.read(endpoints::server_name(uri))?)?;
        }
        endpoint.connect().await.map_err(|error| format!("{uri}: {}", ErrorChain(&error)).into())
    }
}

impl Session {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub async fn unary<C: Call>(mut self, request: C) -> std::result::Result<C::Answer, Status> {
        self.ready().await?;
        let request = self.with_metadata(request);
        let codec = ProstCodec::<C, C::Answer>::default();
        let answer = self.grpc.unary(request, PathAndQuery::from_static(C::PATH), codec).await?;
        Ok(answer.into_inner())
    }

    /// A stream of requests, and one of answers.
    pub async fn stream<Q, A>(
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

    /// Waits for the connection, which tonic makes anew by itself. Nothing has been sent if it fails.
    async fn ready(&mut self) -> std::result::Result<(), Status> {
        let ready = self.grpc.ready().await;
        ready.map_err(|error| Status::from_error(Box::new(tonic::ConnectError(error.into()))))
    }

    fn with_metadata<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // Better another server than one that waits for a leader.
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
                Err(_) => Err((FailureKind::Refused, "the token for the user is no text".into())),
            },
            Err(status) if is_open_to_all(&status) => Ok(None),
            Err(status) => {
                let kind = match Failure::of(&status).kind() {
                    FailureKind::Refused => FailureKind::Refused,
                    _ => FailureKind::NotDone,
                };
                Err((kind, cause(&status)))
            }
        }
    }
}

/// A user is configured here and authentication is not turned on there: as with etcd's own client
/// that is no error.
fn is_open_to_all(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.message().contains("not enabled")
}

/// Whether an answer exceeds [`LARGEST`]. In tonic's words.
pub fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains(TOO_LARGE)
}

/// The same, for the error of a call.
pub fn was_too_large(error: &Error) -> bool {
    says(error, TOO_LARGE)
}

/// Whether the revision that was asked for is forgotten.
pub fn is_compacted(error: &Error) -> bool {
    says(error, "has been compacted")
}

fn says(error: &Error, words: &str) -> bool {
    matches!(error, Error::Refused { cause, .. } if cause.to_string().contains(words))
}

/// What the server said, or all that went wrong on the way to it.
pub fn cause(status: &Status) -> Cause {
    match std::error::Error::source(status) {
        Some(source) => ErrorChain(source).to_string().into(),
        None if status.message().is_empty() => status.code().description().into(),
        None => status.message().into(),
    }
}
