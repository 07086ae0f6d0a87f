// SPDX-License-Identifier: Apache-2.0
//! A lease as annotations of a Kubernetes node. The podCIDRs of the node are the subnets.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use gojson::DecodeError;
use ipnet::IpNet;
use kernel::Family;
use serde_json::Value;

use crate::backend::BackendData;
use crate::cidr::{Addresses, Prefixes};
use crate::lease::value::{address, go_json};
use crate::lease::{Attributes, Error, Lease};

/// Common prefix of the names of flannel's annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

/// Error for a text that cannot be an annotation prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {}", AnnotationPrefix::FORM)]
pub struct AnnotationPrefixError;

impl Default for AnnotationPrefix {
    fn default() -> Self {
        Self("flannel.alpha.coreos.com/".to_owned())
    }
}

impl FromStr for AnnotationPrefix {
    type Err = AnnotationPrefixError;

    /// Completes the prefix as flannel does: adds a slash to a domain, and a hyphen to a name after the
    /// slash.
    fn from_str(text: &str) -> Result<Self, AnnotationPrefixError> {
        let (domain, name) = text.split_once('/').unwrap_or((text, ""));
        let is_word = |word: &str| {
            let plain =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
            !word.is_empty() && word.bytes().all(plain)
        };
        let is_domain = domain.contains('.') && domain.split('.').all(is_word);
        if !is_domain || !(name.is_empty() || is_word(name)) {
            return Err(AnnotationPrefixError);
        }
        let hyphen = if name.is_empty() || name.ends_with('-') { "" } else { "-" };
        Ok(Self(format!("{domain}/{name}{hyphen}")))
    }
}

/// The fields of a Kubernetes node that make up its lease.
#[derive(Debug, Clone, Copy)]
pub struct NodeFacts<'a> {
    pub annotations: &'a BTreeMap<String, String>,
    pub pod_cidr: Option<&'a str>,
    pub pod_cidrs: &'a [String],
}

/// Addresses that an administrator set by annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overwrites {
    /// Selects the underlay interface, as the option `public-ip` does.
    pub node: Addresses,
    /// Published instead of the interface's addresses.
    pub public: Addresses,
}

impl AnnotationPrefix {
    /// Description of the expected text, for error messages.
    pub const FORM: &str = "a domain, and perhaps a slash and a name, in small letters";

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn name(&self, rest: &str) -> String {
        format!("{}{rest}", self.0)
    }

    /// Parses the lease of a node. Returns `None` if the node is not part of the network.
    pub fn read(&self, node: NodeFacts<'_>) -> Result<Option<Lease>, Error> {
        let text = |rest| node.annotations.get(&self.name(rest)).map(String::as_str);
        if text("kube-subnet-manager") != Some("true") {
            return Ok(None);
        }
        let subnets = pod_cidrs(node)?;
        let public = self.addresses(node.annotations, ["public-ip", "public-ipv6"])?;
        let data = BackendData::parse(
            text("backend-type").unwrap_or_default().to_owned(),
            self.json("backend-data", text("backend-data"))?.as_ref(),
            self.json("backend-v6-data", text("backend-v6-data"))?.as_ref(),
        )?;
        Ok(Some(Lease { subnets, attributes: Attributes { public, data } }))
    }

    /// Returns the annotations for a lease. `None` stands for an annotation that has to be removed.
    pub fn write(
        &self,
        attributes: &Attributes,
        overwrites: &Overwrites,
    ) -> BTreeMap<String, Option<String>> {
        let data = attributes.data.to_json();
        let json = |data: Option<_>| match data {
            None => "null".to_owned(),
            Some(data) => go_json(&data),
        };
        // Only vxlan omits the annotations of a family without data.
        let is_vxlan = matches!(attributes.data, BackendData::Vxlan(_));
        let has_v4 = !is_vxlan || data.v4.is_some();
        let has_v6 = match attributes.data {
            BackendData::Vxlan(_) | BackendData::Wireguard(_) => data.v6.is_some(),
            BackendData::HostGw | BackendData::Extension(_) => attributes.public.v6.is_some(),
            _ => false,
        };
        let v4 = overwrites.public.v4.or(attributes.public.v4).unwrap_or(Ipv4Addr::UNSPECIFIED);
        let v6 = overwrites.public.v6.or(attributes.public.v6).unwrap_or(Ipv6Addr::UNSPECIFIED);
        BTreeMap::from([
            (self.name("kube-subnet-manager"), Some("true".to_owned())),
            (self.name("backend-type"), Some(attributes.data.kind().to_owned())),
            (self.name("backend-data"), has_v4.then(|| json(data.v4))),
            (self.name("public-ip"), has_v4.then(|| v4.to_string())),
            (self.name("backend-v6-data"), has_v6.then(|| json(data.v6))),
            (self.name("public-ipv6"), has_v6.then(|| v6.to_string())),
        ])
    }

