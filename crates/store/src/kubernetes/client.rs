// SPDX-License-Identifier: Apache-2.0
//! Requests to the API server, one function each.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::params::GetParams;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::{error::Elapsed, timeout};

use super::conf::{self, KubernetesConf};
use super::node::{self, Object};
use super::verdict::{self, Verdict};
use crate::error::Cause;
use crate::limit::Listed;
use crate::{Error, Result, Revision, Snapshot};

const NODES: &str = "/api/v1/nodes";

/// So many nodes are asked for at once: whole nodes come, some 12 kB each, and only a piece of each
/// stays. With 5000 nodes a list needs 6 MB at most, where pages of 500 need 19 MB.
const PAGE: u32 = 100;

/// For one request and its answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// For any answer at all.
const SIGN: Duration = Duration::from_secs(5);

/// How often history may be forgotten in the middle of a list. It takes minutes.
const TRIES: usize = 3;

pub struct Client {
    /// To make another one of it.
    config: kube::Config,
    kube: Mutex<kube::Client>,
    /// Names the cluster in errors.
    name: String,
    pub prefixes: Vec<String>,
}

/// A request that came to nothing.
#[derive(Debug)]
pub struct Failure {
    pub verdict: Verdict,
    pub cause: Cause,
}

/// What has become of one request.
pub type Tried<T> = std::result::Result<T, Failure>;

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Option<Vec<Object>>,
}

