// SPDX-License-Identifier: Apache-2.0
//! Requests and responses for address pools, and the names of the agent's journal files. The plugins
//! `calico` and `calico-ipam` send the requests, the agent answers them.
//!
//! The agent accepts `POST` on its unix socket only. Bodies are JSON objects. A response with a status
//! other than 200 has a [`Failure`] as its body.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{ClientError, Response};

/// `POST`: an [`AssignRequest`], answered by an [`AssignResponse`].
pub const ASSIGN: &str = "/ipam/assign";

/// `POST`: a [`ReleaseRequest`], answered by a [`ReleaseResponse`].
pub const RELEASE: &str = "/ipam/release";

/// `POST`: a [`GcRequest`], answered by a [`ReleaseResponse`].
pub const GC: &str = "/ipam/gc";

/// `GET`: status 200 if the agent can assign addresses, 503 and a [`Failure`] if it cannot, 404 if
/// it has no address pools.
pub const STATUS: &str = "/ipam/status";

/// `GET`: prefix of the page of a pod, see [`pod_path`]. Answered by [`PodInfo`], or by status 404 if
/// the agent does not know the pod.
pub const POD: &str = "/pod";

/// The handle of an attachment, as Calico forms it: the key under which the store lists its addresses.
pub fn handle(network: &str, container_id: &str) -> String {
    format!("{network}.{container_id}")
}

/// The pod of an attachment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod; empty if the runtime does not tell it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Asks for addresses for one interface of one container. The same request for the same interface
/// returns the same addresses. The agent prefers the pools and families that annotations of the pod
/// or of its namespace name, if it knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignRequest {
    /// Name of the network.
    pub network: String,
    /// ID of the container.
    pub container_id: String,
    /// Name of the interface in the container.
    pub ifname: String,
    /// Path of the container's network namespace.
    pub netns: String,
    /// See [`handle`].
    pub handle: String,
    /// The pod; `None` outside Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Assign an IPv4 address. Without effect if `addresses` is not empty.
    pub ipv4: bool,
    /// Assign an IPv6 address. Without effect if `addresses` is not empty.
    pub ipv6: bool,
    /// Names or CIDRs of the IPv4 pools to choose from; empty for all pools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipv4_pools: Vec<String>,
    /// Names or CIDRs of the IPv6 pools to choose from; empty for all pools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ipv6_pools: Vec<String>,
    /// Exactly these addresses, at most one per family.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// The assigned addresses: IPv4 first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AssignResponse {
    /// At most one address per family.
    pub addresses: Vec<IpAddr>,
    /// Names of the pools of these addresses, in the same order.
    pub pools: Vec<String>,
}

/// Releases all addresses of an attachment. An attachment without addresses is not an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseRequest {
    /// Name of the network.
    pub network: String,
    /// ID of the container.
    pub container_id: String,
    /// Name of the interface in the container.
    pub ifname: String,
    /// See [`handle`]. Addresses of this handle without an interface were assigned by Calico and are
    /// released too.
    pub handle: String,
    /// The pod, if the runtime tells it: Calico 2 used `<namespace>.<name>` as the handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// Releases the addresses of a network's attachments on this node, except the valid ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GcRequest {
    /// Name of the network.
    pub network: String,
    /// The attachments that still exist.
    pub valid: Vec<ValidAttachment>,
}

/// An attachment that still exists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ValidAttachment {
    /// ID of the container.
    pub container_id: String,
    /// Name of the interface in the container.
    pub ifname: String,
}

/// The addresses that were released.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseResponse {
    /// Empty if nothing was assigned.
    pub released: Vec<IpAddr>,
}

/// The fields of a CNI error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Error code of the CNI specification: 7 for an invalid configuration, 11 for "try again later",
    /// 50 for "not available", or a plugin's own code of at least 100.
    pub code: u32,
    /// One line.
    pub msg: String,
    /// Causes and hints.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub details: String,
}

/// Labels or annotations by name. Every value is a text.
pub type Texts = Map<String, Value>;

/// Labels and annotations of a pod and of its namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodInfo {
    /// Labels of the pod.
    pub labels: Texts,
    /// Annotations of the pod.
    pub annotations: Texts,
    /// Labels of the namespace.
    pub namespace_labels: Texts,
    /// Annotations of the namespace.
    pub namespace_annotations: Texts,
}

/// The path of a pod's page. With a UID, an earlier pod of the same name is not meant. Names of pods and namespaces,
/// and UIDs, need no escaping.
pub fn pod_path(pod: &Pod) -> String {
    let Pod { namespace, name, uid } = pod;
    let uid = if uid.is_empty() { String::new() } else { format!("/{uid}") };
    format!("{POD}/{namespace}/{name}{uid}")
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The agent refused the request.
    #[error("{}", .0.msg)]
    Refused(Failure),
    /// The agent does not know this path: it has no address pools, or is older than the client.
    #[error("the node agent has no address pools")]
    Unknown,
    /// The response is not what the path should return.
    #[error("invalid response of the node agent: {0}")]
    Invalid(String),
}

/// Sends a request to one of the paths of this module.
pub fn post<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    request: &impl Serialize,
    timeout: Duration,
) -> Result<T, Error> {
    let body = serde_json::to_string(request).map_err(|error| Error::Invalid(error.to_string()))?;
    decode(&crate::post(socket, path, &body, timeout)?)
}

/// Requests one of the pages of this module.
pub fn get<T: DeserializeOwned>(socket: &Path, path: &str, timeout: Duration) -> Result<T, Error> {
    decode(&crate::get(socket, path, timeout)?)
}

