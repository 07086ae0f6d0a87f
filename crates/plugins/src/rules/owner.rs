// SPDX-License-Identifier: Apache-2.0
//! Whose an element is: a digest to compare, the namespace to see whether the container lives, and a
//! comment for people.

use std::path::Path;

use cni::{Attachment, Request};
use kernel::nft::Userdata;

use crate::identity;

/// Bytes of a digest: eight of the network, eight of the attachment.
const DIGEST_LEN: usize = 16;

/// Network and attachment in sixteen bytes, the network's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; DIGEST_LEN]);

impl Digest {
    pub fn of(network: &str, attachment: &Attachment) -> Self {
        let mut bytes = [0; DIGEST_LEN];
        bytes[..8].copy_from_slice(&network_digest(network));
        let words = [attachment.container_id.as_str(), &attachment.ifname];
        bytes[8..].copy_from_slice(&identity::digest(&words).to_be_bytes());
        Self(bytes)
    }

    pub fn is_of_network(&self, network: &str) -> bool {
        self.0[..8] == network_digest(network)
    }
}

fn network_digest(network: &str) -> [u8; 8] {
    identity::digest(&[network]).to_be_bytes()
}

/// An attachment of a network, with its container's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    network: String,
    attachment: Attachment,
    netns: String,
}

impl Owner {
    /// The one that a request is about.
    pub fn of(request: &Request) -> Self {
        Self {
            network: request.network.clone(),
            attachment: request.attachment(),
            netns: request.netns.clone(),
        }
    }

    pub(super) fn digest(&self) -> Digest {
        Digest::of(&self.network, &self.attachment)
    }

    /// What its elements bear.
    pub(super) fn tag(&self) -> Userdata {
        let mut bytes = self.digest().0.to_vec();
        // One that is too long says nothing: its container then counts as alive.
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

/// The tag of an element that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag {
    pub digest: Digest,
    netns: String,
    /// Container, interface and network for people.
    pub shown: String,
}

impl Tag {
    pub fn read(found: &Userdata) -> Option<Self> {
        let (digest, netns) = found.bytes.split_first_chunk()?;
        Some(Self {
            digest: Digest(*digest),
            netns: String::from_utf8_lossy(netns).into_owned(),
            shown: found.comment.clone(),
        })
    }

    /// Whether the container is gone, for one that asks for the same: its namespace is, or is the other
    /// container's by now. In doubt it is there.
    pub fn is_dead(&self, claimant: &Owner) -> bool {
        let is_gone = || Path::new(&self.netns).try_exists().is_ok_and(|there| !there);
        let is_inherited = || self.netns == claimant.netns && !self.is_of(claimant);
        !self.netns.is_empty() && (is_inherited() || is_gone())
    }

    /// Whether it is of the same container, maybe of another interface. No name of a container has a
    /// slash; where there is none the text was cut off.
    fn is_of(&self, owner: &Owner) -> bool {
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
    fn a_tag_tells_owner_and_life() {
        let other = owner_of("c2", "/run/netns/other");
        let check = |netns: &str, dead: bool| {
            let tag = Tag::read(&owner(netns).tag()).unwrap();
            assert_eq!(tag.digest, owner("").digest());
            assert_eq!((tag.shown.as_str(), tag.is_dead(&other)), ("c1/eth0 net", dead), "{netns}");
        };
        check("/proc/self/ns/net", false);
        check("/run/netns/no-such-namespace", true);
        check("", false);
        check(&format!("/run/{}", "x".repeat(200)), false);
        assert_eq!(Tag::read(&Userdata::default()), None);
    }

    #[test]
    fn a_namespace_is_of_one_container() {
        let here = "/proc/self/ns/net";
        let tag = Tag::read(&owner(here).tag()).unwrap();
        let check = |container: &str, netns: &str, dead: bool| {
            assert_eq!(tag.is_dead(&owner_of(container, netns)), dead, "{container} {netns}");
        };
        check("c2", here, true);
        check("c1", here, false);
        check("c2", "/proc/1/ns/net", false);
        let nowhere = Tag::read(&owner("").tag()).unwrap();
        assert!(!nowhere.is_dead(&owner_of("c2", "")));
    }

    #[test]
    fn a_digest_tells_networks_apart() {
        let digest = owner("").digest();
        assert!(digest.is_of_network("net") && !digest.is_of_network("other"));
    }
}
