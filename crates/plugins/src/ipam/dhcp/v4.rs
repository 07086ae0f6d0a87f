// SPDX-License-Identifier: Apache-2.0
//! DHCPv4 (RFC 2131): the messages of a client in each phase, and the meaning of the replies.

pub(super) mod frame;
pub(super) mod message;

use std::net::{IpAddr, Ipv4Addr};

use cni::Dns;
use ipnet::Ipv4Net;
use kernel::MacAddr;

use self::message::{Message, code, kind, options};
use super::conf::ProvidedOption;
use super::domain_names::names;
use super::exchange::{DhcpClient, MessageContext, Phase, Reply};
use super::lease::{LeaseRoute, Lifetimes, Terms};

/// UDP port of clients.
pub(super) const CLIENT_PORT: u16 = 68;
/// UDP port of servers.
pub(super) const SERVER_PORT: u16 = 67;
/// Maximum size of a message, announced to servers. It fits into an Ethernet frame.
const MAX_SIZE: u16 = 1500;
/// Lifetime of a lease without a lease time, as in the Go plugin.
const DEFAULT_SECONDS: u32 = 3600;

/// Maximum length of the text in a client identifier.
const MAX_ID_LEN: usize = 254;
/// Type of a client identifier that is not a MAC address (RFC 2132, 9.14).
const NOT_HARDWARE: u8 = 0;

/// A DHCPv4 client.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub mac: MacAddr,
    /// Client identifier, see [`client_id`].
    pub id: Vec<u8>,
    /// Options to send.
    pub provided: Vec<ProvidedOption>,
    /// Options to request.
    pub requested: Vec<u8>,
    /// Ask servers to broadcast their replies.
    pub broadcast: bool,
}

/// Returns the client identifier of an attachment, byte for byte that of the Go plugin. It depends on the attachment
/// only. So a container keeps its address after a restart, on another node, and after a switch from the Go plugin.
pub(super) fn client_id(attachment: &str) -> Vec<u8> {
    let text = attachment.as_bytes();
    [&[NOT_HARDWARE], &text[..text.len().min(MAX_ID_LEN)]].concat()
}

impl DhcpClient for Client {
    const NAME: &'static str = "DHCP";
    const REQUEST_KEEPS_XID: bool = true;
    const SERVER_CONFIRMS_RELEASE: bool = false;

    fn is_own_family(address: IpAddr) -> bool {
        address.is_ipv4()
    }

    fn encode(&self, context: &MessageContext) -> Vec<u8> {
        let mut message = Message::from_client(context.xid, self.mac);
        message.secs = u16::try_from(context.elapsed.as_secs()).unwrap_or(u16::MAX);
        message.broadcast = self.broadcast && context.phase != Phase::Release;
        let kind = match context.phase {
            Phase::Discover => kind::DISCOVER,
            Phase::Release => kind::RELEASE,
            _ => kind::REQUEST,
        };
        message.set(code::MESSAGE_TYPE, &[kind]);
        message.set(code::CLIENT_ID, &self.id);
        self.put_address(&mut message, context);
        if context.phase != Phase::Release {
            message.set(code::MAX_SIZE, &MAX_SIZE.to_be_bytes());
            if !self.requested.is_empty() {
                message.set(code::PARAMETERS, &self.requested);
            }
        }
        for ProvidedOption { code, value } in &self.provided {
            // A server accepts a release only with the client identifier that it knows.
            if context.phase != Phase::Release || *code == code::CLIENT_ID {
                message.set(*code, value);
            }
        }
        message.encode()
    }

