// SPDX-License-Identifier: Apache-2.0
//! The configuration of portmap. Pure functions.

use std::net::IpAddr;

use cni::{Error, Request};
use serde::Deserialize;

use super::conditions::Conditions;
use crate::compat::iptables::{CHAIN_NAME, is_chain_name};
use kernel::Family;

/// The default of the Go plugin. Kubernetes uses bits 14 and 15.
const MARK_BIT: i64 = 13;

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PortmapConf {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Vec<String>,
    conditions_v6: Vec<String>,
    runtime_config: RuntimeConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConf {
    port_mappings: Vec<MappingConf>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct MappingConf {
    host_port: Option<i64>,
    container_port: Option<i64>,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// The form of the rules in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Elements of maps in the table `podwire`.
    Nftables,
    /// Rules made by the program iptables-restore.
    Iptables(Verbatim),
}

/// Settings that are copied into iptables rules unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verbatim {
    pub mark: Mark,
    pub conditions_v4: Vec<String>,
    pub conditions_v6: Vec<String>,
    /// The port of each mapping, including duplicates.
    pub listed: Vec<(Protocol, u16)>,
}

/// How connections that must be masqueraded are marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    Bit(u8),
    /// By an external chain.
    By(String),
}

impl Verbatim {
    pub(crate) fn conditions(&self, family: Family) -> &[String] {
        match family {
            Family::V4 => &self.conditions_v4,
            Family::V6 => &self.conditions_v6,
        }
    }
}

/// Protocols that have ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Parses the name, in upper or lower case.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str().eq_ignore_ascii_case(name))
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.number() == number)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// The number, `IPPROTO_*` of linux/in.h.
    pub(crate) fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

/// A port of the host, on one address or on all of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostPort {
    pub family: Family,
    pub address: Option<IpAddr>,
    pub protocol: Protocol,
    pub port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} port {} of ", self.protocol.as_str(), self.port)?;
        match (self.address, self.family) {
            (Some(address), _) => write!(f, "{address}"),
            (None, Family::V4) => f.write_str("every IPv4 address"),
            (None, Family::V6) => f.write_str("every IPv6 address"),
        }
    }
}

/// A mapping of a host port to a container port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub from: HostPort,
    pub to: u16,
}

/// The parsed configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portmap {
    pub backend: Backend,
    /// Containers of the same network and the host itself can use the mapped ports too.
    pub snat: bool,
    /// All traffic to the container is masqueraded.
    pub masq_all: bool,
    pub conditions_v4: Option<Conditions>,
    pub conditions_v6: Option<Conditions>,
    /// Each host port once per family.
    pub mappings: Vec<Mapping>,
}

impl Portmap {
    pub(crate) fn parse(request: &Request) -> Result<Self, Error> {
        let conf: PortmapConf = request.conf_or("failed to parse network configuration")?;
        let mark = mark(&conf)?;
        let backend = backend(&conf, mark)?;
        let conditions = |key: &str, words: &[String], family| {
            let problem = |problem| Error::invalid_config(format!("key {key:?}: {problem}"));
            if matches!(backend, Backend::Iptables(_)) {
                return Ok(None);
            }
            Conditions::parse(words, family).map_err(problem)
        };
        Ok(Self {
            snat: conf.snat.unwrap_or(true),
            masq_all: conf.masq_all,
            conditions_v4: conditions("conditionsV4", &conf.conditions_v4, Family::V4)?,
            conditions_v6: conditions("conditionsV6", &conf.conditions_v6, Family::V6)?,
            mappings: mappings(&conf.runtime_config.port_mappings)?,
            backend,
        })
    }

    pub(crate) fn conditions(&self, family: Family) -> Option<&Conditions> {
        match family {
            Family::V4 => self.conditions_v4.as_ref(),
            Family::V6 => self.conditions_v6.as_ref(),
        }
    }
}

