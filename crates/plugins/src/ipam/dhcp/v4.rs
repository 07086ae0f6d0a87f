// SPDX-License-Identifier: Apache-2.0
//! DHCPv4 (RFC 2131): the messages of a client in each phase, and the meaning of the replies.

pub mod frame;
pub mod message;

use std::net::{IpAddr, Ipv4Addr};

use cni::Dns;
use ipnet::Ipv4Net;
use kernel::MacAddr;

use self::message::{Message, code, kind, options};
use super::conf::Provided;
use super::domain_names::names;
use super::exchange::{About, Dialog, Heard, Phase};
use super::lease::{Span, Terms, Via};

/// The port of clients.
pub const CLIENT_PORT: u16 = 68;
/// The port of servers.
pub const SERVER_PORT: u16 = 67;
/// The largest message that we take: what fits an Ethernet frame.
const MAX_SIZE: u16 = 1500;
/// A lease without a time lasts this long, as with the Go plugin.
const DEFAULT_SECONDS: u32 = 3600;

/// Maximum length of the text in a client identifier.
const MAX_ID_LEN: usize = 254;
/// Type of a client identifier that is not a MAC address (RFC 2132, 9.14).
const NOT_HARDWARE: u8 = 0;

/// The client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its hardware address.
    pub mac: MacAddr,
    /// Its name for the server; see [`super::super::identity`].
    pub id: Vec<u8>,
    /// Options that the configuration adds.
    pub provided: Vec<Provided>,
    /// Options that the configuration asks for.
    pub requested: Vec<u8>,
    /// Answers must go to everybody on the link.
    pub broadcast: bool,
}

/// Returns the client identifier of an attachment, byte for byte that of the Go plugin. It depends on the attachment
/// only. So a container keeps its address after a restart, on another node, and after a switch from the Go plugin.
pub fn client_id(attachment: &str) -> Vec<u8> {
    let text = attachment.as_bytes();
    [&[NOT_HARDWARE], &text[..text.len().min(MAX_ID_LEN)]].concat()
}

impl Dialog for Client {
    const NAME: &'static str = "DHCP";
    const SAME_XID: bool = true;
    const ANSWERS_RELEASE: bool = false;

    fn speaks_of(address: IpAddr) -> bool {
        address.is_ipv4()
    }

    fn message(&self, about: &About) -> Vec<u8> {
        let mut message = Message::from_client(about.xid, self.mac);
        message.secs = u16::try_from(about.elapsed.as_secs()).unwrap_or(u16::MAX);
        message.broadcast = self.broadcast && about.phase != Phase::Release;
        let kind = match about.phase {
            Phase::Discover => kind::DISCOVER,
            Phase::Release => kind::RELEASE,
            _ => kind::REQUEST,
        };
        message.set(code::MESSAGE_TYPE, &[kind]);
        message.set(code::CLIENT_ID, &self.id);
        self.put_address(&mut message, about);
        if about.phase != Phase::Release {
            message.set(code::MAX_SIZE, &MAX_SIZE.to_be_bytes());
            if !self.requested.is_empty() {
                message.set(code::PARAMETERS, &self.requested);
            }
        }
        for Provided { code, value } in &self.provided {
            // A server takes back only what names the client as it knows it.
            if about.phase != Phase::Release || *code == code::CLIENT_ID {
                message.set(*code, value);
            }
        }
        message.encode()
    }

    fn read(&self, about: &About, answer: &[u8]) -> Option<Heard> {
        let message = Message::decode(answer)?;
        if !message.is_reply || message.xid != about.xid || message.mac != self.mac {
            return None;
        }
        let kind = *message.option(code::MESSAGE_TYPE)?.first()?;
        let server = message.option(code::SERVER_ID);
        let is_other_server = server != about.terms.map(|terms| terms.server.as_slice());
        match (about.phase, kind) {
            (Phase::Discover, kind::OFFER) => terms(&message).map(Heard::Offered),
            (Phase::Request, kind::ACK | kind::NAK) if is_other_server => None,
            (Phase::Discover | Phase::Release, _) => None,
            (_, kind::ACK) => terms(&message).map(Heard::Granted),
            (_, kind::NAK) => Some(Heard::Refused),
            _ => None,
        }
    }
}

