// SPDX-License-Identifier: Apache-2.0
//! The plugins' requests, as the API receives them: translates them for the controller and back.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use agent_client::{ipam as wire, pools};
use ipam::Timestamp;
use ipam::node::{AssignError, AssignRequest, Attachment, Pod, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::pods::PodName;
use super::{Call, KnownPods, Request, choice};
use crate::status::StatusHub;

/// Time for which a request waits for the store.
const STORE_DEADLINE: Duration = Duration::from_secs(10);

/// Time after that for the controller to answer, in case it is being restarted.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);

/// Time for a view, which needs no store. The command waits 5 s.
const VIEW_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for a check, which lists the whole store several times.
const CHECK_TIMEOUT: Duration = Duration::from_secs(110);

/// Error codes of the CNI specification.
const INVALID: u32 = 7;
const TRY_AGAIN: u32 = 11;

/// A plugin's own code, as other IPAM plugins use it.
const FAILED: u32 = 999;

/// A handle for requests to the controller.
#[derive(Debug, Clone)]
pub struct PoolsApi {
    requests: UnboundedSender<Request>,
    /// `None` without Kubernetes.
    pods: Option<KnownPods>,
}

/// Body of a response: JSON, of success or of a [`wire::Failure`].
pub(crate) type Answer = Result<String, wire::Failure>;

impl PoolsApi {
    pub(crate) fn new(requests: UnboundedSender<Request>, pods: Option<KnownPods>) -> Self {
        Self { requests, pods }
    }

    /// Answers a `POST` to one of the paths of [`agent_client::ipam`]; `None` for another path.
    pub(crate) async fn answer(&self, path: &str, body: &[u8]) -> Option<Answer> {
        Some(match path {
            wire::ASSIGN => self.assign(body).await,
            wire::RELEASE => self.release(body).await,
            wire::GC => self.gc(body).await,
            pools::CHANGE => self.change(body).await,
            pools::RELEASE_ADDRESS => self.release_address(body).await,
            pools::CHECK => self.check(body).await,
            _ => return None,
        })
    }

    /// Returns whether addresses can be assigned.
    pub(crate) fn status(&self, hub: &StatusHub) -> Answer {
        let readiness = hub.readiness();
        match readiness.reasons.split_first() {
            None => Ok("{}".to_owned()),
            Some((first, more)) => Err(wire::Failure {
                code: TRY_AGAIN,
                msg: format!("the node agent is not ready: {first}"),
                details: more.join("; "),
            }),
        }
    }

    /// Answers a `GET` of a pod's page: what is known of the pod, or `None` if there is no such pod or no Kubernetes.
    pub(crate) async fn pod(&self, path: &str) -> Option<Answer> {
        let rest = path.strip_prefix(wire::POD)?.strip_prefix('/')?;
        let mut parts = rest.split('/');
        let (namespace, name) = (parts.next()?, parts.next()?);
        let uid = parts.next().unwrap_or_default();
        match self.find_pod(PodName { namespace, name, uid }).await {
            Ok(info) => info.map(|info| print(&info)),
            Err(failure) => Some(Err(failure)),
        }
    }

    async fn find_pod(&self, pod: PodName<'_>) -> Result<Option<wire::PodInfo>, wire::Failure> {
        let Some(pods) = &self.pods else { return Ok(None) };
        let pods = pods.get().ok_or_else(not_ready)?;
        pods.find(pod).await.map_err(|msg| wire::Failure {
            code: TRY_AGAIN,
            msg,
            details: "the pod may need an address from another pool".to_owned(),
        })
    }

    async fn assign(&self, body: &[u8]) -> Answer {
        let request: wire::AssignRequest = parse(body)?;
        let netns = Some(request.netns.clone()).filter(|path| !path.is_empty());
        let path = netns.clone();
        let inode = move || Some(std::fs::metadata(path?).ok()?.ino());
        // A path may lead to a file system that does not answer.
        let netns_inode = spawn_blocking(inode).await.ok().flatten();
        let attachment = Attachment {
            handle: request.handle,
            network: request.network,
            container_id: request.container_id,
            interface: request.ifname,
            netns,
            netns_inode,
            pod: request
                .pod
                .as_ref()
                .map(|pod| Pod { namespace: pod.namespace.clone(), name: pod.name.clone() }),
            tunnel: None,
        };
        let info = match &request.pod {
            Some(wire::Pod { namespace, name, uid }) => {
                self.find_pod(PodName { namespace, name, uid }).await?
            }
            None => None,
        };
        let mut request = AssignRequest {
            attachment,
            ipv4: request.ipv4,
            ipv6: request.ipv6,
            ipv4_pools: request.ipv4_pools,
            ipv6_pools: request.ipv6_pools,
            addresses: request.addresses,
            namespace_labels: BTreeMap::new(),
            deadline: Timestamp::from(SystemTime::now()) + STORE_DEADLINE,
        };
        if let Some(info) = &info {
            let invalid = |msg| wire::Failure { code: INVALID, msg, details: String::new() };
            choice::apply(info, &mut request).map_err(invalid)?;
        }
        match self.call(Call::Assign(Box::new(request))).await? {
            Reply::Assigned(mut assigned) => {
                assigned.sort_by_key(|one| one.address.is_ipv6());
                print(&wire::AssignResponse {
                    addresses: assigned.iter().map(|one| one.address).collect(),
                    pools: assigned.into_iter().map(|one| one.pool.unwrap_or_default()).collect(),
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn release(&self, body: &[u8]) -> Answer {
        let request: wire::ReleaseRequest = parse(body)?;
        let interface = Some(request.ifname).filter(|name| !name.is_empty());
        self.released(Call::Release { handle: request.handle, interface }).await
    }

    async fn gc(&self, body: &[u8]) -> Answer {
        let request: wire::GcRequest = parse(body)?;
        let valid = request.valid.into_iter().map(|one| (one.container_id, one.ifname)).collect();
        self.released(Call::Gc { network: request.network, valid }).await
    }

    async fn released(&self, call: Call) -> Answer {
        released(self.call(call).await?)
    }

    /// Returns all pools and blocks.
    pub(crate) async fn view(&self) -> Answer {
        print(&self.ask_within(VIEW_TIMEOUT, Request::View).await?)
    }

    async fn change(&self, body: &[u8]) -> Answer {
        let change = parse(body)?;
        let changed = self.ask(|reply| Request::Change { change, reply }).await?;
        changed.map(|()| "{}".to_owned()).map_err(refused)
    }

    async fn release_address(&self, body: &[u8]) -> Answer {
        let pools::ReleaseAddress { address, force } = parse(body)?;
        let request = |reply| Request::ReleaseAddress { address, force, reply };
        released(self.ask(request).await?.map_err(refused)?)
    }

    async fn check(&self, body: &[u8]) -> Answer {
        let pools::CheckRequest { fix } = parse(body)?;
        let request = |reply| Request::Check { fix, reply };
        let report = self.ask_within(CHECK_TIMEOUT, request).await?;
        print(&report.map_err(refused)?)
    }

    async fn call(&self, call: Call) -> Result<Reply, wire::Failure> {
        match self.ask(|reply| Request::Call { call, reply }).await? {
            Reply::Failed(error) => Err(failure(&error)),
            reply => Ok(reply),
        }
    }

    /// Sends a request and waits for the reply.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, wire::Failure> {
        self.ask_within(ANSWER_TIMEOUT, request).await
    }

    async fn ask_within<T>(
        &self,
        limit: Duration,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, wire::Failure> {
        let (reply, answered) = oneshot::channel();
        self.requests.send(request(reply)).map_err(|_| not_ready())?;
        match timeout(limit, answered).await {
            Ok(Ok(reply)) => Ok(reply),
            // The controller was restarted, or waits for the store.
            Ok(Err(_)) | Err(_) => Err(not_ready()),
        }
    }
}

fn not_ready() -> wire::Failure {
    wire::Failure {
        code: TRY_AGAIN,
        msg: "the agent's address pools are not ready".to_owned(),
        details: "run `podwire status` for the reason".to_owned(),
    }
}

fn released(reply: Reply) -> Answer {
    match reply {
        Reply::Released(released) => print(&wire::ReleaseResponse { released }),
        Reply::Failed(error) => Err(failure(&error)),
        other => Err(unexpected(&other)),
    }
}

fn failure(error: &AssignError) -> wire::Failure {
    let code = if error.is_temporary() { TRY_AGAIN } else { FAILED };
    wire::Failure { code, msg: error.to_string(), details: String::new() }
}

fn refused(msg: String) -> wire::Failure {
    wire::Failure { code: FAILED, msg, details: String::new() }
}

fn unexpected(reply: &Reply) -> wire::Failure {
    wire::Failure {
        code: FAILED,
        msg: format!("unexpected reply of the address pools: {reply:?}"),
        details: String::new(),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, wire::Failure> {
    serde_json::from_slice(body).map_err(|error| wire::Failure {
        code: INVALID,
        msg: format!("the request is not valid: {error}"),
        details: String::new(),
    })
}

fn print(value: &impl Serialize) -> Answer {
    Ok(serde_json::to_string(value).expect("string keys and plain values serialize"))
}
