// SPDX-License-Identifier: Apache-2.0
//! A client of one API server: the requests, one function each.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::params::GetParams;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::timeout;

use crate::access::{self, Access};
use crate::failure::{self, Failure, FailureKind};
use crate::object::{Budget, is_name};
use crate::{Error, Object, Resource, Result, Revision, Snapshot};

/// Objects per page of a list. A whole node has about 12 kB, of which little is kept: with 5,000 nodes a list needs at
/// most 6 MB, and 19 MB with pages of 500.
const PAGE: u32 = 100;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of a request that only checks whether the server answers.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a list starts again because the server has compacted its history between two pages. Compaction happens
/// every few minutes.
const LIST_ATTEMPTS: usize = 3;

/// A client of one API server. Clones share connections.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    /// Used to open new connections.
    config: kube::Config,
    client: Mutex<kube::Client>,
    /// Names the server in errors.
    name: String,
}

/// Outcome of one request.
pub(crate) type Attempt<T> = std::result::Result<T, Failure>;

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<T>>,
}

/// The decoded part of a pod.
#[derive(Debug, Deserialize)]
struct Pod {
    spec: PodSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: Option<String>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Checks the configuration and prepares a client. It connects when the first request is made. The client works
    /// only on the runtime on which this function was called.
    pub async fn open(access: &Access) -> Result<Self> {
        let config = access.config().await?;
        let name = format!("Kubernetes at {}", config.cluster_url);
        let client = kube::Client::try_from(config.clone());
        let client = client.map_err(|error| invalid_config(&name, &config, error))?;
        Ok(Self(Arc::new(Inner { config, client: Mutex::new(client), name })))
    }

    /// Returns the object with this name, if it exists.
    pub async fn get<R: Resource>(&self, name: &str, keep: &R::Keep) -> Result<Option<Object<R>>> {
        let wire = self.get_wire::<R>(name).await?;
        Ok(wire.map(|wire| Object::new(wire, keep)))
    }

    pub(crate) async fn get_wire<R: Resource>(&self, name: &str) -> Result<Option<R::Wire>> {
        check_name(name)?;
        match self.send(requests::<R>().get(name, &GetParams::default())).await {
            Ok(wire) => Ok(Some(wire)),
            Err(Failure { kind: FailureKind::NotFound, .. }) => Ok(None),
            Err(failure) => Err(self.read_error(failure)),
        }
    }

    /// Returns the object with this name in a namespace, if it exists.
    pub async fn get_in<R: Resource>(
        &self,
        namespace: &str,
        name: &str,
        keep: &R::Keep,
    ) -> Result<Option<Object<R>>> {
        [namespace, name].into_iter().try_for_each(check_name)?;
        let (version, kind) = R::PATH.rsplit_once('/').unwrap_or_default();
        let path = format!("{version}/namespaces/{namespace}/{kind}");
        match self.send(kube::core::Request::new(path).get(name, &GetParams::default())).await {
            Ok(wire) => Ok(Some(Object::new(wire, keep))),
            Err(Failure { kind: FailureKind::NotFound, .. }) => Ok(None),
            Err(failure) => Err(self.read_error(failure)),
        }
    }

    /// Returns the node on which a pod runs. Returns `None` if the pod does not exist or is not scheduled yet.
    pub async fn node_of_pod(&self, namespace: &str, pod: &str) -> Result<Option<String>> {
        [namespace, pod].into_iter().try_for_each(check_name)?;
        let pods = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        match self.send(pods.get(pod, &GetParams::default())).await {
            Ok(Pod { spec }) => Ok(spec.node_name.filter(|name| !name.is_empty())),
            Err(Failure { kind: FailureKind::NotFound, .. }) => Ok(None),
            Err(failure) => Err(self.read_error(failure)),
        }
    }

    /// Lists all objects of a kind as of one revision. Fails if they exceed the limits of the kind.
    pub async fn list<R: Resource>(&self, keep: &R::Keep) -> Result<Snapshot<R>> {
        for _ in 0..LIST_ATTEMPTS {
            match self.list_pages(keep).await {
                Err(Failure { kind: FailureKind::Expired, .. }) => {}
                Err(Failure { kind: FailureKind::NotFound, .. }) => {
                    let (server, path) = (self.0.name.clone(), R::PATH);
                    return Err(Error::UnknownKind { server, path });
                }
                listed => return listed.map_err(|failure| self.read_error(failure)),
            }
        }
        let cause =
            format!("the server compacts its history faster than {} can be listed", R::PATH);
        Err(Error::Unavailable { server: self.0.name.clone(), cause: cause.into() })
    }