fn backend(conf: &PortmapConf, mark: Mark) -> Result<Backend, Error> {
    match conf.backend.as_deref() {
        None | Some("" | "nftables") => Ok(Backend::Nftables),
        Some("iptables") => {
            let listed = conf.runtime_config.port_mappings.iter().enumerate();
            Ok(Backend::Iptables(Verbatim {
                mark,
                conditions_v4: verbatim("conditionsV4", &conf.conditions_v4)?,
                conditions_v6: verbatim("conditionsV6", &conf.conditions_v6)?,
                listed: listed.map(|(at, one)| one.listed(at)).collect::<Result<_, _>>()?,
            }))
        }
        Some(other) => {
            let details =
                format!("key \"backend\" is {other:?}, allowed are \"nftables\" and \"iptables\"");
            Err(Error::invalid_config(format!("unrecognized backend {other:?}"))
                .with_details(details))
        }
    }
}

/// Checks the words for iptables-restore, which reads lines.
fn verbatim(key: &str, words: &[String]) -> Result<Vec<String>, Error> {
    let refused = |word: &str, problem: &str| {
        Err(Error::invalid_config(format!("key {key:?}: {word:?} {problem}")))
    };
    match words.first() {
        Some(first) if !first.starts_with(['-', '!']) => {
            let msg = format!(
                "iptables backend was requested but configuration contains nftables-specific \
                 options [{key}]"
            );
            let details = format!("key {key:?}: {first:?} is not an option of iptables");
            return Err(Error::invalid_config(msg).with_details(details));
        }
        _ => {}
    }
    match words.iter().find(|word| word.is_empty() || word.contains(char::is_control)) {
        Some(word) => refused(word, "is not a valid word for iptables"),
        None => Ok(words.to_vec()),
    }
}

/// The backend nftables does not mark packets, but validates the keys as well.
fn mark(conf: &PortmapConf) -> Result<Mark, Error> {
    match (conf.mark_masq_bit, &conf.external_set_mark_chain) {
        (Some(_), Some(_)) => {
            Err(Error::invalid_config("Cannot specify externalSetMarkChain and markMasqBit"))
        }
        (_, Some(chain)) if !is_chain_name(chain) => {
            let msg =
                format!("key \"externalSetMarkChain\" is {chain:?}, allowed are {CHAIN_NAME}");
            Err(Error::invalid_config(msg))
        }
        (_, Some(chain)) => Ok(Mark::By(chain.clone())),
        (bit, None) => {
            let bit = bit.unwrap_or(MARK_BIT);
            let parsed = u8::try_from(bit).ok().filter(|bit| *bit <= 31).map(Mark::Bit);
            parsed.ok_or_else(|| {
                Error::invalid_config("MasqMarkBit must be between 0 and 31")
                    .with_details(format!("key \"markMasqBit\" is {bit}, allowed are 0 to 31"))
            })
        }
    }
}

fn mappings(confs: &[MappingConf]) -> Result<Vec<Mapping>, Error> {
    let mut all: Vec<Mapping> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for (at, conf) in confs.iter().enumerate() {
        for mapping in conf.validate(at)? {
            let HostPort { family, address, protocol, port } = mapping.from;
            let key = (family == Family::V4, address, protocol.number(), port);
            match known.insert(key, mapping.to) {
                None => all.push(mapping),
                Some(to) if to == mapping.to => {}
                Some(to) => {
                    let msg = format!(
                        "key \"runtimeConfig.portMappings\" maps {} to container ports {to} and {}",
                        mapping.from, mapping.to
                    );
                    return Err(Error::invalid_config(msg));
                }
            }
        }
    }
    Ok(all)
}

fn key(at: usize, name: &str) -> String {
    format!("runtimeConfig.portMappings[{at}].{name}")
}

fn port(side: &str, key: &str, value: Option<i64>) -> Result<u16, Error> {
    let number = value.unwrap_or(0);
    u16::try_from(number).ok().filter(|port| *port != 0).ok_or_else(|| {
        let details = match value {
            None => format!("key {key:?} must be set"),
            Some(_) => format!("key {key:?} is {number}, allowed are 1 to 65535"),
        };
        let msg = format!("Invalid {side} port number: {number}");
        Error::invalid_config(msg).with_details(details)
    })
}

impl MappingConf {
    /// Returns one mapping per family.
    fn validate(&self, at: usize) -> Result<Vec<Mapping>, Error> {
        let (protocol, from) = self.listed(at)?;
        let to = port("container", &key(at, "containerPort"), self.container_port)?;
        let mapping = |(family, address)| Mapping {
            from: HostPort { family, address, protocol, port: from },
            to,
        };
        Ok(self.host_addresses(&key(at, "hostIP"))?.into_iter().map(mapping).collect())
    }

