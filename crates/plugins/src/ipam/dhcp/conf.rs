// SPDX-License-Identifier: Apache-2.0
//! The configuration of dhcp: as written, and as understood. It is understood by the plugin; the
//! daemon gets numbers and bytes.

use std::path::PathBuf;

use cni::{Error, Request};
use serde::{Deserialize, Serialize};

use super::v4::message::code;

/// Where the daemon listens, as with the Go plugin.
pub const DEFAULT_SOCKET: &str = "/run/cni/dhcp.sock";

/// What is asked for without a word in the configuration. Classless routes stand before routers, as
/// some servers leave out the latter otherwise (RFC 3442).
const DEFAULT_REQUEST: [u8; 7] = [
    code::SUBNET_MASK,
    code::CLASSLESS_ROUTE,
    code::ROUTER,
    code::STATIC_ROUTE,
    code::DNS,
    code::DOMAIN,
    code::DOMAIN_SEARCH,
];

/// Options that have a name, as dhcp-options(5) calls them.
const NAMES: [(&str, u8); 6] = [
    ("dhcp-client-identifier", code::CLIENT_ID),
    ("subnet-mask", code::SUBNET_MASK),
    ("routers", code::ROUTER),
    ("host-name", code::HOST_NAME),
    ("user-class", code::USER_CLASS),
    ("vendor-class-identifier", code::VENDOR_CLASS),
];

/// The longest value of an option.
const MAX_VALUE: usize = 255;

/// What the network wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dhcp {
    /// Where the daemon listens.
    pub socket: PathBuf,
    /// What it is to ask servers for.
    pub asked: Asked,
}

/// What the daemon asks servers for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// IPv4 addresses.
    pub ipv4: bool,
    /// IPv6 addresses.
    pub ipv6: bool,
    /// DHCPv4 options to send.
    pub provided: Vec<Provided>,
    /// DHCPv4 options to ask for.
    pub requested: Vec<u8>,
    /// Metric of the routes, or 0.
    pub priority: u32,
}

/// An option to send.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Provided {
    /// Its number.
    pub code: u8,
    /// Its value.
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

/// Apart from the rest, so that DEL finds the daemon whatever has become of the other keys.
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
    /// Reads and checks the configuration.
    pub fn understand(request: &Request) -> Result<Dhcp, Error> {
        let Conf { ipam } = request.conf()?;
        let (ipv4, ipv6) = understand_families(ipam.families.as_deref())?;
        let priority = u32::try_from(ipam.priority).map_err(|_| {
            let value = ipam.priority;
            invalid(&format!("key \"ipam.priority\" is {value}, allowed are 0 to {}", u32::MAX))
        })?;
        let asked = Asked {
            ipv4,
            ipv6,
            provided: understand_provided(&ipam.provide, &request.raw_args)?,
            requested: understand_requested(&ipam.request)?,
            priority,
        };
        Ok(Dhcp { socket: Dhcp::socket(request)?, asked })
    }

    /// Where the daemon listens, for verbs that must work whatever else is wrong.
    pub fn socket(request: &Request) -> Result<PathBuf, Error> {
        let SocketConf { ipam } = request.conf()?;
        Ok(ipam.daemon_socket_path.unwrap_or_else(|| DEFAULT_SOCKET.into()))
    }
}

fn understand_families(written: Option<&[String]>) -> Result<(bool, bool), Error> {
    let Some(written) = written.filter(|written| !written.is_empty()) else {
        return Ok((true, false));
    };
    let (mut ipv4, mut ipv6) = (false, false);
    for (at, family) in written.iter().enumerate() {
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

fn understand_provided(written: &[ProvideConf], args: &str) -> Result<Vec<Provided>, Error> {
    let mut provided = Vec::new();
    for (at, entry) in written.iter().enumerate() {
        let key = format!("ipam.provide[{at}]");
        let code = understand_option(&format!("{key}.option"), &entry.option)?;
        if matches!(code, code::MESSAGE_TYPE) {
            let msg = format!("key \"{key}.option\" is {code}, which no client can choose");
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
            provided.push(Provided { code, value: value.as_bytes().to_vec() });
        }
    }
    Ok(provided)
}

/// A value of CNI_ARGS. What else stands there is not for us to judge; the last one counts, as with
/// the Go plugin.
fn argument<'a>(args: &'a str, name: &str) -> Option<&'a str> {
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}

fn understand_requested(written: &[RequestConf]) -> Result<Vec<u8>, Error> {
    let mut requested = Vec::new();
    for (at, entry) in written.iter().enumerate().filter(|(_, entry)| !entry.option.is_empty()) {
        requested.push(understand_option(&format!("ipam.request[{at}].option"), &entry.option)?);
    }
    if !written.iter().any(|entry| entry.skip_default) {
        requested.extend(DEFAULT_REQUEST);
    }
    let mut seen = [false; 256];
    requested.retain(|code| !std::mem::replace(&mut seen[usize::from(*code)], true));
    Ok(requested)
}

fn understand_option(key: &str, written: &str) -> Result<u8, Error> {
    let named = NAMES.iter().find(|(name, _)| *name == written).map(|(_, code)| *code);
    // parse() would take a sign.
    let is_number = written.bytes().all(|byte| byte.is_ascii_digit());
    let number = || written.parse().ok().filter(|number| is_number && (1..=254).contains(number));
    named.or_else(number).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        invalid(&format!("key {key:?} is {written:?}, allowed are 1 to 254 and {names}"))
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
        understand_requested(&entries).unwrap()
    }

    #[test]
    fn options_are_asked_for_once() {
        assert_eq!(request(&[]), DEFAULT_REQUEST);
        assert_eq!(request(&[("routers", false), ("42", false)])[..4], [3, 42, 1, 121]);
        assert_eq!(request(&[("", true)]), Vec::<u8>::new());
        assert_eq!(request(&[("42", true), ("subnet-mask", false), ("42", false)]), [42, 1]);
    }

    #[test]
    fn values_come_from_configuration_and_arguments() {
        let entry = |value: &str, from_arg: &str| ProvideConf {
            option: "host-name".to_owned(),
            value: value.to_owned(),
            from_arg: from_arg.to_owned(),
        };
        let values = |entry: ProvideConf, args: &str| -> Vec<String> {
            let provided = understand_provided(&[entry], args).unwrap();
            provided.iter().map(|one| String::from_utf8_lossy(&one.value).into_owned()).collect()
        };
        assert_eq!(values(entry("a", ""), "X=b"), ["a"]);
        assert_eq!(values(entry("a", "X"), "X=b;Y=c;X=d=e"), ["a", "d=e"]);
        assert_eq!(values(entry("", "X"), "IgnoreUnknown"), Vec::<String>::new());
    }

    #[test]
    fn ipv4_is_the_family_where_none_is_named() {
        assert_eq!(understand_families(None), Ok((true, false)));
        assert_eq!(understand_families(Some(&[])), Ok((true, false)));
        assert_eq!(understand_families(Some(&["ipv6".to_owned()])), Ok((false, true)));
    }
}
