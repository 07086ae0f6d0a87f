// SPDX-License-Identifier: Apache-2.0
//! Capability arguments for host ports, bandwidth and address ranges, in kubelet's form.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::port::PortMapping;
use super::quantity;

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// The largest burst that old kernels accept; in practice no limit.
const BURST: i32 = i32::MAX;

/// Builds the capability arguments of a pod.
pub(crate) fn arguments(
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

/// Warnings for capabilities that no plugin of the network has.
pub(crate) fn unsupported(
    arguments: &Map<String, Value>,
    enabled: &BTreeSet<String>,
) -> Vec<String> {
    let effect = |capability: &str| match capability {
        "portMappings" => "host ports are not forwarded",
        "bandwidth" => "bandwidth is not limited",
        _ => "the pod CIDR is not passed on",
    };
    arguments
        .keys()
        .filter(|capability| !enabled.contains(*capability))
        .map(|capability| {
            format!(
                "{}: no plugin of the network has capability {capability:?}",
                effect(capability)
            )
        })
        .collect()
}

/// Warnings for host ports on an address whose family the pod does not have.
pub(crate) fn unreachable(ports: &[PortMapping], pod: &[IpAddr]) -> Vec<String> {
    let has_no_family = |address: &IpAddr| pod.iter().all(|own| own.is_ipv4() != address.is_ipv4());
    let unreachable =
        ports.iter().filter_map(|port| Some((port, port.host_ip.filter(has_no_family)?)));
    unreachable
        .map(|(port, address)| {
            let (port, family) = (port.host_port, if address.is_ipv4() { "IPv4" } else { "IPv6" });
            format!("port {port} of {address} is not forwarded: the pod has no {family} address")
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
    fn port_of_a_missing_family_is_reported() {
        let ports =
            ["8080:80", "192.0.2.1:81:80", "[fd00::1]:82:80"].map(|port| port.parse().unwrap());
        let check = |pod: &[&str], expected: &[&str]| {
            let pod: Vec<IpAddr> = pod.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(unreachable(&ports, &pod), expected);
        };
        check(&["10.1.0.2", "fd00::2"], &[]);
        let warning = "port 82 of fd00::1 is not forwarded: the pod has no IPv6 address";
        check(&["10.1.0.2"], &[warning]);
    }

    #[test]
    fn arguments_have_kubelets_form() {
        let ports = ["8080:80".parse().unwrap()];
        let annotations = [
            (INGRESS.to_owned(), "10M".to_owned()),
            ("example.com/other".to_owned(), "x".to_owned()),
        ];
        let cidrs = ["10.1.0.5/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let built = arguments(&ports, &annotations, &cidrs).unwrap();
        let expected = json!({
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 2_147_483_647},
            "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
        });
        assert_eq!(Value::Object(built), expected);
        assert!(arguments(&[], &[], &[]).unwrap().is_empty());
    }

    #[test]
    fn invalid_bandwidth_error_names_the_annotation() {
        let annotations = [(EGRESS.to_owned(), "1".to_owned())];
        let error = arguments(&[], &annotations, &[]).unwrap_err();
        assert!(format!("{error:#}").contains("kubernetes.io/egress-bandwidth"), "{error:#}");
    }

    #[test]
    fn unsupported_capability_is_reported() {
        let built = arguments(&["8080:80".parse().unwrap()], &[], &[]).unwrap();
        assert_eq!(unsupported(&built, &BTreeSet::from(["portMappings".to_owned()])), [""; 0]);
        let warnings = unsupported(&built, &BTreeSet::new());
        assert!(warnings[0].starts_with("host ports are not forwarded: "), "{warnings:?}");
    }
}