    fn listed(&self, at: usize) -> Result<(Protocol, u16), Error> {
        let port = port("host", &key(at, "hostPort"), self.host_port)?;
        let protocol = match self.protocol.as_str() {
            "" => Protocol::Tcp,
            name => Protocol::parse(name).ok_or_else(|| {
                let key = key(at, "protocol");
                let msg = format!("key {key:?} is {name:?}, allowed are tcp, udp and sctp");
                Error::invalid_config(msg)
            })?,
        };
        Ok((protocol, port))
    }

    /// The host addresses of the mapping.
    fn host_addresses(&self, key: &str) -> Result<Vec<(Family, Option<IpAddr>)>, Error> {
        if self.host_ip.is_empty() {
            return Ok(vec![(Family::V4, None), (Family::V6, None)]);
        }
        let address: IpAddr = self.host_ip.parse().map_err(|_| {
            Error::invalid_config(format!("key {key:?} is {:?}, expected an address", self.host_ip))
        })?;
        let address = address.to_canonical();
        let specific = Some(address).filter(|address| !address.is_unspecified());
        Ok(vec![(Family::of(address), specific)])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(keys: &serde_json::Value) -> Result<Vec<Mapping>, String> {
        let confs: Vec<MappingConf> = gojson::decode(keys).expect("the types are right");
        mappings(&confs).map_err(|error| error.to_string())
    }

    fn shown(mappings: &[Mapping]) -> Vec<String> {
        mappings.iter().map(|one| format!("{} to {}", one.from, one.to)).collect()
    }

    #[test]
    fn mappings_are_unique_per_family() {
        let check = |keys: serde_json::Value, expected: &[&str]| {
            assert_eq!(shown(&parse(&keys).unwrap()), expected);
        };
        let four = "tcp port 8080 of every IPv4 address to 80";
        let six = "tcp port 8080 of every IPv6 address to 80";
        let plain = json!({"hostPort": 8080, "containerPort": 80});
        check(json!([plain]), &[four, six]);
        check(
            json!([plain, {"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}]),
            &[four, six],
        );
        let at = |ip: &str| json!({"hostPort": 8080, "containerPort": 80, "hostIP": ip});
        check(json!([at("0.0.0.0"), plain]), &[four, six]);
        check(json!([at("::")]), &[six]);
        check(json!([at("192.0.2.1")]), &["tcp port 8080 of 192.0.2.1 to 80"]);
        check(json!([at("::ffff:192.0.2.1")]), &["tcp port 8080 of 192.0.2.1 to 80"]);
        check(json!([at("fd00:0::1")]), &["tcp port 8080 of fd00::1 to 80"]);
        check(
            json!([{"hostPort": 53, "containerPort": 53, "protocol": "UDP", "hostIP": "0.0.0.0"},
                {"hostPort": 53, "containerPort": 54, "protocol": "sctp", "hostIP": "0.0.0.0"}]),
            &[
                "udp port 53 of every IPv4 address to 53",
                "sctp port 53 of every IPv4 address to 54",
            ],
        );
    }

    #[test]
    fn errors_name_key_and_value() {
        let check = |keys: serde_json::Value, words: &str| {
            let error = parse(&keys).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        check(json!([{"containerPort": 80}]), "portMappings[0].hostPort\" must be set");
        check(json!([{"hostPort": 80}]), "portMappings[0].containerPort\" must be set");
        check(json!([{"hostPort": 0, "containerPort": 1}]), "hostPort\" is 0, allowed are 1");
        check(json!([{"hostPort": 65536, "containerPort": 1}]), "hostPort\" is 65536");
        check(json!([{"hostPort": -1, "containerPort": 1}]), "hostPort\" is -1");
        let icmp = json!({"hostPort": 1, "containerPort": 1, "protocol": "icmp"});
        check(json!([icmp]), "protocol\" is \"icmp\", allowed are tcp, udp and sctp");
        let host = json!({"hostPort": 1, "containerPort": 1, "hostIP": "10.1"});
        check(json!([host]), "hostIP\" is \"10.1\", expected an address");
        check(
            json!([{"hostPort": 1, "containerPort": 1}, {"hostPort": 1, "containerPort": 2,
                "hostIP": "::"}]),
            "maps tcp port 1 of every IPv6 address to container ports 1 and 2",
        );
    }
}