/// A pod, of which only this is decoded.
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Client {
    pub async fn new(conf: &KubernetesConf) -> Result<Self> {
        let config = conf.access.config().await?;
        let name = format!("Kubernetes at {}", config.cluster_url);
        let kube = kube::Client::try_from(config.clone());
        let kube = kube.map_err(|error| unusable(&name, &config, error))?;
        Ok(Self {
            config,
            kube: Mutex::new(kube),
            name,
            prefixes: conf.annotation_prefixes.clone(),
        })
    }

    pub async fn get(&self, name: &str) -> Result<Option<Object>> {
        match self.send(api().get(name, &GetParams::default())).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure { verdict: Verdict::Absent, .. }) => Ok(None),
            Err(failure) => Err(self.unread(failure)),
        }
    }

    pub async fn node_of_pod(&self, namespace: &str, pod: &str) -> Result<Option<String>> {
        let pods = kube::core::Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
        match self.send(pods.get(pod, &GetParams::default())).await {
            Ok(Pod { spec }) => Ok(spec.node_name.filter(|name| !name.is_empty())),
            Err(Failure { verdict: Verdict::Absent, .. }) => Ok(None),
            Err(failure) => Err(self.unread(failure)),
        }
    }

    /// All nodes whose keys start with the prefix, page by page, as of the first of them.
    pub async fn list(&self, prefix: &str) -> Result<Snapshot> {
        for _ in 0..TRIES {
            match self.pages(prefix).await {
                Err(Failure { verdict: Verdict::Gone, .. }) => {}
                listed => return listed.map_err(|failure| self.unread(failure)),
            }
        }
        let cause = "history is forgotten faster than all nodes can be listed".into();
        Err(Error::Unavailable { store: self.name.clone(), cause })
    }

    async fn pages(&self, prefix: &str) -> Tried<Snapshot> {
        let mut listed = Listed::default();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page: Page = self.send(api().list(&params)).await?;
            let objects = page.items.unwrap_or_default().into_iter();
            let wanted = objects.filter(|object| object.key().starts_with(prefix));
            let mut entries = wanted.map(|object| object.entry(&self.prefixes));
            entries
                .try_for_each(|entry| listed.push(entry))
                .map_err(|why| Failure { verdict: Verdict::Refused, cause: why.into() })?;
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                let revision = page.metadata.resource_version.unwrap_or_default();
                let entries = listed.entries;
                return Ok(Snapshot { entries, revision: node::revision(&revision) });
            }
        }
    }

    /// The newest revision there is.
    pub async fn newest(&self) -> Tried<Revision> {
        let page: Page = self.send(api().list(&ListParams::default().limit(1))).await?;
        Ok(node::revision(&page.metadata.resource_version.unwrap_or_default()))
    }

    /// Whether the server answers, be it that we must not ask. It looks nowhere for this answer.
    pub async fn is_there(&self) -> Tried<()> {
        let request = Request::get("/version").body(Vec::new());
        let request = request.map_err(|error| Failure::of(kube::Error::HttpError(error)))?;
        match timeout(SIGN, self.kube().request_text(request)).await {
            Err(_) => Err(Failure::unanswered(SIGN)),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => Ok(()),
            Ok(answer) => answer.map(drop).map_err(Failure::of),
        }
    }

    pub async fn create(&self, node: &Value) -> Tried<Object> {
        let body = node.to_string().into_bytes();
        self.send(api().create(&PostParams::default(), body)).await
    }

    /// Through the subresource that flannel uses, so that no more than its rights are needed.
    pub async fn patch_status(&self, name: &str, patch: &Value) -> Tried<Object> {
        let patch = Patch::Strategic(patch);
        self.send(api().patch_subresource("status", name, &PatchParams::default(), &patch)).await
    }

    pub async fn delete(&self, name: &str, expected: Option<Revision>) -> Tried<()> {
        let preconditions = expected.map(|expected| Preconditions {
            resource_version: Some(expected.to_string()),
            uid: None,
        });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        self.send::<IgnoredAny>(api().delete(name, &params)).await.map(drop)
    }

    /// With the connections of now.
    pub fn kube(&self) -> kube::Client {
        self.kube.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is asked next goes over new connections; those that are there end with what was asked over them.
    pub fn reconnect(&self) {
        match kube::Client::try_from(self.config.clone()) {
            Ok(kube) => *self.kube.lock().unwrap_or_else(PoisonError::into_inner) = kube,
            // As a file that it names is gone by now: the one before has what it needs.
            Err(error) => tracing::debug!(store = self.name, %error, "no new connection"),
        }
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: std::result::Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Tried<T> {
        let request = request.map_err(|error| Failure::of(kube::Error::BuildRequest(error)))?;
        timeout(PATIENCE, self.kube().request(request)).await?.map_err(Failure::of)
    }

    /// The error of a request that changes nothing.
    pub fn unread(&self, failure: Failure) -> Error {
        let (store, cause) = (self.name.clone(), failure.cause);
        match failure.verdict {
            Verdict::Refused | Verdict::Absent => Error::Refused { store, cause },
            _ => Error::Unavailable { store, cause },
        }
    }

    /// The error of a request that was to write.
    pub fn unwritten(&self, failure: Failure, key: &str) -> Error {
        let (store, cause) = (self.name.clone(), failure.cause);
        match failure.verdict {
            Verdict::Unknown => Error::Uncertain { store, key: key.to_owned(), cause },
            Verdict::NotDone => Error::Unavailable { store, cause },
            _ => Error::Refused { store, cause },
        }
    }
}

impl Failure {
    pub fn of(error: kube::Error) -> Self {
        Self { verdict: Verdict::of(&error), cause: verdict::cause(error) }
    }

    fn unanswered(patience: Duration) -> Self {
        let cause = format!("no answer within {} s", patience.as_secs()).into();
        Self { verdict: Verdict::Unknown, cause }
    }
}

impl From<Elapsed> for Failure {
    fn from(_: Elapsed) -> Self {
        Self::unanswered(PATIENCE)
    }
}

/// Why there can be no client with this configuration.
fn unusable(name: &str, config: &kube::Config, error: kube::Error) -> Error {
    if !matches!(error, kube::Error::RustlsTls(_)) {
        return Error::Refused { store: name.to_owned(), cause: verdict::cause(error) };
    }
    Error::Invalid(match &config.root_cert_file {
        Some(file) => format!("{name}: CA certificates in {}: {error}", file.display()),
        None if conf::needs_system_certificates(config) => format!(
            "{name}: no CA certificates to verify it with ({error}); use a kubeconfig with \
             certificate-authority, or let SSL_CERT_FILE name a file with certificates"
        ),
        None => format!("{name}: {error}"),
    })
}

pub fn api() -> kube::core::Request {
    kube::core::Request::new(NODES)
}
