// SPDX-License-Identifier: Apache-2.0
//! Calico's names of host interfaces, and the owner tag that podwire adds to them. The name belongs
//! to the pod: the interface of its next sandbox has the same name. The tag tells the two apart.

use agent_client::ipam::Pod;
use cni::{Attachment, Code, Error, Request};
use kernel::IfName;
use kernel::link::Link;

use crate::attach::names;

/// Prefix of the names unless FELIX_INTERFACEPREFIX is set.
pub(super) const PREFIX: &str = "cali";

/// Overrides the prefix for pods of Kubernetes. Of a list, the first item counts.
const PREFIX_VARIABLE: &str = "FELIX_INTERFACEPREFIX";

/// Number of characters after the prefix.
const LENGTH: usize = 11;

/// Maximum length of an alias: `IFALIASZ` of linux/if.h without the NUL byte.
const MAX_ALIAS: usize = 255;

/// The pod that CNI_ARGS names; `None` outside Kubernetes.
pub(crate) fn pod(request: &Request) -> Result<Option<Pod>, Error> {
    let args = request.args()?;
    let text = |key| args.get(key).unwrap_or_default().to_owned();
    let (namespace, name) = (text("K8S_POD_NAMESPACE"), text("K8S_POD_NAME"));
    let is_pod = !namespace.is_empty() && !name.is_empty();
    Ok(is_pod.then(|| Pod { namespace, name, uid: text("K8S_POD_UID") }))
}

/// The prefix of the names of pods.
pub(super) fn prefix() -> String {
    let set = std::env::var(PREFIX_VARIABLE).unwrap_or_default();
    let first = set.split(',').next().unwrap_or_default();
    if first.is_empty() { PREFIX.to_owned() } else { first.to_owned() }
}

/// The name of the host end.
pub(super) fn host_ifname(request: &Request, pod: Option<&Pod>) -> Result<IfName, Error> {
    let name = match pod {
        Some(Pod { namespace, name, .. }) => {
            let digest = sha1(format!("{namespace}.{name}").as_bytes());
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            prefix() + &digits[..LENGTH]
        }
        None => PREFIX.chars().chain(request.container_id.chars().take(LENGTH)).collect(),
    };
    name.parse().map_err(|cause: kernel::IfNameError| {
        Error::because(Code::BAD_ENVIRONMENT, PREFIX_VARIABLE, &cause)
    })
}

/// The owner of an interface with the name of a pod's host end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This attachment.
    This,
    /// Another interface of the same container, whose host end would have the same name.
    SameContainer,
    /// Another container.
    Other,
    /// The interface has no tag: Calico created it.
    Untagged,
}

/// The owner according to link group and alias. The group is set when the interface is created, the
/// alias a moment later.
pub(super) fn owner(link: &Link, network: &str, attachment: &Attachment) -> Owner {
    let alias = link.alias.as_deref();
    if link.group == names::attachment_group(network, attachment)
        && alias.is_none_or(|alias| alias == tag(network, attachment))
    {
        return Owner::This;
    }
    let Some(words) = alias.and_then(|alias| alias.strip_prefix(TAG)) else {
        return if link.group == 0 { Owner::Untagged } else { Owner::Other };
    };
    match words.split(' ').nth(1) {
        Some(id) if id == attachment.container_id => Owner::SameContainer,
        _ => Owner::Other,
    }
}

const TAG: &str = "podwire calico ";

/// The alias of an attachment's host end. Networks and container IDs contain no spaces.
pub(super) fn tag(network: &str, attachment: &Attachment) -> String {
    let Attachment { container_id, ifname } = attachment;
    let tag = format!("{TAG}{network} {container_id} {ifname}");
    tag.chars().take(MAX_ALIAS).collect()
}

/// Whether this is a host end of the network, with the group of one of its attachments.
pub(super) fn is_of_network(link: &Link, network: &str, prefix: &str) -> bool {
    let is_name = |prefix| link.name.as_str().starts_with(prefix);
    link.is_kind("veth")
        && (is_name(PREFIX) || is_name(prefix))
        && names::is_attachment_group(network, link.group)
        && link.alias.as_deref().is_none_or(|alias| {
            let words = alias.strip_prefix(TAG);
            words.is_some_and(|words| words.split(' ').next() == Some(network))
        })
}

/// SHA-1, which is good enough for names and which Calico chose for them.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((message.len() + 9).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(8 * message.len() as u64).to_be_bytes());
    for block in padded.chunks_exact(64) {
        let mut words = [0_u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        for t in 16..80 {
            let mixed = words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16];
            words[t] = mixed.rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (t, word) in words.into_iter().enumerate() {
            let (f, k) = match t / 20 {
                0 => ((b & c) | (!b & d), 0x5a82_7999),
                1 => (b ^ c ^ d, 0x6ed9_eba1),
                2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6_u32),
            };
            let sum = [f, e, k, word].into_iter().fold(a.rotate_left(5), u32::wrapping_add);
            (a, b, c, d, e) = (sum, a, b.rotate_left(30), c, d);
        }
        for (sum, value) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(value);
        }
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by `sha1sum`.
    #[test]
    fn sha1_is_that_of_sha1sum() {
        let check = |message: &[u8], expected: &str| {
            let digits: String = sha1(message).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digits, expected, "{message:?}");
        };
        check(b"", "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        check(b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d");
        check(&[b'a'; 55], "c1c8bbdc22796e28c0e15163d20899b65621d65a");
        check(&[b'a'; 56], "c2db330f6083854c99d4b5bfb6e8f29f201be699");
        check(&[b'a'; 200], "e61cfffe0d9195a525fc6cf06ca2d77119c24a40");
    }
}
