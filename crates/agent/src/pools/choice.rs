// SPDX-License-Identifier: Apache-2.0
//! How labels and annotations of a pod and its namespace choose the pools of a request. Pure.

use agent_client::ipam::{PodInfo, Texts};
use ipam::node::AssignRequest;
use serde_json::Value;

/// Prefixes of the annotations that the plugins and the agent read.
const PREFIXES: [&str; 2] = [PREFIX, "qos.projectcalico.org/"];

const PREFIX: &str = "cni.projectcalico.org/";

/// Returns whether an annotation means anything here.
pub(super) fn is_relevant(annotation: &str) -> bool {
    PREFIXES.iter().any(|prefix| annotation.starts_with(prefix))
}

/// Applies annotations and labels to a request. As in Calico, the annotation of the pod has precedence over that
/// of the namespace, and both over the configuration.
pub(super) fn apply(info: &PodInfo, request: &mut AssignRequest) -> Result<(), String> {
    let labels = info.namespace_labels.iter();
    let labels = labels.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())));
    request.namespace_labels = labels.collect();
    if let Some(pools) = list(info, "ipv4pools")? {
        request.ipv4_pools = pools;
    }
    if let Some(pools) = list(info, "ipv6pools")? {
        request.ipv6_pools = pools;
    }
    if let Some(families) = list(info, "ipFamilies")? {
        let has = |family: &str| families.iter().any(|one| one == family);
        if families.is_empty() || families.iter().any(|one| one != "IPv4" && one != "IPv6") {
            let name = format!("{PREFIX}ipFamilies");
            return Err(format!("annotation {name:?} has {families:?}, expected IPv4 and IPv6"));
        }
        (request.ipv4, request.ipv6) = (has("IPv4"), has("IPv6"));
    }
    Ok(())
}

/// Returns a list of texts. An empty text counts as absent, as in Calico.
fn list(info: &PodInfo, name: &str) -> Result<Option<Vec<String>>, String> {
    let name = format!("{PREFIX}{name}");
    let text = |texts: &Texts| {
        let text = texts.get(&name).and_then(Value::as_str).filter(|text| !text.is_empty());
        text.map(str::to_owned)
    };
    let Some(text) = text(&info.annotations).or_else(|| text(&info.namespace_annotations)) else {
        return Ok(None);
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|_| {
        format!("annotation {name:?} is {text:?}, expected a JSON list of texts such as [\"a\"]")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipam::Timestamp;
    use ipam::node::Attachment;
    use serde_json::json;

    use super::*;

    fn request() -> AssignRequest {
        AssignRequest {
            attachment: Attachment {
                handle: "net.c1".to_owned(),
                network: "net".to_owned(),
                container_id: "c1".to_owned(),
                interface: "eth0".to_owned(),
                netns: None,
                netns_inode: None,
                pod: None,
                tunnel: None,
            },
            ipv4: true,
            ipv6: false,
            ipv4_pools: vec!["configured".to_owned()],
            ipv6_pools: Vec::new(),
            addresses: Vec::new(),
            namespace_labels: BTreeMap::new(),
            deadline: Timestamp::from_millis(0),
        }
    }

    fn texts(texts: &[(&str, &str)]) -> Texts {
        texts.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect()
    }

    fn info(pod: &[(&str, &str)], namespace: &[(&str, &str)]) -> PodInfo {
        PodInfo {
            annotations: texts(pod),
            namespace_annotations: texts(namespace),
            namespace_labels: texts(&[("team", "a")]),
            ..PodInfo::default()
        }
    }

    #[test]
    fn annotation_of_the_pod_comes_before_that_of_the_namespace() {
        let namespace = [
            ("cni.projectcalico.org/ipv4pools", r#"["of-namespace"]"#),
            ("cni.projectcalico.org/ipv6pools", r#"["six"]"#),
        ];
        let mut chosen = request();
        apply(&info(&[], &namespace), &mut chosen).unwrap();
        assert_eq!(
            (&chosen.ipv4_pools[..], &chosen.ipv6_pools[..]),
            (&["of-namespace".to_owned()][..], &["six".to_owned()][..])
        );
        assert_eq!(chosen.namespace_labels["team"], "a");
        let pod = [
            ("cni.projectcalico.org/ipv4pools", r#"["10.6.0.0/16"]"#),
            ("cni.projectcalico.org/ipFamilies", r#"["IPv6"]"#),
        ];
        let mut chosen = request();
        apply(&info(&pod, &namespace), &mut chosen).unwrap();
        assert_eq!(chosen.ipv4_pools, ["10.6.0.0/16"]);
        assert_eq!((chosen.ipv4, chosen.ipv6), (false, true));
        let mut chosen = request();
        apply(&info(&[("cni.projectcalico.org/ipv4pools", "")], &[]), &mut chosen).unwrap();
        assert_eq!(chosen.ipv4_pools, ["configured"]);
    }

    #[test]
    fn malformed_annotation_is_named() {
        for (name, bad) in [("ipv4pools", "p"), ("ipv6pools", "[1]"), ("ipFamilies", "[\"IPv5\"]")]
        {
            let name = format!("{PREFIX}{name}");
            let error = apply(&info(&[(&name, bad)], &[]), &mut request()).unwrap_err();
            assert!(error.contains(&name), "{error}");
        }
    }
}
