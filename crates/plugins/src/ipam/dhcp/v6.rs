// SPDX-License-Identifier: Apache-2.0
//! DHCPv6 (RFC 8415): the messages of a client in each phase, and the meaning of the replies. A client asks for one
//! address (IA_NA). Routes come from router advertisements, which the container's kernel handles.

pub mod message;

use std::net::{IpAddr, Ipv6Addr};

use cni::Dns;
use ipnet::{IpNet, Ipv6Net};
use sha2::{Digest, Sha512};

use self::message::{Address, Association, Message, Options, SUCCESS, XID_MASK, code, kind};
use super::domain_names::names;
use super::exchange::{About, Dialog, Heard, Phase};
use super::lease::{Span, Terms};

/// The port of clients.
pub const CLIENT_PORT: u16 = 546;
/// The port of servers.
pub const SERVER_PORT: u16 = 547;
/// All servers and relays on the link.
pub const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// DUID-UUID (RFC 6355).
const DUID_UUID: u16 = 4;

/// The client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its name for the server; see [`super::super::identity`].
    pub duid: Vec<u8>,
    /// Which of its interfaces.
    pub association: u32,
}

/// Returns the DUID of an attachment and the number of its identity association. Like [`super::v4::client_id`] they
/// depend on the attachment only.
pub fn duid(attachment: &str) -> (Vec<u8>, u32) {
    let digest = Sha512::digest(attachment.as_bytes());
    let (uuid, rest) = digest.split_at(16);
    let association = rest.first_chunk().copied().map_or(1, u32::from_be_bytes);
    ([&DUID_UUID.to_be_bytes(), uuid].concat(), association)
}

impl Dialog for Client {
    const NAME: &'static str = "DHCPv6";
    const SAME_XID: bool = false;
    const ANSWERS_RELEASE: bool = true;

    fn speaks_of(address: IpAddr) -> bool {
        address.is_ipv6()
    }

    fn message(&self, about: &About) -> Vec<u8> {
        let kind = match about.phase {
            Phase::Discover => kind::SOLICIT,
            Phase::Request => kind::REQUEST,
            Phase::Confirm => kind::CONFIRM,
            Phase::Renew => kind::RENEW,
            Phase::Rebind => kind::REBIND,
            Phase::Release => kind::RELEASE,
        };
        let mut options = Options::default();
        options.push(code::CLIENT_ID, self.duid.clone());
        let hundredths = u16::try_from(about.elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        options.push(code::ELAPSED_TIME, hundredths.to_be_bytes().to_vec());
        if let (Phase::Request | Phase::Renew | Phase::Release, Some(terms)) =
            (about.phase, about.terms)
        {
            options.push(code::SERVER_ID, terms.server.clone());
        }
        options.push(code::IA_NA, self.association(about).encode());
        if about.phase != Phase::Release {
            let wanted = [code::DNS, code::DOMAIN_SEARCH];
            options.push(code::REQUESTED, wanted.iter().flat_map(|c| c.to_be_bytes()).collect());
        }
        Message { kind, xid: about.xid, options }.encode()
    }

    fn read(&self, about: &About, answer: &[u8]) -> Option<Heard> {
        let message = Message::decode(answer)?;
        let is_ours = message.xid == about.xid & XID_MASK
            && message.options.get(code::CLIENT_ID) == Some(self.duid.as_slice());
        let server = message.options.get(code::SERVER_ID).filter(|_| is_ours)?;
        let is_other_server = about.terms.is_some_and(|terms| terms.server != server);
        match (about.phase, message.kind) {
            (Phase::Discover, kind::ADVERTISE) => self.terms(&message, server).map(Heard::Offered),
            (Phase::Request | Phase::Renew | Phase::Release, kind::REPLY) if is_other_server => {
                None
            }
            (Phase::Release, kind::REPLY) => Some(Heard::Released),
            (Phase::Confirm, kind::REPLY) if message.options.status() == SUCCESS => {
                Some(Heard::Kept)
            }
            (Phase::Discover, _) => None,
            (_, kind::REPLY) => {
                Some(self.terms(&message, server).map_or(Heard::Refused, Heard::Granted))
            }
            _ => None,
        }
    }
}

impl Client {
    fn association(&self, about: &About) -> Association {
        let mut options = Options::default();
        let wanted = about.terms.map(|terms| terms.address.addr()).or(about.hint);
        if let Some(IpAddr::V6(address)) = wanted {
            let none = Options::default();
            let wanted = Address { address, preferred: 0, valid: 0, options: none };
            options.push(code::IA_ADDRESS, wanted.encode());
        }
        Association { id: self.association, renew: 0, rebind: 0, options }
    }

    /// What a server offers or grants; `None` where it has no address for us.
    fn terms(&self, message: &Message, server: &[u8]) -> Option<Terms> {
        if message.options.status() != SUCCESS {
            return None;
        }
        let all = message.options.all(code::IA_NA).filter_map(Association::decode);
        let association = all.into_iter().find(|one| one.id == self.association)?;
        if association.options.status() != SUCCESS {
            return None;
        }
        let addresses = association.options.all(code::IA_ADDRESS).filter_map(Address::decode);
        let is_good = |one: &Address| one.valid > 0 && one.options.status() == SUCCESS;
        let given = addresses.into_iter().find(is_good)?;
        Some(Terms {
            // Which neighbours are on the link is for the routers to say, not for this server.
            address: IpNet::V6(Ipv6Net::new(given.address, 128).ok()?),
            gateway: None,
            routes: Vec::new(),
            dns: dns(&message.options),
            server: server.to_vec(),
            server_mac: None,
            span: span(&association, &given),
        })
    }
}

/// A server that leaves the times to us writes 0 (RFC 8415, 21.4).
fn span(association: &Association, given: &Address) -> Option<Span> {
    if given.valid == u32::MAX {
        return None;
    }
    let preferred = given.preferred.min(given.valid);
    let or = |told: u32, ours: u32| if told == 0 { ours } else { told };
    let renew = or(association.renew, preferred / 2);
    let rebind = or(association.rebind, preferred - preferred / 5);
    Some(Span::new(renew, rebind, given.valid))
}

fn dns(options: &Options) -> Dns {
    let (servers, _) = options.get(code::DNS).unwrap_or_default().as_chunks::<16>();
    Dns {
        nameservers: servers.iter().map(|octets| Ipv6Addr::from(*octets).to_string()).collect(),
        search: options.get(code::DOMAIN_SEARCH).map(names).unwrap_or_default(),
        ..Dns::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

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
    fn duid_is_derived_from_the_attachment() {
        // The start of `printf c1/net/eth0 | sha512sum`.
        let (duid, association) = duid("c1/net/eth0");
        let hex: String = duid.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0004f29c52a5ed62d7a390a7170bc3a6c7df");
        assert_eq!(association, 0x738b_1c31);
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
            let association =
                Association::decode(message.options.get(code::IA_NA).unwrap()).unwrap();
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
        assert_eq!(
            (terms.dns.nameservers, terms.dns.search),
            (vec!["::".into()], vec!["a.bc".into()])
        );
        assert_eq!(terms.span, Some(Span { renew: 250, rebind: 400, valid: 1000 }));
    }

    #[test]
    fn answers_mean_what_their_status_says() {
        let lease = lease();
        let read = |phase, message: &Message| {
            client().read(&about(phase, Some(&lease)), &message.encode())
        };
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
}
