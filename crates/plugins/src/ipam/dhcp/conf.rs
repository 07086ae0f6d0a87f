// SPDX-License-Identifier: Apache-2.0
//! The configuration of dhcp. The plugin parses it; the daemon gets numbers and bytes.

use std::path::PathBuf;

use cni::{Error, Request};
use serde::{Deserialize, Serialize};

use super::v4::message::code;

/// Socket of the daemon, as for the Go plugin.
pub(super) const DEFAULT_SOCKET: &str = "/run/cni/dhcp.sock";

/// Options requested by default. Classless routes come before routers, because some servers omit the routes otherwise
/// (RFC 3442).
const DEFAULT_REQUEST: [u8; 7] = [
    code::SUBNET_MASK,
    code::CLASSLESS_ROUTE,
    code::ROUTER,
    code::STATIC_ROUTE,
    code::DNS,
    code::DOMAIN,
    code::DOMAIN_SEARCH,
];

/// Options that can be given by name, with the names of dhcp-options(5).
const NAMES: [(&str, u8); 6] = [
    ("dhcp-client-identifier", code::CLIENT_ID),
    ("subnet-mask", code::SUBNET_MASK),
    ("routers", code::ROUTER),
    ("host-name", code::HOST_NAME),
    ("user-class", code::USER_CLASS),
    ("vendor-class-identifier", code::VENDOR_CLASS),
];

/// Maximum length of an option value.
const MAX_VALUE: usize = 255;

/// A valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dhcp {
    /// Socket of the daemon.
    pub socket: PathBuf,
    /// Options of the leases.
    pub options: LeaseOptions,
}

/// Which leases to request, and with which options.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeaseOptions {
    /// Request an IPv4 address.
    pub ipv4: bool,
    /// Request an IPv6 address.
    pub ipv6: bool,
    /// DHCPv4 options to send.
    pub provided: Vec<ProvidedOption>,
    /// DHCPv4 options to request.
    pub requested: Vec<u8>,
    /// Metric of the routes, or 0 if not set.
    pub priority: u32,
}