impl Client {
    /// Where the address stands is what tells the kinds of REQUEST apart (RFC 2131, table 4).
    fn put_address(&self, message: &mut Message, about: &About) {
        let wanted = about.terms.map(|terms| terms.address.addr()).or(about.hint);
        let Some(IpAddr::V4(wanted)) = wanted else { return };
        let server = about.terms.map(|terms| terms.server.as_slice()).unwrap_or_default();
        match about.phase {
            Phase::Discover | Phase::Confirm => {
                message.set(code::REQUESTED_ADDRESS, &wanted.octets());
            }
            Phase::Request => {
                message.set(code::REQUESTED_ADDRESS, &wanted.octets());
                message.set(code::SERVER_ID, server);
            }
            Phase::Renew | Phase::Rebind => message.client = wanted,
            Phase::Release => {
                message.client = wanted;
                message.set(code::SERVER_ID, server);
            }
        }
    }
}

/// What a server offers or grants; `None` without an address to use or a server to ask.
fn terms(message: &Message) -> Option<Terms> {
    let server = message.option(code::SERVER_ID).filter(|id| id.len() == 4)?;
    if message.yours.is_unspecified() || message.yours.is_broadcast() {
        return None;
    }
    let mask = message.option(code::SUBNET_MASK).and_then(options::prefix_len);
    let length = mask.unwrap_or_else(|| options::classful(message.yours));
    let router = message.option(code::ROUTER).map(options::addresses);
    let router = router.and_then(|all| all.first().copied()).filter(|one| !one.is_unspecified());
    Some(Terms {
        address: Ipv4Net::new(message.yours, length).ok()?.into(),
        gateway: router.map(IpAddr::V4),
        routes: routes(message, router),
        dns: dns(message),
        server: server.to_vec(),
        server_mac: None,
        span: span(message),
    })
}

