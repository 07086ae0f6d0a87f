// SPDX-License-Identifier: Apache-2.0
//! What is said in each phase, read by a codec of others, and what answers of others mean.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

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
    assert_eq!((terms.dns.domain.as_str(), terms.dns.search), ("example.net", vec!["a.bc".into()]));
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
    let read =
        |phase, message: &Message| client().read(&about(phase, Some(&lease)), &message.encode());
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
