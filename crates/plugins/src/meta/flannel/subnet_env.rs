// SPDX-License-Identifier: Apache-2.0
//! `subnet.env`, by which flannel's daemon tells what it has leased for this node.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cni::Code;
use ipnet::IpNet;

/// What the daemon says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetEnv {
    /// Of the whole cluster, IPv4 before IPv6.
    pub networks: Vec<IpNet>,
    /// Of this node: one a family at most, IPv4 first.
    pub subnets: Vec<IpNet>,
    pub mtu: u32,
    /// The daemon masquerades, so the delegate must not.
    pub ip_masq: bool,
}

/// Why a file tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is not there: flannel's daemon is not ready on this node", .0.display())]
    Missing(PathBuf),
    #[error("read {}", .file.display())]
    Io {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("{}: {problem}", .file.display())]
    Content { file: PathBuf, problem: Problem },
}

/// What is wrong with a text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{0} is missing")]
    Incomplete(String),
    #[error("line {0:?} has no '='")]
    NoValue(String),
    #[error("{key} is {value:?}, expected {wanted}")]
    Value { key: String, value: String, wanted: &'static str },
}

impl Error {
    /// A passing state has the code that the verb gives it.
    pub fn to_cni(&self, passing: Code) -> cni::Error {
        let is_passing = match self {
            Error::Missing(_) => true,
            Error::Content { problem, .. } => matches!(problem, Problem::Incomplete(_)),
            Error::Io { .. } => false,
        };
        let code = match self {
            _ if is_passing || passing == Code::NOT_AVAILABLE => passing,
            Error::Io { .. } => Code::IO,
            _ => Code::INTERNAL,
        };
        let error = cni::Error::because(code, "flannel", self);
        if is_passing {
            return error.with_details("look at the log of flannel's pod on this node");
        }
        error
    }
}

impl SubnetEnv {
    /// Reads the daemon's file.
    pub fn read(file: &Path) -> Result<SubnetEnv, Error> {
        let text = std::fs::read_to_string(file).map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => Error::Missing(file.to_owned()),
            _ => Error::Io { file: file.to_owned(), cause },
        })?;
        parse(&text).map_err(|problem| Error::Content { file: file.to_owned(), problem })
    }
}

/// Lines of `KEY=VALUE`; unknown ones are passed over, quotes and white space do not matter, and a
/// value that is empty is as good as none.
fn parse(text: &str) -> Result<SubnetEnv, Problem> {
    let mut networks: [Vec<IpNet>; 2] = Default::default();
    let mut subnets: [Option<IpNet>; 2] = Default::default();
    let (mut mtu, mut ip_masq) = (None, None);
    for line in text.lines() {
        let Some((key, value)) = pair(line)? else { continue };
        match key {
            "FLANNEL_NETWORK" => networks[0] = prefixes(key, value)?,
            "FLANNEL_IPV6_NETWORK" => networks[1] = prefixes(key, value)?,
            "FLANNEL_SUBNET" => subnets[0] = Some(prefix(key, value)?),
            "FLANNEL_IPV6_SUBNET" => subnets[1] = Some(prefix(key, value)?),
            "FLANNEL_MTU" => mtu = Some(number(key, value)?),
            // Anything else is false, as it always was.
            "FLANNEL_IPMASQ" => ip_masq = Some(value == "true"),
            _ => {}
        }
    }
    let env = (networks.concat(), subnets.into_iter().flatten().collect::<Vec<_>>(), mtu, ip_masq);
    match env {
        (networks, subnets, Some(mtu), Some(ip_masq))
            if !networks.is_empty() && !subnets.is_empty() =>
        {
            Ok(SubnetEnv { networks, subnets, mtu, ip_masq })
        }
        (networks, subnets, mtu, ip_masq) => {
            let missing = [
                ("FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK", networks.is_empty()),
                ("FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET", subnets.is_empty()),
                ("FLANNEL_MTU", mtu.is_none()),
                ("FLANNEL_IPMASQ", ip_masq.is_none()),
            ];
            let missing: Vec<&str> =
                missing.iter().filter(|(_, is_missing)| *is_missing).map(|(key, _)| *key).collect();
            Err(Problem::Incomplete(missing.join(", ")))
        }
    }
}

