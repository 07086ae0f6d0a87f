// SPDX-License-Identifier: Apache-2.0
//! A pod's name, `NAMESPACE/NAME`, and the names of files and namespaces made from it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

use crate::id;

/// Longer ones are cut: a file's name may have 255 bytes, and ours are parts of longer ones.
const LONGEST_FILE: usize = 200;

/// A pod within a cluster, by Kubernetes' rules for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl PodName {
    /// The pod as part of a file's name. An underscore stands in no pod's name, so that two pods
    /// never share one.
    pub fn file(&self) -> String {
        let whole = format!("{}_{}", self.namespace, self.name);
        if whole.len() <= LONGEST_FILE {
            return whole;
        }
        let digest = id::digest(whole.as_bytes());
        format!("{}_{digest}", &whole[..LONGEST_FILE - digest.len() - 1])
    }

    /// The name of the network namespace that we make for it.
    pub fn netns(&self) -> String {
        format!("podwire-{}", self.file())
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
            bail!("{text:?} is no pod: write NAMESPACE/NAME, such as default/web");
        };
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            label.bytes().all(|byte| is_plain(byte) || byte == b'-')
                && label.bytes().next().is_some_and(is_plain)
                && label.bytes().last().is_some_and(is_plain)
        };
        if namespace.len() > 63 || !is_label(namespace) {
            bail!(
                "{namespace:?} is no namespace's name: up to 63 of a-z, 0-9 and '-', \
                 a letter or digit at both ends"
            );
        }
        if name.len() > 253 || !name.split('.').all(is_label) {
            bail!(
                "{name:?} is no pod's name: up to 253 of a-z, 0-9, '-' and '.', \
                 a letter or digit at both ends"
            );
        }
        Ok(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_held_to_kubernetes() {
        let long = format!("default/{}", "x".repeat(253));
        for good in ["default/web", "a/b.c-d.0", "kube-system/x", &long] {
            assert_eq!(good.parse::<PodName>().unwrap().to_string(), good);
        }
        let too_long = format!("default/{}", "x".repeat(254));
        for bad in ["web", "/web", "default/", "a/b/c", "A/b", "a/-b", "a/b_c", "a/..", &too_long] {
            assert!(bad.parse::<PodName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_are_unique_and_short() {
        let file = |text: &str| text.parse::<PodName>().unwrap().file();
        assert_ne!(file("a-b/c"), file("a/b-c"));
        let long = |last: &str| file(&format!("default/{}{last}", "x".repeat(252)));
        assert_eq!(long("a").len(), LONGEST_FILE);
        assert_ne!(long("a"), long("b"));
        assert_eq!("default/web".parse::<PodName>().unwrap().netns(), "podwire-default_web");
    }
}