/// A DHCPv4 option to send.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct ProvidedOption {
    pub code: u8,
    pub value: Vec<u8>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct Conf {
    ipam: IpamConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct IpamConf {
    families: Option<Vec<String>>,
    provide: Vec<ProvideConf>,
    request: Vec<RequestConf>,
    priority: i64,
}

/// Parsed separately, so that DEL finds the daemon even if other keys are invalid.
#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct SocketConf {
    ipam: SocketIpamConf,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SocketIpamConf {
    daemon_socket_path: Option<PathBuf>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ProvideConf {
    option: String,
    value: String,
    from_arg: String,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RequestConf {
    skip_default: bool,
    option: String,
}

impl Dhcp {
    /// Parses and validates the configuration.
    pub(super) fn parse(request: &Request) -> Result<Dhcp, Error> {
        let Conf { ipam } = request.conf()?;
        let (ipv4, ipv6) = parse_families(ipam.families.as_deref())?;
        let priority = u32::try_from(ipam.priority).map_err(|_| {
            let value = ipam.priority;
            invalid(&format!("key \"ipam.priority\" is {value}, allowed are 0 to {}", u32::MAX))
        })?;
        let options = LeaseOptions {
            ipv4,
            ipv6,
            provided: parse_provided(&ipam.provide, &request.raw_args)?,
            requested: parse_requested(&ipam.request)?,
            priority,
        };
        Ok(Dhcp { socket: Dhcp::socket(request)?, options })
    }

    /// Returns the daemon's socket, for commands that must work even if other keys are invalid.
    pub(super) fn socket(request: &Request) -> Result<PathBuf, Error> {
        let SocketConf { ipam } = request.conf()?;
        Ok(ipam.daemon_socket_path.unwrap_or_else(|| DEFAULT_SOCKET.into()))
    }
}

fn parse_families(configured: Option<&[String]>) -> Result<(bool, bool), Error> {
    let Some(configured) = configured.filter(|configured| !configured.is_empty()) else {
        return Ok((true, false));
    };
    let (mut ipv4, mut ipv6) = (false, false);
    for (at, family) in configured.iter().enumerate() {
        match family.as_str() {
            "ipv4" => ipv4 = true,
            "ipv6" => ipv6 = true,
            other => {
                let key = format!("key \"ipam.families[{at}]\"");
                return Err(invalid(&format!("{key} is {other:?}, allowed are ipv4 and ipv6")));
            }
        }
    }
    Ok((ipv4, ipv6))
}

fn parse_provided(configured: &[ProvideConf], args: &str) -> Result<Vec<ProvidedOption>, Error> {
    let mut provided = Vec::new();
    for (at, entry) in configured.iter().enumerate() {
        let key = format!("ipam.provide[{at}]");
        let code = parse_option(&format!("{key}.option"), &entry.option)?;
        if matches!(code, code::MESSAGE_TYPE) {
            let msg = format!("key \"{key}.option\" is {code}, which cannot be set");
            return Err(invalid(&msg));
        }
        let from_arg = argument(args, &entry.from_arg);
        let sources = [("value", Some(entry.value.as_str())), ("fromArg", from_arg)];
        for (source, value) in sources {
            let Some(value) = value.filter(|value| source == "fromArg" || !value.is_empty()) else {
                continue;
            };
            if value.len() > MAX_VALUE {
                let msg = format!(
                    "key \"{key}.{source}\" gives {} bytes, allowed are {MAX_VALUE}",
                    value.len()
                );
                return Err(invalid(&msg));
            }
            provided.push(ProvidedOption { code, value: value.as_bytes().to_vec() });
        }
    }
    Ok(provided)
}

/// Returns a value of CNI_ARGS. Other arguments are not validated. As in the Go plugin, the last value wins.
fn argument<'a>(args: &'a str, name: &str) -> Option<&'a str> {
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}

fn parse_requested(configured: &[RequestConf]) -> Result<Vec<u8>, Error> {
    let mut requested = Vec::new();
    for (at, entry) in configured.iter().enumerate().filter(|(_, entry)| !entry.option.is_empty()) {
        requested.push(parse_option(&format!("ipam.request[{at}].option"), &entry.option)?);
    }
    if !configured.iter().any(|entry| entry.skip_default) {
        requested.extend(DEFAULT_REQUEST);
    }
    let mut seen = [false; 256];
    requested.retain(|code| !std::mem::replace(&mut seen[usize::from(*code)], true));
    Ok(requested)
}

fn parse_option(key: &str, configured: &str) -> Result<u8, Error> {
    let named = NAMES.iter().find(|(name, _)| *name == configured).map(|(_, code)| *code);
    // `parse` would accept a sign.
    let is_number = configured.bytes().all(|byte| byte.is_ascii_digit());
    let number =
        || configured.parse().ok().filter(|number| is_number && (1..=254).contains(number));
    named.or_else(number).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        invalid(&format!("key {key:?} is {configured:?}, allowed are 1 to 254 and {names}"))
    })
}

fn invalid(msg: &str) -> Error {
    Error::invalid_config(msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(entries: &[(&str, bool)]) -> Vec<u8> {
        let entries: Vec<RequestConf> = entries
            .iter()
            .map(|(option, skip_default)| RequestConf {
                option: (*option).to_owned(),
                skip_default: *skip_default,
            })
            .collect();
        parse_requested(&entries).unwrap()
    }

    #[test]
    fn options_are_requested_once() {
        assert_eq!(request(&[]), DEFAULT_REQUEST);
        assert_eq!(request(&[("routers", false), ("42", false)])[..4], [3, 42, 1, 121]);
        assert_eq!(request(&[("", true)]), Vec::<u8>::new());
        assert_eq!(request(&[("42", true), ("subnet-mask", false), ("42", false)]), [42, 1]);
    }

    #[test]
    fn option_values_come_from_config_and_args() {
        let entry = |value: &str, from_arg: &str| ProvideConf {
            option: "host-name".to_owned(),
            value: value.to_owned(),
            from_arg: from_arg.to_owned(),
        };
        let values = |entry: ProvideConf, args: &str| -> Vec<String> {
            let provided = parse_provided(&[entry], args).unwrap();
            provided
                .iter()
                .map(|option| String::from_utf8_lossy(&option.value).into_owned())
                .collect()
        };
        assert_eq!(values(entry("a", ""), "X=b"), ["a"]);
        assert_eq!(values(entry("a", "X"), "X=b;Y=c;X=d=e"), ["a", "d=e"]);
        assert_eq!(values(entry("", "X"), "IgnoreUnknown"), Vec::<String>::new());
    }

    #[test]
    fn families_default_to_ipv4() {
        assert_eq!(parse_families(None), Ok((true, false)));
        assert_eq!(parse_families(Some(&[])), Ok((true, false)));
        assert_eq!(parse_families(Some(&["ipv6".to_owned()])), Ok((false, true)));
    }
}
