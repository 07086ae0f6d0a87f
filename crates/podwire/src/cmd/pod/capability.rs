// SPDX-License-Identifier: Apache-2.0
//! Ports, bandwidth and address ranges as capability arguments, in kubelet's form.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::port::PortMapping;
use super::quantity;

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// The largest burst that old kernels take, and as good as none.
const BURST: i32 = i32::MAX;

/// What is asked for a pod, as values of capabilities.
pub fn arguments(
    ports: &[PortMapping],
    annotations: &[(String, String)],
    pod_cidrs: &[IpNet],
) -> Result<Map<String, Value>> {
    let mut arguments = Map::new();
    if !ports.is_empty() {
        arguments.insert("portMappings".into(), json!(ports));
    }
    let bandwidth = bandwidth(annotations)?;
    if !bandwidth.is_empty() {
        arguments.insert("bandwidth".into(), bandwidth.into());
    }
    if !pod_cidrs.is_empty() {
        let ranges: Vec<Value> =
            pod_cidrs.iter().map(|cidr| json!([{ "subnet": cidr.trunc() }])).collect();
        arguments.insert("ipRanges".into(), ranges.into());
    }
    Ok(arguments)
}

/// Warnings for what is asked and no plugin of the network can do.
pub fn unmet(arguments: &Map<String, Value>, enabled: &BTreeSet<String>) -> Vec<String> {
    let what = |capability: &str| match capability {
        "portMappings" => "host ports do not lead to the pod",
        "bandwidth" => "bandwidth is not limited",
        _ => "the range of addresses is not passed on",
    };
    arguments
        .keys()
        .filter(|capability| !enabled.contains(*capability))
        .map(|capability| {
            format!("{}: no plugin of the network has capability {capability:?}", what(capability))
        })
        .collect()
}

/// Warnings for ports of an address of the host, where the pod has none of its family.
pub fn unreached(ports: &[PortMapping], pod: &[IpAddr]) -> Vec<String> {
    let is_lost = |address: &IpAddr| pod.iter().all(|own| own.is_ipv4() != address.is_ipv4());
    let lost = ports.iter().filter_map(|port| Some((port, port.host_ip.filter(is_lost)?)));
    lost.map(|(port, address)| {
        let (port, family) = (port.host_port, if address.is_ipv4() { "IPv4" } else { "IPv6" });
        format!("port {port} of {address} does not lead to the pod, which has no {family} address")
    })
    .collect()
}

fn bandwidth(annotations: &[(String, String)]) -> Result<Map<String, Value>> {
    let mut limits = Map::new();
    for (key, text) in annotations {
        let (rate, burst) = match key.as_str() {
            INGRESS => ("ingressRate", "ingressBurst"),
            EGRESS => ("egressRate", "egressBurst"),
            _ => continue,
        };
        let bits = quantity::bandwidth(text).with_context(|| format!("annotation {key}"))?;
        limits.insert(rate.into(), bits.into());
        limits.insert(burst.into(), BURST.into());
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_family_that_the_pod_lacks_are_told_of() {
        let ports =
            ["8080:80", "192.0.2.1:81:80", "[fd00::1]:82:80"].map(|port| port.parse().unwrap());
        let check = |pod: &[&str], expected: &[&str]| {
            let pod: Vec<IpAddr> = pod.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(unreached(&ports, &pod), expected);
        };
        check(&["10.1.0.2", "fd00::2"], &[]);
        let words = "port 82 of fd00::1 does not lead to the pod, which has no IPv6 address";
        check(&["10.1.0.2"], &[words]);
    }

    #[test]
    fn arguments_have_kubelets_form() {
        let ports = ["8080:80".parse().unwrap()];
        let annotations = [
            (INGRESS.to_owned(), "10M".to_owned()),
            ("example.com/other".to_owned(), "x".to_owned()),
        ];
        let cidrs = ["10.1.0.5/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let found = arguments(&ports, &annotations, &cidrs).unwrap();
        let expected = json!({
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 2_147_483_647},
            "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
        });
        assert_eq!(Value::Object(found), expected);
        assert!(arguments(&[], &[], &[]).unwrap().is_empty());
    }

    #[test]
    fn wrong_bandwidth_names_the_annotation() {
        let annotations = [(EGRESS.to_owned(), "1".to_owned())];
        let error = arguments(&[], &annotations, &[]).unwrap_err();
        assert!(format!("{error:#}").contains("kubernetes.io/egress-bandwidth"), "{error:#}");
    }

    #[test]
    fn unmet_wishes_are_told() {
        let wanted = arguments(&["8080:80".parse().unwrap()], &[], &[]).unwrap();
        assert_eq!(unmet(&wanted, &BTreeSet::from(["portMappings".to_owned()])), [""; 0]);
        let told = unmet(&wanted, &BTreeSet::new());
        assert!(told[0].starts_with("host ports do not lead to the pod"), "{told:?}");
    }
}
