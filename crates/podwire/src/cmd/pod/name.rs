// SPDX-License-Identifier: Apache-2.0
//! Name of a pod, `NAMESPACE/NAME`, and the names of files and network namespaces derived from it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

use crate::container_id;

/// Longer names are shortened: a file name has at most 255 bytes, including prefixes and suffixes.
const MAX_STEM: usize = 200;

/// Name of a pod, valid by the rules of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodName {
    /// File name without extension. Pod names contain no underscore, so that two pods never share a
    /// file.
    pub(crate) fn file_stem(&self) -> String {
        let whole = format!("{}_{}", self.namespace, self.name);
        if whole.len() <= MAX_STEM {
            return whole;
        }
        let digest = container_id::digest(whole.as_bytes());
        format!("{}_{digest}", &whole[..MAX_STEM - digest.len() - 1])
    }

    /// Name of the network namespace that podwire creates for the pod.
    pub(crate) fn netns(&self) -> String {
        format!("podwire-{}", self.file_stem())
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for PodName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<PodName> {
        let Some((namespace, name)) = text.split_once('/') else {
            bail!("{text:?} is not a pod: expected NAMESPACE/NAME, such as default/web");
        };
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            label.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
                && label.bytes().next().is_some_and(is_alphanumeric)
                && label.bytes().last().is_some_and(is_alphanumeric)
        };
        if namespace.len() > 63 || !is_label(namespace) {
            bail!(
                "{namespace:?} is not a valid namespace: expected at most 63 of a-z, 0-9 and '-', \
                 with a letter or digit at both ends"
            );
        }
        if name.len() > 253 || !name.split('.').all(is_label) {
            bail!(
                "{name:?} is not a valid pod name: expected at most 253 of a-z, 0-9, '-' and '.', \
                 with a letter or digit at both ends"
            );
        }
        Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_kubernetes() {
        let long = format!("default/{}", "x".repeat(253));
        for valid in ["default/web", "a/b.c-d.0", "kube-system/x", &long] {
            assert_eq!(valid.parse::<PodName>().unwrap().to_string(), valid);
        }
        let too_long = format!("default/{}", "x".repeat(254));
        for invalid in
            ["web", "/web", "default/", "a/b/c", "A/b", "a/-b", "a/b_c", "a/..", &too_long]
        {
            assert!(invalid.parse::<PodName>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn file_stems_are_unique_and_short() {
        let stem = |text: &str| text.parse::<PodName>().unwrap().file_stem();
        assert_ne!(stem("a-b/c"), stem("a/b-c"));
        let long = |last: &str| stem(&format!("default/{}{last}", "x".repeat(252)));
        assert_eq!(long("a").len(), MAX_STEM);
        assert_ne!(long("a"), long("b"));
        assert_eq!("default/web".parse::<PodName>().unwrap().netns(), "podwire-default_web");
    }
}