    /// Parses the annotations that an administrator may set.
    pub fn overwrites(
        &self,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Overwrites, DecodeError> {
        Ok(Overwrites {
            node: self.addresses(annotations, ["node-public-ip", "node-public-ipv6"])?,
            public: self
                .addresses(annotations, ["public-ip-overwrite", "public-ipv6-overwrite"])?,
        })
    }

    fn addresses(
        &self,
        annotations: &BTreeMap<String, String>,
        [v4, v6]: [&str; 2],
    ) -> Result<Addresses, DecodeError> {
        let (v4, v6) = (self.name(v4), self.name(v6));
        let text = |name: &String| annotations.get(name).map(String::as_str);
        Ok(Addresses {
            v4: address([&v4, "an IPv4 address"], text(&v4))?
                .filter(|address: &Ipv4Addr| !address.is_unspecified()),
            v6: address([&v6, "an IPv6 address"], text(&v6))?
                .filter(|address: &Ipv6Addr| !address.is_unspecified()),
        })
    }

    fn json(&self, rest: &str, text: Option<&str>) -> Result<Option<Value>, DecodeError> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        let invalid = |_| DecodeError::at(&self.name(rest), format!("{text:?}"), "expected JSON");
        serde_json::from_str(text).map(Some).map_err(invalid)
    }
}

