// SPDX-License-Identifier: Apache-2.0
//! A host port that is forwarded to a port of the pod, as written in `--port` and in the capability
//! `portMappings`.

use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

/// One entry of the capability `portMappings`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PortMapping {
    pub(crate) host_port: u16,
    pub(crate) container_port: u16,
    pub(crate) protocol: Protocol,
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub(crate) host_ip: Option<IpAddr>,
}

/// Protocols that Kubernetes supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl FromStr for PortMapping {
    type Err = anyhow::Error;

    /// Parses `[HOSTIP:]HOSTPORT:PORT[/PROTOCOL]`; an IPv6 address is in brackets.
    fn from_str(text: &str) -> Result<PortMapping> {
        let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let Some((host, container)) = ports.rsplit_once(':') else {
            bail!("{text:?} is not a port mapping: expected HOSTPORT:PORT, such as 8080:80/tcp");
        };
        let (host_ip, host_port) = match host.rsplit_once(':') {
            None => (None, host),
            Some((ip, port)) => (Some(host_address(ip)?), port),
        };
        Ok(PortMapping {
            host_port: port(host_port)?,
            container_port: port(container)?,
            protocol: self::protocol(protocol)?,
            host_ip,
        })
    }
}

fn host_address(text: &str) -> Result<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address: IpAddr =
        bare.unwrap_or(text).parse().with_context(|| format!("{text:?} is not an IP address"))?;
    ensure!(
        address.is_ipv6() == bare.is_some(),
        "{text:?}: IPv6 addresses need brackets, IPv4 addresses must not have them"
    );
    Ok(address)
}

fn port(text: &str) -> Result<u16> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => bail!("{text:?} is not a port: expected a number from 1 to 65535"),
    }
}

fn protocol(text: &str) -> Result<Protocol> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => bail!("{text:?} is not a protocol: expected tcp, udp or sctp"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mapping_is_parsed_and_serialized() {
        let check = |text: &str, expected: serde_json::Value| {
            let mapping: PortMapping = text.parse().unwrap();
            assert_eq!(serde_json::to_value(mapping).unwrap(), expected, "{text}");
        };
        check("8080:80", json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}));
        check("53:5353/UDP", json!({"hostPort": 53, "containerPort": 5353, "protocol": "udp"}));
        check(
            "127.0.0.1:8080:80/sctp",
            json!({
                "hostIP": "127.0.0.1", "hostPort": 8080, "containerPort": 80, "protocol": "sctp"
            }),
        );
        check(
            "[::1]:8080:80",
            json!({"hostIP": "::1", "hostPort": 8080, "containerPort": 80, "protocol": "tcp"}),
        );
    }

    #[test]
    fn invalid_mapping_is_explained() {
        let check = |text: &str, part: &str| {
            let error = text.parse::<PortMapping>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("80", "not a port mapping");
        check("0:80", "\"0\" is not a port");
        check("80:65536", "\"65536\" is not a port");
        check("80:80/icmp", "\"icmp\" is not a protocol");
        check("host:80:80", "\"host\" is not an IP address");
        check("::1:80:80", "brackets");
        check("[10.0.0.1]:80:80", "brackets");
    }
}
