// SPDX-License-Identifier: Apache-2.0
//! extension: which commands of the administrator's to call, with what. No shell reads them:
//! variables are put in here, so what a peer publishes stays one word.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::backend::BackendData;
use crate::cidr::{Addresses, Prefixes};
use crate::desired::DesiredState;
use crate::plan::Peer;

/// What a command is told of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionPeer {
    pub subnet: IpNet,
    pub public: Option<IpAddr>,
    /// What the peer's command before the start has printed.
    pub data: String,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// In addition to the agent's own.
    pub env: Vec<(&'static str, String)>,
    pub stdin: String,
}

/// The agent's own environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The command before the start; what it prints is published. None where there is no command.
pub fn before_start(command: &[String], environment: Environment<'_>) -> Option<CommandLine> {
    call(command, Vec::new(), "", environment)
}

/// The command that is told what the node has got.
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
    call(command, env, "", environment)
}

/// The command that is told of a peer that came or went.
pub fn for_peer(
    command: &[String],
    peer: &ExtensionPeer,
    environment: Environment<'_>,
) -> Option<CommandLine> {
    let public = peer.public.map(|address| address.to_string()).unwrap_or_default();
    let env = vec![("SUBNET", peer.subnet.to_string()), ("PUBLIC_IP", public)];
    call(command, env, &peer.data, environment)
}

pub(crate) fn carry(peer: &Peer<'_>, subnet: IpNet, desired: &mut DesiredState) {
    let attributes = &peer.lease.attributes;
    let data = match &attributes.data {
        BackendData::Extension(Some(data)) => data.clone(),
        _ => String::new(),
    };
    let public = attributes.public.get(crate::cidr::of(subnet));
    desired.extension.insert(subnet, ExtensionPeer { subnet, public, data });
}

fn call(
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

/// `$NAME` and `${NAME}` become values; a `$` before anything else goes away with it or stays, as
/// in Go.
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
    fn a_peer_is_words_and_never_a_script() {
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
    fn the_node_is_told_what_it_has() {
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
        let desired = "NETWORK=10.5.0.0/16 SUBNET=10.5.1.0/24 IPV6SUBNET=fd00:5:0:1::/64 \
            PUBLIC_IP=192.0.2.1 PUBLIC_IPV6=";
        assert_eq!(env.join(" "), desired);
        assert_eq!(before_start(&[], &home), None);
        assert_eq!(before_start(&words("true"), &home).unwrap().stdin, "\n");
    }

    proptest! {
        #[test]
        fn no_word_makes_it_panic(word: String, near in "[${}A-Z_é ]{0,12}") {
            let value = |name: &str| name.to_lowercase();
            let _ = (expand(&word, &value), expand(&near, &value));
        }
    }
}