/// Parses the podCIDRs: at most one of each family.
fn pod_cidrs(node: NodeFacts<'_>) -> Result<Prefixes, Error> {
    let given: Vec<&str> = match node.pod_cidrs {
        [] => node.pod_cidr.into_iter().collect(),
        cidrs => cidrs.iter().map(String::as_str).collect(),
    };
    let mut nets: Vec<IpNet> = Vec::new();
    for text in given.into_iter().filter(|text| !text.is_empty()) {
        let invalid = |problem| DecodeError::at("podCIDRs", format!("{text:?}"), problem);
        let net: IpNet = text.parse().map_err(|_| invalid("expected a network"))?;
        if nets.iter().any(|other| Family::of(other.addr()) == Family::of(net.addr())) {
            return Err(invalid("expected at most one network of each family").into());
        }
        nets.push(net);
    }
    Prefixes::of(nets).ok_or(Error::NoPodCidr)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::value::tests::any_attributes;
    use super::*;

    fn annotated(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let name = |rest| format!("flannel.alpha.coreos.com/{rest}");
        pairs.iter().map(|(rest, value)| (name(rest), (*value).to_owned())).collect()
    }

    fn read(
        annotations: &BTreeMap<String, String>,
        cidrs: &[&str],
    ) -> Result<Option<Lease>, String> {
        let pod_cidrs: Vec<String> = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
        let node = NodeFacts { annotations, pod_cidr: None, pod_cidrs: &pod_cidrs };
        AnnotationPrefix::default().read(node).map_err(|error| error.to_string())
    }

    const DUAL: &[(&str, &str)] = &[
        ("kube-subnet-manager", "true"),
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"36:f3:00:00:00:01"}"#),
        ("backend-v6-data", r#"{"VNI":1,"VtepMAC":"36:f3:00:00:00:02"}"#),
        ("public-ip", "192.168.90.1"),
        ("public-ipv6", "fd00:90::1"),
    ];

    #[test]
    fn flannels_annotations_are_parsed_and_printed() {
        let check = |pairs: &[(&str, &str)], cidrs: &[&str]| {
            let annotations = annotated(pairs);
            let lease = read(&annotations, cidrs).unwrap().unwrap();
            let written =
                AnnotationPrefix::default().write(&lease.attributes, &Overwrites::default());
            let set = written.into_iter().filter_map(|(name, value)| Some((name, value?)));
            assert_eq!(set.collect::<BTreeMap<_, _>>(), annotations);
            lease
        };
        let lease = check(DUAL, &["10.244.1.0/24", "fd00:244:0:1::/64"]);
        assert_eq!(lease.key(), "10.244.1.0-24&fd00:244:0:1::-64");
        let base = ("kube-subnet-manager", "true");
        let null = ("backend-data", "null");
        let ip = ("public-ip", "192.168.90.1");
        check(&[base, ("backend-type", "host-gw"), null, ip], &["10.244.1.0/24"]);
        check(&[base, ("backend-type", ""), null, ip], &["10.244.1.0/24"]);
        check(&[DUAL[0], DUAL[1], DUAL[3], DUAL[5]], &["fd00:244:0:1::/64"]);
        let v6 = [("backend-v6-data", "null"), ("public-ipv6", "fd00:90::1")];
        let both = [base, ("backend-type", "host-gw"), null, ip, v6[0], v6[1]];
        check(&both, &["10.244.1.0/24", "fd00:244:0:1::/64"]);
    }

    #[test]
    fn overwrite_is_published_stale_values_are_removed() {
        let mut annotations = annotated(&DUAL[..3]);
        annotations
            .extend(annotated(&[("public-ip", "10.0.0.1"), ("public-ip-overwrite", "8.8.8.8")]));
        let prefix = AnnotationPrefix::default();
        let overwrites = prefix.overwrites(&annotations).unwrap();
        let lease = read(&annotations, &["10.244.1.0/24"]).unwrap().unwrap();
        let written = prefix.write(&lease.attributes, &overwrites);
        let value = |rest: &str| written[&format!("flannel.alpha.coreos.com/{rest}")].as_deref();
        assert_eq!(value("public-ip"), Some("8.8.8.8"));
        assert_eq!((value("public-ipv6"), value("backend-v6-data")), (None, None));
    }

    #[test]
    fn node_outside_the_network_has_no_lease() {
        assert_eq!(read(&annotated(&DUAL[1..]), &["10.244.1.0/24"]), Ok(None));
        assert_eq!(read(&annotated(&[("kube-subnet-manager", "false")]), &[]), Ok(None));
    }

    #[test]
    fn invalid_values_are_named_in_errors() {
        let check = |pairs: &[(&str, &str)], cidrs: &[&str], words: &str| {
            let error = read(&annotated(&[&DUAL[..3], pairs].concat()), cidrs).unwrap_err();
            assert!(error.contains(words), "{error:?} should say {words:?}");
        };
        check(&[], &[], "the node has no podCIDR yet");
        check(&[], &[""], "the node has no podCIDR yet");
        check(&[], &["10.244.1.0"], r#"key "podCIDRs" is "10.244.1.0": expected a network"#);
        check(&[], &["10.244.1.0/24", "10.244.2.0/24"], "at most one network of each family");
        check(
            &[("public-ip", "x")],
            &["10.244.1.0/24"],
            "coreos.com/public-ip\" is \"x\": expected",
        );
        check(&[("backend-data", "{")], &["10.244.1.0/24"], "expected JSON");
        check(&[("backend-data", "{}")], &["10.244.1.0/24"], "BackendData.VtepMAC");
    }

    #[test]
    fn prefix_is_completed_as_flannel_does() {
        let check = |text: &str, expected: Option<&str>| {
            let parsed = text.parse::<AnnotationPrefix>().ok().map(|prefix| prefix.0);
            assert_eq!(parsed.as_deref(), expected, "{text:?}");
        };
        check("flannel.alpha.coreos.com", Some("flannel.alpha.coreos.com/"));
        check("a.b/", Some("a.b/"));
        check("a.b/pre", Some("a.b/pre-"));
        check("a.b/pre-", Some("a.b/pre-"));
        for bad in ["", "/", "a", "a/b", "a.b/c/d", "A.b", "a..b", "a.b/C"] {
            check(bad, None);
        }
    }

    proptest! {
        /// Values that a backend does not use are not printed.
        #[test]
        fn printed_annotations_parse_to_the_same_data(attributes in any_attributes()) {
            let prefix = AnnotationPrefix::default();
            let written = prefix.write(&attributes, &Overwrites::default());
            let set = written.clone().into_iter().filter_map(|(name, value)| Some((name, value?)));
            let lease = read(&set.collect(), &["10.244.1.0/24"]).unwrap().unwrap();
            prop_assert_eq!(&lease.attributes.data, &attributes.data);
            prop_assert_eq!(prefix.write(&lease.attributes, &Overwrites::default()), written);
        }

        #[test]
        fn parsing_any_text_does_not_panic(values: [String; 5], cidr: String) {
            let pairs = DUAL[1..].iter().zip(&values).map(|(pair, v)| (pair.0, v.as_str()));
            let pairs: Vec<_> = std::iter::once(DUAL[0]).chain(pairs).collect();
            let annotations = annotated(&pairs);
            let _ = (read(&annotations, &[&cidr]), cidr.parse::<AnnotationPrefix>());
        }
    }
}