/// Classless routes stand for all others (RFC 3442).
fn routes(message: &Message, router: Option<Ipv4Addr>) -> Vec<Via> {
    let read = |code, read: fn(&[u8]) -> Vec<Via>| message.option(code).map(read);
    let classless = read(code::CLASSLESS_ROUTE, options::classless_routes).unwrap_or_default();
    if !classless.is_empty() {
        return classless;
    }
    let mut routes = read(code::STATIC_ROUTE, options::static_routes).unwrap_or_default();
    let default = Ipv4Net::default().into();
    routes.extend(router.map(|router| Via { dst: default, gateway: router.into() }));
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

fn span(message: &Message) -> Option<Span> {
    let read = |code| message.option(code).and_then(options::number);
    let valid = match read(code::LEASE_TIME) {
        Some(u32::MAX) => return None,
        valid => valid.unwrap_or(DEFAULT_SECONDS),
    };
    let renew = read(code::RENEWAL_TIME).unwrap_or(valid / 2);
    let rebind = read(code::REBINDING_TIME).unwrap_or(valid - valid / 8);
    Some(Span::new(renew, rebind, valid))
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
            provided: vec![Provided { code: code::HOST_NAME, value: b"blue".to_vec() }],
            requested: vec![code::SUBNET_MASK, code::ROUTER],
            broadcast: true,
        }
    }

    fn about(phase: Phase, terms: Option<&Terms>) -> About<'_> {
        About { phase, xid: 0x1234_5678, elapsed: Duration::from_secs(3), terms, hint: None }
    }

    /// An answer of a server at 10.5.0.1.
    fn answer(kind: u8, options: &[(u8, &[u8])]) -> Message {
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
        terms(&answer(kind::ACK, &[(code::ROUTER, &[10, 5, 0, 1])])).unwrap()
    }

    #[test]
    fn client_id_is_that_of_the_go_plugin() {
        assert_eq!(client_id("c1/net/eth0"), b"\0c1/net/eth0");
        assert_eq!(client_id(&"x".repeat(300)).len(), 255);
    }

    #[test]
    fn each_request_stands_where_the_standard_says() {
        let lease = lease();
        let say = |phase, terms| Message::decode(&client().message(&about(phase, terms))).unwrap();
        let wanted = Some(&[10, 5, 0, 100][..]);
        let server = Some(&[10, 5, 0, 1][..]);
        let own = Ipv4Addr::new(10, 5, 0, 100);
        let check = |phase, requested, id, ciaddr| {
            let message = say(phase, Some(&lease));
            assert_eq!(message.option(code::REQUESTED_ADDRESS), requested, "{phase:?}");
            assert_eq!(message.option(code::SERVER_ID), id, "{phase:?}");
            assert_eq!(message.client, ciaddr, "{phase:?}");
            assert_eq!(message.option(code::CLIENT_ID), Some(&b"\0c1/net/eth0"[..]));
        };
        check(Phase::Request, wanted, server, Ipv4Addr::UNSPECIFIED);
        check(Phase::Confirm, wanted, None, Ipv4Addr::UNSPECIFIED);
        check(Phase::Renew, None, None, own);
        check(Phase::Rebind, None, None, own);
        check(Phase::Release, None, server, own);
        let discover = say(Phase::Discover, None);
        assert_eq!(discover.option(code::REQUESTED_ADDRESS), None);
        assert_eq!(discover.option(code::HOST_NAME), Some(&b"blue"[..]));
        assert_eq!((discover.secs, discover.broadcast), (3, true));
        assert_eq!(say(Phase::Release, Some(&lease)).option(code::HOST_NAME), None);
    }

    #[test]
    fn a_lease_is_read() {
        let message = answer(
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
        let shown: Vec<String> =
            terms.routes.iter().map(|via| format!("{} {}", via.dst, via.gateway)).collect();
        assert_eq!(shown, ["172.16.0.0/16 10.5.0.7", "0.0.0.0/0 10.5.0.1"]);
        assert_eq!(terms.dns.nameservers, ["10.5.0.53"]);
        assert_eq!(
            (terms.dns.domain.as_str(), terms.dns.search),
            ("example.net", vec!["a.bc".into()])
        );
        assert_eq!(terms.span, Some(Span { renew: 500, rebind: 875, valid: 1000 }));
    }

    #[test]
    fn times_that_make_no_sense_are_put_in_order() {
        let span = |valid: u32, renew: u32, rebind: u32| {
            let bytes = [valid, renew, rebind].map(u32::to_be_bytes);
            let codes = [code::LEASE_TIME, code::RENEWAL_TIME, code::REBINDING_TIME];
            let options: Vec<(u8, &[u8])> =
                codes.into_iter().zip(bytes.iter().map(|b| &b[..])).collect();
            super::span(&answer(kind::ACK, &options))
        };
        assert_eq!(span(u32::MAX, 1, 2), None);
        assert_eq!(span(10, 20, 30), Some(Span { renew: 10, rebind: 10, valid: 10 }));
        assert_eq!(span(0, 0, 0), Some(Span { renew: 1, rebind: 1, valid: 1 }));
    }

    #[test]
    fn answers_to_others_are_not_heard() {
        let lease = lease();
        let read = |phase, message: &Message| {
            client().read(&about(phase, Some(&lease)), &message.encode())
        };
        let ack = answer(kind::ACK, &[]);
        assert!(matches!(read(Phase::Request, &ack), Some(Heard::Granted(_))));
        assert_eq!(read(Phase::Discover, &ack), None);
        let offer = answer(kind::OFFER, &[]);
        assert!(matches!(read(Phase::Discover, &offer), Some(Heard::Offered(_))));
        assert_eq!(read(Phase::Renew, &offer), None);
        assert_eq!(read(Phase::Request, &Message { xid: 1, ..ack.clone() }), None);
        assert_eq!(read(Phase::Request, &Message { mac: MacAddr([1; 6]), ..ack.clone() }), None);
        assert_eq!(read(Phase::Request, &Message { is_reply: false, ..ack }), None);
        let elsewhere = answer(kind::NAK, &[(code::SERVER_ID, &[10, 5, 0, 2])]);
        assert_eq!(read(Phase::Request, &elsewhere), None, "another server's refusal");
        assert_eq!(read(Phase::Rebind, &elsewhere), Some(Heard::Refused));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..700)) {
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
        fn messages_are_read_as_written(
            xid: u32, secs: u16, broadcast: bool, is_reply: bool, client: [u8; 4], yours: [u8; 4],
            options in prop::collection::btree_map(
                (1u8..255).prop_filter("not the overload", |code| *code != code::OVERLOAD),
                prop::collection::vec(any::<u8>(), 0..600), 0..6),
        ) {
            let options = options.into_iter().collect();
            let (client, yours) = (client.into(), yours.into());
            let message = Message { is_reply, xid, secs, broadcast, client, yours, mac: MAC, options };
            prop_assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }
}