/// Decodes a response of the agent.
pub fn decode<T: DeserializeOwned>(response: &Response) -> Result<T, Error> {
    match response.status {
        200 => parse(&response.body).map_err(Error::Invalid),
        404 | 405 => Err(Error::Unknown),
        status => Err(match parse::<Failure>(&response.body) {
            Ok(failure) if !failure.msg.is_empty() => Error::Refused(failure),
            _ => Error::Invalid(format!("status {status}: {}", response.body.trim_end())),
        }),
    }
}

/// In two steps: a parser for each type would make the plugins' program 20 KB larger.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    gojson::decode(&value).map_err(|error| error.to_string())
}

/// The journal of a node: one file per attachment with addresses. The agent writes it before it
/// answers and reads it when it starts. If the agent is down, DEL removes the file, and the agent
/// releases the addresses when it starts.
pub mod journal {
    use super::*;

    /// Directory of the journal below the agent's state directory.
    pub const DIRECTORY: &str = "ipam";

    /// Maximum length of a file name in Linux.
    const MAX_NAME: usize = 255;

    /// The content of a file.
    #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Entry {
        /// Name of the network.
        pub network: String,
        /// ID of the container.
        pub container_id: String,
        /// Name of the interface in the container.
        pub ifname: String,
        /// The handle in the store.
        pub handle: String,
        /// All addresses of the attachment.
        pub addresses: Vec<IpAddr>,
        /// Path of the network namespace at the time of the assignment.
        pub netns: String,
        /// Inode of the network namespace at that time; 0 if it could not be read.
        pub netns_inode: u64,
        /// The pod; `None` outside Kubernetes.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pod: Option<Pod>,
        /// Seconds since 1970.
        pub assigned_at: u64,
    }

    /// The addresses in the content of a file; none if it is invalid.
    pub fn addresses(text: &str) -> Vec<IpAddr> {
        let entry: Value = serde_json::from_str(text).unwrap_or_default();
        let addresses = entry["addresses"].as_array().into_iter().flatten();
        addresses.filter_map(|address| address.as_str()?.parse().ok()).collect()
    }

    /// The file of an attachment in a state directory.
    pub fn file(state_dir: &Path, handle: &str, ifname: &str) -> PathBuf {
        state_dir.join(DIRECTORY).join(name(handle, ifname))
    }

    /// The name of the file. Neither a handle nor an interface name of a valid request contains `/`
    /// or `:`; other characters are replaced. A long or changed name ends with a digest instead.
    fn name(handle: &str, ifname: &str) -> String {
        let plain = format!("{handle}:{ifname}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:@".contains(c);
        let is_valid = plain.chars().all(is_plain) && !plain.starts_with('.');
        if is_valid && plain.len() <= MAX_NAME {
            return plain;
        }
        // FNV-1a: the name must be the same in every build.
        let digest = plain.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let readable: String =
            plain.chars().filter(char::is_ascii_alphanumeric).take(200).collect();
        format!("{readable}~{digest:016x}")
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn file_name_is_readable_unique_and_short() {
            let file = |handle: &str, ifname: &str| file(Path::new("/s"), handle, ifname);
            assert_eq!(file("net.c1", "eth0"), Path::new("/s/ipam/net.c1:eth0"));
            let long = "x".repeat(300);
            let names = [&*long, "../../etc", ".hidden", "a/b", "a%b", "", "é"];
            let mut all: Vec<PathBuf> = names.iter().map(|name| file(name, "eth0")).collect();
            for file in &all {
                let name = file.file_name().unwrap().to_str().unwrap();
                assert_eq!(file.parent(), Some(Path::new("/s/ipam")), "{file:?}");
                assert!(name.len() <= MAX_NAME && !name.starts_with('.'), "{name}");
            }
            all.sort();
            all.dedup();
            assert_eq!(all.len(), names.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assign_request_has_the_documented_json() {
        let request = AssignRequest {
            network: "k8s-pod-network".into(),
            container_id: "c1".into(),
            ifname: "eth0".into(),
            netns: "/run/netns/c1".into(),
            handle: handle("k8s-pod-network", "c1"),
            pod: Some(Pod { namespace: "default".into(), name: "web".into(), uid: String::new() }),
            ipv4: true,
            ..AssignRequest::default()
        };
        let text = r#"{"network":"k8s-pod-network","container_id":"c1","ifname":"eth0","netns":"/run/netns/c1","handle":"k8s-pod-network.c1","pod":{"namespace":"default","name":"web"},"ipv4":true,"ipv6":false}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<AssignRequest>(text).unwrap(), request);
    }

    #[test]
    fn response_is_decoded_by_its_status() {
        let answer = |status, body: &str| {
            decode::<AssignResponse>(&Response { status, body: body.to_owned() })
        };
        let assigned = answer(200, r#"{"addresses":["10.0.0.1","fd00::1"]}"#).unwrap();
        assert_eq!(assigned.addresses.len(), 2);
        assert!(matches!(answer(200, "no JSON"), Err(Error::Invalid(_))));
        assert!(matches!(answer(404, "no page\n"), Err(Error::Unknown)));
        let refused = answer(503, r#"{"code":11,"msg":"no block","details":"why"}"#).unwrap_err();
        assert!(matches!(&refused, Error::Refused(why) if why.code == 11), "{refused:?}");
        let other = answer(500, "broken\n").unwrap_err();
        assert_eq!(other.to_string(), "invalid response of the node agent: status 500: broken");
    }
}
