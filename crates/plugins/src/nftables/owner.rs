// SPDX-License-Identifier: Apache-2.0
//! The owner tag of an element: a digest for comparing, the path of the container's namespace for
//! deciding whether the container still exists, and a readable comment.

use std::path::Path;

use cni::{Attachment, Request};
use kernel::nft::Userdata;

use crate::attach::names;

const DIGEST_LEN: usize = 16;

/// Eight bytes that identify the network, then eight bytes that identify the attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Digest(pub [u8; DIGEST_LEN]);

impl Digest {
    pub(super) fn of(network: &str, attachment: &Attachment) -> Self {
        let mut bytes = [0; DIGEST_LEN];
        bytes[..8].copy_from_slice(&network_digest(network));
        let words = [attachment.container_id.as_str(), &attachment.ifname];
        bytes[8..].copy_from_slice(&names::digest(&words).to_be_bytes());
        Self(bytes)
    }

    pub(super) fn is_of_network(&self, network: &str) -> bool {
        self.0[..8] == network_digest(network)
    }
}

fn network_digest(network: &str) -> [u8; 8] {
    names::digest(&[network]).to_be_bytes()
}

/// An attachment to a network, with the path of the container's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    network: String,
    attachment: Attachment,
    netns: String,
}

impl Owner {
    /// The attachment of a request.
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            network: request.network.clone(),
            attachment: request.attachment(),
            netns: request.netns.clone(),
        }
    }

    pub(super) fn digest(&self) -> Digest {
        Digest::of(&self.network, &self.attachment)
    }

    /// The user data of the attachment's elements.
    pub(super) fn tag(&self) -> Userdata {
        let mut bytes = self.digest().0.to_vec();
        // A path that is too long is left out: the container then counts as existing.
        if self.netns.len() <= 128 {
            bytes.extend_from_slice(self.netns.as_bytes());
        }
        Userdata { comment: self.to_string(), bytes }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Attachment { container_id, ifname } = &self.attachment;
        write!(f, "{container_id}/{ifname} {}", self.network)
    }
}

/// The tag of an element that was read from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag {
    pub digest: Digest,
    netns: String,
    /// Container, interface and network, for messages.
    pub shown: String,
}

impl Tag {
    pub(super) fn read(found: &Userdata) -> Option<Self> {
        let (digest, netns) = found.bytes.split_first_chunk()?;
        Some(Self {
            digest: Digest(*digest),
            netns: String::from_utf8_lossy(netns).into_owned(),
            shown: found.comment.clone(),
        })
    }

    /// Whether the container is gone, from the view of an owner that claims the same element: its
    /// namespace does not exist, or belongs to the claimant. If in doubt, the container exists.
    pub(super) fn is_gone(&self, claimant: &Owner) -> bool {
        let is_removed = || Path::new(&self.netns).try_exists().is_ok_and(|exists| !exists);
        let is_inherited = || self.netns == claimant.netns && !self.is_same_container(claimant);
        !self.netns.is_empty() && (is_inherited() || is_removed())
    }

    /// Whether the tag belongs to the same container, on any interface. A container ID has no
    /// slash; a text without one was truncated.
    fn is_same_container(&self, owner: &Owner) -> bool {
        let named = self.shown.split_once('/');
        named.is_none_or(|(container, _)| container == owner.attachment.container_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner_of(container: &str, netns: &str) -> Owner {
        let attachment = Attachment { container_id: container.into(), ifname: "eth0".into() };
        Owner { network: "net".into(), attachment, netns: netns.into() }
    }

    fn owner(netns: &str) -> Owner {
        owner_of("c1", netns)
    }

    #[test]
    fn tag_of_removed_namespace_is_gone() {
        let other = owner_of("c2", "/run/netns/other");
        let check = |netns: &str, gone: bool| {
            let tag = Tag::read(&owner(netns).tag()).unwrap();
            assert_eq!(tag.digest, owner("").digest());
            assert_eq!((tag.shown.as_str(), tag.is_gone(&other)), ("c1/eth0 net", gone), "{netns}");
        };
        check("/proc/self/ns/net", false);
        check("/run/netns/no-such-namespace", true);
        check("", false);
        check(&format!("/run/{}", "x".repeat(200)), false);
        assert_eq!(Tag::read(&Userdata::default()), None);
    }

    #[test]
    fn tag_is_gone_if_claimant_has_its_namespace() {
        let here = "/proc/self/ns/net";
        let tag = Tag::read(&owner(here).tag()).unwrap();
        let check = |container: &str, netns: &str, gone: bool| {
            assert_eq!(tag.is_gone(&owner_of(container, netns)), gone, "{container} {netns}");
        };
        check("c2", here, true);
        check("c1", here, false);
        check("c2", "/proc/1/ns/net", false);
        let nowhere = Tag::read(&owner("").tag()).unwrap();
        assert!(!nowhere.is_gone(&owner_of("c2", "")));
    }

    #[test]
    fn digest_identifies_the_network() {
        let digest = owner("").digest();
        assert!(digest.is_of_network("net") && !digest.is_of_network("other"));
    }
}