    async fn list_pages<R: Resource>(&self, keep: &R::Keep) -> Attempt<Snapshot<R>> {
        let (mut objects, mut budget) = (Vec::new(), Budget::default());
        let mut params = ListParams::default().limit(PAGE);
        params.field_selector = R::field_selector(keep);
        loop {
            let page: Page<R::Wire> = self.send(requests::<R>().list(&params)).await?;
            for wire in page.items.unwrap_or_default() {
                let object = Object::<R>::new(wire, keep);
                budget.add(&object);
                objects.push(object);
            }
            if let Some(limit) = budget.exceeded::<R>() {
                return Err(Failure { kind: FailureKind::Refused, cause: limit.into() });
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let revision = page.metadata.resource_version.unwrap_or_default();
                return Ok(Snapshot { objects, revision: Revision::parse(&revision) });
            }
        }
    }

    /// Returns the newest revision of a kind.
    pub(crate) async fn newest_revision<R: Resource>(&self) -> Attempt<Revision> {
        let request = requests::<R>().list(&ListParams::default().limit(1));
        let page: Page<IgnoredAny> = self.send(request).await?;
        Ok(Revision::parse(&page.metadata.resource_version.unwrap_or_default()))
    }

    /// Checks whether the server answers at all. An answer that denies access is an answer. The server needs neither
    /// etcd nor its caches for this request.
    pub(crate) async fn ping(&self) -> Attempt<()> {
        let request = Request::get("/version").body(Vec::new());
        let request = request.map_err(|error| Failure::new(kube::Error::HttpError(error)))?;
        match timeout(PING_TIMEOUT, self.client().request_text(request)).await {
            Err(_) => Err(Failure::timed_out(PING_TIMEOUT)),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => Ok(()),
            Ok(answer) => answer.map(drop).map_err(Failure::new),
        }
    }

    /// Patches the subresource `status`, as flannel does, so that no other rights are needed.
    pub(crate) async fn patch_status<R: Resource>(
        &self,
        name: &str,
        patch: &Value,
    ) -> Attempt<R::Wire> {
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        self.send(requests::<R>().patch_subresource("status", name, &params, &patch)).await
    }

    /// Returns a client that uses the current connections.
    pub(crate) fn client(&self) -> kube::Client {
        self.0.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes later requests use new connections. Call this when the addresses of the machine may have changed, because
    /// no answer arrives over a connection whose address is gone.
    pub fn reconnect(&self) {
        match kube::Client::try_from(self.0.config.clone()) {
            Ok(client) => *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = client,
            // For example because a certificate file is gone. The old client has its content in memory.
            Err(error) => {
                tracing::debug!(server = self.0.name, %error, "keeping the old connection");
            }
        }
    }

    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        request: std::result::Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Attempt<T> {
        let request = request.map_err(|error| Failure::new(kube::Error::BuildRequest(error)))?;
        match timeout(REQUEST_TIMEOUT, self.client().request(request)).await {
            Ok(answer) => answer.map_err(Failure::new),
            Err(_) => Err(Failure::timed_out(REQUEST_TIMEOUT)),
        }
    }

    /// Returns the error of a failed request that changes nothing.
    pub(crate) fn read_error(&self, failure: Failure) -> Error {
        let (server, cause) = (self.0.name.clone(), failure.cause);
        match failure.kind {
            FailureKind::Refused | FailureKind::NotFound => Error::Refused { server, cause },
            _ => Error::Unavailable { server, cause },
        }
    }

    /// Returns the error of a failed write.
    pub(crate) fn write_error(&self, failure: Failure, object: String) -> Error {
        let (server, cause) = (self.0.name.clone(), failure.cause);
        match failure.kind {
            FailureKind::Unknown => Error::Uncertain { server, object, cause },
            FailureKind::NotSent => Error::Unavailable { server, cause },
            _ => Error::Refused { server, cause },
        }
    }
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name:?} is not the name of a Kubernetes object: expected lower-case letters, digits, '-' and '.'"
    )))
}

/// Explains why no client can be made from this configuration.
fn invalid_config(name: &str, config: &kube::Config, error: kube::Error) -> Error {
    if !matches!(error, kube::Error::RustlsTls(_)) {
        return Error::Refused { server: name.to_owned(), cause: failure::cause(error) };
    }
    Error::Invalid(match &config.root_cert_file {
        Some(file) => format!("{name}: CA certificates in {}: {error}", file.display()),
        None if access::needs_system_certificates(config) => format!(
            "{name}: no CA certificates to verify it with ({error}); use a kubeconfig with \
             certificate-authority, or set SSL_CERT_FILE to a file with certificates"
        ),
        None => format!("{name}: {error}"),
    })
}

/// Builds requests for a kind of object.
pub(crate) fn requests<R: Resource>() -> kube::core::Request {
    kube::core::Request::new(R::PATH)
}
