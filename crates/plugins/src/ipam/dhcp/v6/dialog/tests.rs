// SPDX-License-Identifier: Apache-2.0
//! What is said in each phase, and what answers mean.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn client() -> Client {
    Client { duid: vec![0, 4, 1, 2], association: 7 }
}

fn about(phase: Phase, terms: Option<&Terms>) -> About<'_> {
    About { phase, xid: 0xff12_3456, elapsed: Duration::from_millis(1230), terms, hint: None }
}

fn address(valid: u32) -> Address {
    let address = "fd05::100".parse().unwrap();
    Address { address, preferred: valid / 2, valid, options: Options::default() }
}

fn status(status: u16) -> Options {
    Options(vec![(code::STATUS, status.to_be_bytes().to_vec())])
}

fn association(id: u32, addresses: &[Address]) -> Association {
    let options = addresses.iter().map(|one| (code::IA_ADDRESS, one.encode())).collect();
    Association { id, renew: 0, rebind: 0, options: Options(options) }
}

fn answer(kind: u8, association: &Association) -> Message {
    let mut options = Options::default();
    options.push(code::CLIENT_ID, vec![0, 4, 1, 2]);
    options.push(code::SERVER_ID, vec![0, 3, 9]);
    options.push(code::IA_NA, association.encode());
    Message { kind, xid: 0x12_3456, options }
}

fn lease() -> Terms {
    client().terms(&answer(kind::REPLY, &association(7, &[address(1000)])), &[0, 3, 9]).unwrap()
}

#[test]
fn each_question_names_what_the_standard_says() {
    let lease = lease();
    let check = |phase, kind, names_server: bool| {
        let terms = (phase != Phase::Discover).then_some(&lease);
        let message = Message::decode(&client().message(&about(phase, terms))).unwrap();
        assert_eq!((message.kind, message.xid), (kind, 0x12_3456), "{phase:?}");
        let server = names_server.then_some(&[0, 3, 9][..]);
        assert_eq!(message.options.get(code::SERVER_ID), server, "{phase:?}");
        assert_eq!(message.options.get(code::ELAPSED_TIME), Some(&[0, 123][..]));
        let association = Association::decode(message.options.get(code::IA_NA).unwrap()).unwrap();
        let has_address = association.options.get(code::IA_ADDRESS).is_some();
        assert_eq!((association.id, has_address), (7, terms.is_some()), "{phase:?}");
    };
    check(Phase::Discover, kind::SOLICIT, false);
    check(Phase::Request, kind::REQUEST, true);
    check(Phase::Confirm, kind::CONFIRM, false);
    check(Phase::Renew, kind::RENEW, true);
    check(Phase::Rebind, kind::REBIND, false);
    check(Phase::Release, kind::RELEASE, true);
}

#[test]
fn a_lease_is_read() {
    let mut message = answer(kind::REPLY, &association(7, &[address(0), address(1000)]));
    message.options.push(code::DNS, vec![0; 17]);
    message.options.push(code::DOMAIN_SEARCH, b"\x01a\x02bc\0".to_vec());
    let terms = client().terms(&message, &[0, 3, 9]).unwrap();
    assert_eq!(terms.address.to_string(), "fd05::100/128");
    assert_eq!((terms.dns.nameservers, terms.dns.search), (vec!["::".into()], vec!["a.bc".into()]));
    assert_eq!(terms.span, Some(Span { renew: 250, rebind: 400, valid: 1000 }));
}

#[test]
fn answers_mean_what_their_status_says() {
    let lease = lease();
    let read =
        |phase, message: &Message| client().read(&about(phase, Some(&lease)), &message.encode());
    let good = association(7, &[address(1000)]);
    assert!(matches!(
        read(Phase::Discover, &answer(kind::ADVERTISE, &good)),
        Some(Heard::Offered(_))
    ));
    assert!(matches!(read(Phase::Renew, &answer(kind::REPLY, &good)), Some(Heard::Granted(_))));
    assert_eq!(read(Phase::Confirm, &answer(kind::REPLY, &good)), Some(Heard::Kept));
    assert_eq!(read(Phase::Release, &answer(kind::REPLY, &good)), Some(Heard::Released));
    assert_eq!(read(Phase::Discover, &answer(kind::REPLY, &good)), None);
    let unbound = Association { options: status(3), ..good.clone() };
    assert_eq!(read(Phase::Renew, &answer(kind::REPLY, &unbound)), Some(Heard::Refused));
    assert_eq!(read(Phase::Discover, &answer(kind::ADVERTISE, &unbound)), None);
    let other = association(8, &[address(1000)]);
    assert_eq!(read(Phase::Request, &answer(kind::REPLY, &other)), Some(Heard::Refused));
    let mut off_link = answer(kind::REPLY, &good);
    off_link.options.0.extend(status(4).0);
    assert_eq!(read(Phase::Confirm, &off_link), Some(Heard::Refused));
    let mut from_other = answer(kind::REPLY, &good);
    from_other.options.0[1].1 = vec![0, 3, 8];
    assert_eq!(read(Phase::Renew, &from_other), None);
    assert!(matches!(read(Phase::Rebind, &from_other), Some(Heard::Granted(_))));
    let stranger = Message { xid: 1, ..answer(kind::REPLY, &good) };
    assert_eq!(read(Phase::Renew, &stranger), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
        let _ = (Message::decode(&bytes), Association::decode(&bytes), Address::decode(&bytes));
        let mut message = answer(kind::REPLY, &association(7, &[]));
        message.options.push(code::IA_NA, [&7u32.to_be_bytes()[..], &bytes].concat());
        message.options.push(code::DNS, bytes.clone());
        message.options.push(code::DOMAIN_SEARCH, bytes);
        let _ = client().read(&about(Phase::Rebind, None), &message.encode());
    }

    #[test]
    fn messages_are_read_as_written(
        kind: u8,
        xid in 0..=XID_MASK,
        options in prop::collection::vec((any::<u16>(), any::<Vec<u8>>()), 0..5),
    ) {
        let message = Message { kind, xid, options: Options(options) };
        prop_assert_eq!(Message::decode(&message.encode()), Some(message));
    }
}