    fn parse_reply(&self, context: &MessageContext, reply: &[u8]) -> Option<Reply> {
        let message = Message::decode(reply)?;
        if !message.is_reply || message.xid != context.xid || message.mac != self.mac {
            return None;
        }
        let kind = *message.option(code::MESSAGE_TYPE)?.first()?;
        let server = message.option(code::SERVER_ID);
        let is_other_server = server != context.terms.map(|terms| terms.server.as_slice());
        match (context.phase, kind) {
            (Phase::Discover, kind::OFFER) => terms(&message).map(Reply::Offered),
            (Phase::Request, kind::ACK | kind::NAK) if is_other_server => None,
            (Phase::Discover | Phase::Release, _) => None,
            (_, kind::ACK) => terms(&message).map(Reply::Granted),
            (_, kind::NAK) => Some(Reply::Rejected),
            _ => None,
        }
    }
}

impl Client {
    /// Adds the address. Its position distinguishes the kinds of REQUEST (RFC 2131, table 4).
    fn put_address(&self, message: &mut Message, context: &MessageContext) {
        let address = context.terms.map(|terms| terms.address.addr()).or(context.hint);
        let Some(IpAddr::V4(address)) = address else { return };
        let server = context.terms.map(|terms| terms.server.as_slice()).unwrap_or_default();
        match context.phase {
            Phase::Discover | Phase::Confirm => {
                message.set(code::REQUESTED_ADDRESS, &address.octets());
            }
            Phase::Request => {
                message.set(code::REQUESTED_ADDRESS, &address.octets());
                message.set(code::SERVER_ID, server);
            }
            Phase::Renew | Phase::Rebind => message.client = address,
            Phase::Release => {
                message.client = address;
                message.set(code::SERVER_ID, server);
            }
        }
    }
}

/// Returns the terms that a server offers or grants, or `None` if address or server are missing.
fn terms(message: &Message) -> Option<Terms> {
    let server = message.option(code::SERVER_ID).filter(|id| id.len() == 4)?;
    if message.yours.is_unspecified() || message.yours.is_broadcast() {
        return None;
    }
    let mask = message.option(code::SUBNET_MASK).and_then(options::prefix_len);
    let length = mask.unwrap_or_else(|| options::classful(message.yours));
    let router = message.option(code::ROUTER).map(options::addresses);
    let router =
        router.and_then(|all| all.first().copied()).filter(|address| !address.is_unspecified());
    Some(Terms {
        address: Ipv4Net::new(message.yours, length).ok()?.into(),
        gateway: router.map(IpAddr::V4),
        routes: routes(message, router),
        dns: dns(message),
        server: server.to_vec(),
        server_mac: None,
        lifetimes: lifetimes(message),
    })
}

/// Returns the routes. Classless routes replace all others (RFC 3442).
fn routes(message: &Message, router: Option<Ipv4Addr>) -> Vec<LeaseRoute> {
    let decode = |code, decode: fn(&[u8]) -> Vec<LeaseRoute>| message.option(code).map(decode);
    let classless = decode(code::CLASSLESS_ROUTE, options::classless_routes).unwrap_or_default();
    if !classless.is_empty() {
        return classless;
    }
    let mut routes = decode(code::STATIC_ROUTE, options::static_routes).unwrap_or_default();
    let default = Ipv4Net::default().into();
    routes.extend(router.map(|router| LeaseRoute { dst: default, gateway: router.into() }));
    routes
}

fn dns(message: &Message) -> Dns {
    let servers = message.option(code::DNS).map(options::addresses).unwrap_or_default();
    Dns {
        nameservers: servers.iter().map(Ipv4Addr::to_string).collect(),
        domain: message.option(code::DOMAIN).map(options::text).unwrap_or_default(),
        search: message.option(code::DOMAIN_SEARCH).map(names).unwrap_or_default(),
        ..Dns::default()
    }
}