/// Key and value of a line; `None` where it says nothing.
fn pair(line: &str) -> Result<Option<(&str, &str)>, Problem> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
    let Some((key, value)) = line.split_once('=') else {
        let is_known = line.starts_with("FLANNEL_");
        return if is_known { Err(Problem::NoValue(line.to_owned())) } else { Ok(None) };
    };
    let value = value.trim();
    let unquoted = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote).and_then(|value| value.strip_suffix(*quote)));
    let value = unquoted.unwrap_or(value);
    Ok(Some((key.trim(), value)).filter(|(_, value)| !value.is_empty()))
}

fn prefixes(key: &str, value: &str) -> Result<Vec<IpNet>, Problem> {
    let mut found: Vec<IpNet> = Vec::new();
    for part in value.split(',') {
        let network = prefix(key, part.trim())?;
        if !found.contains(&network) {
            found.push(network);
        }
    }
    Ok(found)
}

/// The network of an address with prefix length: the daemon writes its own address of the subnet.
fn prefix(key: &str, value: &str) -> Result<IpNet, Problem> {
    let net = value.parse::<IpNet>().map(|net| net.trunc());
    net.map_err(|_| wrong(key, value, "an address with prefix length, such as 10.244.1.1/24"))
}

fn number(key: &str, value: &str) -> Result<u32, Problem> {
    value.parse().map_err(|_| wrong(key, value, "a number"))
}

fn wrong(key: &str, value: &str, wanted: &'static str) -> Problem {
    Problem::Value { key: key.to_owned(), value: value.to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DUAL: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
        FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
        FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    #[test]
    fn a_file_of_the_daemon_is_read() {
        let env = parse(DUAL).unwrap();
        let shown = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&env.networks), ["10.244.0.0/16", "fd00:244::/48"]);
        assert_eq!(shown(&env.subnets), ["10.244.1.0/24", "fd00:244:0:1::/64"]);
        assert_eq!((env.mtu, env.ip_masq), (1450, true));
    }

    #[test]
    fn what_does_not_matter_is_passed_over() {
        let untidy = "# made by hand\r\n\n export FLANNEL_NETWORK = \"10.1.0.0/16, 10.2.0.0/16,\
            10.1.0.0/16\"\r\nFLANNEL_SUBNET='10.1.5.1/24'\nFLANNEL_IPV6_NETWORK=\nOTHER\nX=y=z\n\
            FLANNEL_MTU= 1400 \nFLANNEL_IPMASQ=False";
        let env = parse(untidy).unwrap();
        assert_eq!((env.networks.len(), env.subnets.len()), (2, 1));
        assert_eq!((env.mtu, env.ip_masq), (1400, false));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |text: &str, words: &str| {
            let problem = parse(text).unwrap_err().to_string();
            assert!(problem.contains(words), "{problem:?} should say {words:?}");
        };
        check("", "FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET or");
        check(&DUAL.replace("FLANNEL_MTU=1450", ""), "FLANNEL_MTU is missing");
        check(&DUAL.replace("1450", "big"), "FLANNEL_MTU is \"big\", expected a number");
        check(&DUAL.replace("10.244.1.1/24", "10.244.1.1"), "FLANNEL_SUBNET is \"10.244.1.1\"");
        check(&DUAL.replace("FLANNEL_IPMASQ=true", "FLANNEL_IPMASQ"), "has no '='");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String, key in 0_usize..6, value: String) {
            let _ = parse(&text);
            let line = DUAL.lines().nth(key).unwrap_or_default();
            let (name, _) = line.split_once('=').unwrap_or_default();
            let _ = parse(&format!("{name}={value}"));
        }
    }
}
