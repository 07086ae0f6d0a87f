// SPDX-License-Identifier: Apache-2.0
//! extension: commands of the administrator that are called when the node starts and when peers join
//! or leave. No shell is involved: variables are expanded here, so text that a peer publishes never
//! becomes a second argument or a script.

use std::net::IpAddr;

use gojson::DecodeError;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::BackendData;
use crate::cidr::{self, Addresses, Prefixes};
use crate::desired::DesiredState;
use crate::plan::Peer;

/// Commands as lists of words. A command that is not set is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extension {
    pub pre_startup: Vec<String>,
    pub post_startup: Vec<String>,
    pub subnet_add: Vec<String>,
    pub subnet_remove: Vec<String>,
}

pub(super) const KEYS: &str =
    "PreStartupCommand PostStartupCommand SubnetAddCommand SubnetRemoveCommand";

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct ExtensionConf {
    pre_startup_command: Option<String>,
    post_startup_command: Option<String>,
    subnet_add_command: Option<String>,
    subnet_remove_command: Option<String>,
}

impl Extension {
    /// Parses the commands. White space separates their words.
    pub(super) fn parse(conf: &Map<String, Value>) -> Result<Self, DecodeError> {
        let conf: ExtensionConf = gojson::decode_object(conf)?;
        let words = |text: &Option<String>| {
            text.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect()
        };
        Ok(Self {
            pre_startup: words(&conf.pre_startup_command),
            post_startup: words(&conf.post_startup_command),
            subnet_add: words(&conf.subnet_add_command),
            subnet_remove: words(&conf.subnet_remove_command),
        })
    }
}

/// A subnet of a peer, as passed to the add and remove commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionPeer {
    pub subnet: IpNet,
    pub public: Option<IpAddr>,
    /// Output of the peer's pre-startup command.
    pub data: String,
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables in addition to the agent's environment.
    pub env: Vec<(&'static str, String)>,
    pub stdin: String,
}

/// The agent's own environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the command to run before the node starts, if one is configured. The node publishes its
/// output.
pub fn before_start(command: &[String], environment: Environment<'_>) -> Option<CommandLine> {
    command_line(command, Vec::new(), "", environment)
}

/// Returns the command to run after the node has started, if one is configured. The environment contains
/// the node's subnets and addresses.
pub fn after_start(
    command: &[String],
    networks: &Prefixes,
    subnets: &Prefixes,
    public: &Addresses,
    environment: Environment<'_>,
) -> Option<CommandLine> {
    let text = |value: Option<String>| value.unwrap_or_default();
    let env = vec![
        ("NETWORK", text(networks.v4().map(|net| net.to_string()))),
        ("SUBNET", text(subnets.v4().map(|net| net.to_string()))),
        ("IPV6SUBNET", text(subnets.v6().map(|net| net.to_string()))),
        ("PUBLIC_IP", text(public.v4.map(|address| address.to_string()))),
        ("PUBLIC_IPV6", text(public.v6.map(|address| address.to_string()))),
    ];
    command_line(command, env, "", environment)
}

/// Returns the command to run when a peer joins or leaves, if one is configured.
pub fn for_peer(
    command: &[String],
    peer: &ExtensionPeer,
    environment: Environment<'_>,
) -> Option<CommandLine> {
    let public = peer.public.map(|address| address.to_string()).unwrap_or_default();
    let env = vec![("SUBNET", peer.subnet.to_string()), ("PUBLIC_IP", public)];
    command_line(command, env, &peer.data, environment)
}

pub(crate) fn add_subnet(peer: &Peer<'_>, subnet: IpNet, desired: &mut DesiredState) {
    let attributes = &peer.lease.attributes;
    let data = match &attributes.data {
        BackendData::Extension(Some(data)) => data.clone(),
        _ => String::new(),
    };
    let public = attributes.public.get(cidr::of(subnet));
    desired.extension.insert(subnet, ExtensionPeer { subnet, public, data });
}

fn command_line(
    command: &[String],
    env: Vec<(&'static str, String)>,
    stdin: &str,
    environment: Environment<'_>,
) -> Option<CommandLine> {
    if command.is_empty() {
        return None;
    }
    let value = |name: &str| {
        let given = env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        given.or_else(|| environment(name)).unwrap_or_default()
    };
    let argv = command.iter().map(|word| expand(word, &value)).collect();
    Some(CommandLine { argv, env, stdin: format!("{stdin}\n") })
}

/// Replaces `$NAME` and `${NAME}` by their values. As in Go, a `$` that is not followed by a name
/// stays, and `${` without a closing brace disappears.
fn expand(word: &str, value: &dyn Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (name, length) = match after.strip_prefix('{') {
            Some(inner) => match inner.find('}') {
                Some(end) => (&inner[..end], end + 2),
                None => ("", 1),
            },
            None => {
                let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
                let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        if length == 0 {
            out.push('$');
        } else {
            out.push_str(&value(name));
        }
        rest = &after[length..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn home(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/root".to_owned())
    }

    #[test]
    fn peer_data_is_never_expanded() {
        let peer = ExtensionPeer {
            subnet: "10.5.2.0/24".parse().unwrap(),
            public: Some("192.0.2.2".parse().unwrap()),
            data: "; rm -rf $HOME".to_owned(),
        };
        let command = words("$HOME/add ${SUBNET}x via=$PUBLIC_IP $UNSET. $");
        let call = for_peer(&command, &peer, &home).unwrap();
        assert_eq!(call.argv, ["/root/add", "10.5.2.0/24x", "via=192.0.2.2", ".", "$"]);
        assert_eq!(call.stdin, "; rm -rf $HOME\n");
        let env = [("SUBNET", "10.5.2.0/24".to_owned()), ("PUBLIC_IP", "192.0.2.2".to_owned())];
        assert_eq!(call.env, env);
    }

    #[test]
    fn after_start_passes_subnets_and_addresses() {
        let nets =
            |text: &str| Prefixes::of(text.split(' ').map(|net| net.parse().unwrap())).unwrap();
        let public = Addresses { v4: Some("192.0.2.1".parse().unwrap()), v6: None };
        let subnets = nets("10.5.1.0/24 fd00:5:0:1::/64");
        let networks = nets("10.5.0.0/16 fd00:5::/48");
        let call = after_start(&words("run $NETWORK"), &networks, &subnets, &public, &home);
        let call = call.unwrap();
        assert_eq!(call.argv, ["run", "10.5.0.0/16"]);
        let env: Vec<String> =
            call.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let expected = "NETWORK=10.5.0.0/16 SUBNET=10.5.1.0/24 IPV6SUBNET=fd00:5:0:1::/64 \
            PUBLIC_IP=192.0.2.1 PUBLIC_IPV6=";
        assert_eq!(env.join(" "), expected);
        assert_eq!(before_start(&[], &home), None);
        assert_eq!(before_start(&words("true"), &home).unwrap().stdin, "\n");
    }

    proptest! {
        #[test]
        fn expanding_any_word_does_not_panic(word: String, near in "[${}A-Z_é ]{0,12}") {
            let value = |name: &str| name.to_lowercase();
            let _ = (expand(&word, &value), expand(&near, &value));
        }
    }
}