fn lifetimes(message: &Message) -> Option<Lifetimes> {
    let seconds = |code| message.option(code).and_then(options::number);
    let valid = match seconds(code::LEASE_TIME) {
        Some(u32::MAX) => return None,
        valid => valid.unwrap_or(DEFAULT_SECONDS),
    };
    let renew = seconds(code::RENEWAL_TIME).unwrap_or(valid / 2);
    let rebind = seconds(code::REBINDING_TIME).unwrap_or(valid - valid / 8);
    Some(Lifetimes::new(renew, rebind, valid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn client() -> Client {
        Client {
            mac: MAC,
            id: b"\0c1/net/eth0".to_vec(),
            provided: vec![ProvidedOption { code: code::HOST_NAME, value: b"blue".to_vec() }],
            requested: vec![code::SUBNET_MASK, code::ROUTER],
            broadcast: true,
        }
    }

    fn context(phase: Phase, terms: Option<&Terms>) -> MessageContext<'_> {
        MessageContext {
            phase,
            xid: 0x1234_5678,
            elapsed: Duration::from_secs(3),
            terms,
            hint: None,
        }
    }

    /// Returns a reply of a server at 10.5.0.1.
    fn reply(kind: u8, options: &[(u8, &[u8])]) -> Message {
        let mut message = Message::from_client(0x1234_5678, MAC);
        message.is_reply = true;
        message.yours = Ipv4Addr::new(10, 5, 0, 100);
        message.set(code::MESSAGE_TYPE, &[kind]);
        message.set(code::SERVER_ID, &[10, 5, 0, 1]);
        message.set(code::SUBNET_MASK, &[255, 255, 255, 0]);
        options.iter().for_each(|(code, value)| message.set(*code, value));
        message
    }

    fn lease() -> Terms {
        terms(&reply(kind::ACK, &[(code::ROUTER, &[10, 5, 0, 1])])).unwrap()
    }

    #[test]
    fn client_id_is_that_of_the_go_plugin() {
        assert_eq!(client_id("c1/net/eth0"), b"\0c1/net/eth0");
        assert_eq!(client_id(&"x".repeat(300)).len(), 255);
    }

    #[test]
    fn message_fields_follow_rfc_2131() {
        let lease = lease();
        let message_of =
            |phase, terms| Message::decode(&client().encode(&context(phase, terms))).unwrap();
        let address = Some(&[10, 5, 0, 100][..]);
        let server = Some(&[10, 5, 0, 1][..]);
        let own = Ipv4Addr::new(10, 5, 0, 100);
        let check = |phase, requested, id, ciaddr| {
            let message = message_of(phase, Some(&lease));
            assert_eq!(message.option(code::REQUESTED_ADDRESS), requested, "{phase:?}");
            assert_eq!(message.option(code::SERVER_ID), id, "{phase:?}");
            assert_eq!(message.client, ciaddr, "{phase:?}");
            assert_eq!(message.option(code::CLIENT_ID), Some(&b"\0c1/net/eth0"[..]));
        };
        check(Phase::Request, address, server, Ipv4Addr::UNSPECIFIED);
        check(Phase::Confirm, address, None, Ipv4Addr::UNSPECIFIED);
        check(Phase::Renew, None, None, own);
        check(Phase::Rebind, None, None, own);
        check(Phase::Release, None, server, own);
        let discover = message_of(Phase::Discover, None);
        assert_eq!(discover.option(code::REQUESTED_ADDRESS), None);
        assert_eq!(discover.option(code::HOST_NAME), Some(&b"blue"[..]));
        assert_eq!((discover.secs, discover.broadcast), (3, true));
        assert_eq!(message_of(Phase::Release, Some(&lease)).option(code::HOST_NAME), None);
    }

    #[test]
    fn ack_is_parsed_into_terms() {
        let message = reply(
            kind::ACK,
            &[
                (code::ROUTER, &[10, 5, 0, 1, 10, 5, 0, 2]),
                (code::STATIC_ROUTE, &[172, 16, 0, 0, 10, 5, 0, 7]),
                (code::DNS, &[10, 5, 0, 53]),
                (code::DOMAIN, b"example.net\0"),
                (code::DOMAIN_SEARCH, b"\x01a\x02bc\0"),
                (code::LEASE_TIME, &1000u32.to_be_bytes()),
            ],
        );
        let terms = terms(&message).unwrap();
        assert_eq!(terms.address.to_string(), "10.5.0.100/24");
        assert_eq!(terms.gateway, Some([10, 5, 0, 1].into()));
        let routes: Vec<String> =
            terms.routes.iter().map(|via| format!("{} {}", via.dst, via.gateway)).collect();
        assert_eq!(routes, ["172.16.0.0/16 10.5.0.7", "0.0.0.0/0 10.5.0.1"]);
        assert_eq!(terms.dns.nameservers, ["10.5.0.53"]);
        assert_eq!(
            (terms.dns.domain.as_str(), terms.dns.search),
            ("example.net", vec!["a.bc".into()])
        );
        assert_eq!(terms.lifetimes, Some(Lifetimes { renew: 500, rebind: 875, valid: 1000 }));
    }

    #[test]
    fn inconsistent_lifetimes_are_corrected() {
        let lifetimes = |valid: u32, renew: u32, rebind: u32| {
            let bytes = [valid, renew, rebind].map(u32::to_be_bytes);
            let codes = [code::LEASE_TIME, code::RENEWAL_TIME, code::REBINDING_TIME];
            let options: Vec<(u8, &[u8])> =
                codes.into_iter().zip(bytes.iter().map(|b| &b[..])).collect();
            super::lifetimes(&reply(kind::ACK, &options))
        };
        assert_eq!(lifetimes(u32::MAX, 1, 2), None);
        assert_eq!(lifetimes(10, 20, 30), Some(Lifetimes { renew: 10, rebind: 10, valid: 10 }));
        assert_eq!(lifetimes(0, 0, 0), Some(Lifetimes { renew: 1, rebind: 1, valid: 1 }));
    }

    #[test]
    fn replies_to_other_messages_are_ignored() {
        let lease = lease();
        let parse = |phase, message: &Message| {
            client().parse_reply(&context(phase, Some(&lease)), &message.encode())
        };
        let ack = reply(kind::ACK, &[]);
        assert!(matches!(parse(Phase::Request, &ack), Some(Reply::Granted(_))));
        assert_eq!(parse(Phase::Discover, &ack), None);
        let offer = reply(kind::OFFER, &[]);
        assert!(matches!(parse(Phase::Discover, &offer), Some(Reply::Offered(_))));
        assert_eq!(parse(Phase::Renew, &offer), None);
        assert_eq!(parse(Phase::Request, &Message { xid: 1, ..ack.clone() }), None);
        assert_eq!(parse(Phase::Request, &Message { mac: MacAddr([1; 6]), ..ack.clone() }), None);
        assert_eq!(parse(Phase::Request, &Message { is_reply: false, ..ack }), None);
        let elsewhere = reply(kind::NAK, &[(code::SERVER_ID, &[10, 5, 0, 2])]);
        assert_eq!(parse(Phase::Request, &elsewhere), None, "the NAK of another server");
        assert_eq!(parse(Phase::Rebind, &elsewhere), Some(Reply::Rejected));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..700)) {
            let _ = Message::decode(&bytes);
            if bytes.len() > 240 {
                bytes[..3].copy_from_slice(&[2, 1, 6]);
                bytes[236..240].copy_from_slice(&[99, 130, 83, 99]);
            }
            if let Some(message) = Message::decode(&bytes) {
                let _ = terms(&message);
            }
        }

        #[test]
        fn encoding_and_decoding_keeps_messages(
            xid: u32, secs: u16, broadcast: bool, is_reply: bool, client: [u8; 4], yours: [u8; 4],
            options in prop::collection::btree_map(
                (1u8..255).prop_filter("not the overload option", |code| *code != code::OVERLOAD),
                prop::collection::vec(any::<u8>(), 0..600), 0..6),
        ) {
            let options = options.into_iter().collect();
            let (client, yours) = (client.into(), yours.into());
            let message = Message { is_reply, xid, secs, broadcast, client, yours, mac: MAC, options };
            prop_assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }
}
