// SPDX-License-Identifier: Apache-2.0
//! DHCPv6 (RFC 8415): the messages of a client in each phase, and the meaning of the replies. A client asks for one
//! address (IA_NA). Routes come from router advertisements, which the container's kernel handles.

pub(super) mod message;

use std::net::{IpAddr, Ipv6Addr};

use cni::Dns;
use ipnet::{IpNet, Ipv6Net};
use sha2::{Digest, Sha512};

use self::message::{Address, Association, Message, Options, SUCCESS, XID_MASK, code, kind};
use super::domain_names::names;
use super::exchange::{DhcpClient, MessageContext, Phase, Reply};
use super::lease::{Lifetimes, Terms};

/// UDP port of clients.
pub(super) const CLIENT_PORT: u16 = 546;
/// UDP port of servers.
pub(super) const SERVER_PORT: u16 = 547;
/// Multicast address of all servers and relays on the link.
pub(super) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// DUID-UUID (RFC 6355).
const DUID_UUID: u16 = 4;

/// A DHCPv6 client.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// DHCP unique identifier, see [`duid`].
    pub duid: Vec<u8>,
    /// Number of the identity association.
    pub association: u32,
}

/// Returns the DUID of an attachment and the number of its identity association. Like [`super::v4::client_id`] they
/// depend on the attachment only.
pub(super) fn duid(attachment: &str) -> (Vec<u8>, u32) {
    let digest = Sha512::digest(attachment.as_bytes());
    let (uuid, rest) = digest.split_at(16);
    let association = rest.first_chunk().copied().map_or(1, u32::from_be_bytes);
    ([&DUID_UUID.to_be_bytes(), uuid].concat(), association)
}

impl DhcpClient for Client {
    const NAME: &'static str = "DHCPv6";
    const REQUEST_KEEPS_XID: bool = false;
    const SERVER_CONFIRMS_RELEASE: bool = true;

    fn is_own_family(address: IpAddr) -> bool {
        address.is_ipv6()
    }

    fn encode(&self, context: &MessageContext) -> Vec<u8> {
        let kind = match context.phase {
            Phase::Discover => kind::SOLICIT,
            Phase::Request => kind::REQUEST,
            Phase::Confirm => kind::CONFIRM,
            Phase::Renew => kind::RENEW,
            Phase::Rebind => kind::REBIND,
            Phase::Release => kind::RELEASE,
        };
        let mut options = Options::default();
        options.push(code::CLIENT_ID, self.duid.clone());
        let hundredths = u16::try_from(context.elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        options.push(code::ELAPSED_TIME, hundredths.to_be_bytes().to_vec());
        if let (Phase::Request | Phase::Renew | Phase::Release, Some(terms)) =
            (context.phase, context.terms)
        {
            options.push(code::SERVER_ID, terms.server.clone());
        }
        options.push(code::IA_NA, self.association(context).encode());
        if context.phase != Phase::Release {
            let requested = [code::DNS, code::DOMAIN_SEARCH];
            options.push(code::REQUESTED, requested.iter().flat_map(|c| c.to_be_bytes()).collect());
        }
        Message { kind, xid: context.xid, options }.encode()
    }

    fn parse_reply(&self, context: &MessageContext, reply: &[u8]) -> Option<Reply> {
        let message = Message::decode(reply)?;
        let is_for_client = message.xid == context.xid & XID_MASK
            && message.options.get(code::CLIENT_ID) == Some(self.duid.as_slice());
        let server = message.options.get(code::SERVER_ID).filter(|_| is_for_client)?;
        let is_other_server = context.terms.is_some_and(|terms| terms.server != server);
        match (context.phase, message.kind) {
            (Phase::Discover, kind::ADVERTISE) => self.terms(&message, server).map(Reply::Offered),
            (Phase::Request | Phase::Renew | Phase::Release, kind::REPLY) if is_other_server => {
                None
            }
            (Phase::Release, kind::REPLY) => Some(Reply::Released),
            (Phase::Confirm, kind::REPLY) if message.options.status() == SUCCESS => {
                Some(Reply::Confirmed)
            }
            (Phase::Discover, _) => None,
            (_, kind::REPLY) => {
                Some(self.terms(&message, server).map_or(Reply::Rejected, Reply::Granted))
            }
            _ => None,
        }
    }
}

impl Client {
    fn association(&self, context: &MessageContext) -> Association {
        let mut options = Options::default();
        let address = context.terms.map(|terms| terms.address.addr()).or(context.hint);
        if let Some(IpAddr::V6(address)) = address {
            let none = Options::default();
            let address = Address { address, preferred: 0, valid: 0, options: none };
            options.push(code::IA_ADDRESS, address.encode());
        }
        Association { id: self.association, renew: 0, rebind: 0, options }
    }

    /// Returns the terms that a server offers or grants, or `None` if it has no address.
    fn terms(&self, message: &Message, server: &[u8]) -> Option<Terms> {
        if message.options.status() != SUCCESS {
            return None;
        }
        let all = message.options.all(code::IA_NA).filter_map(Association::decode);
        let association = all.into_iter().find(|association| association.id == self.association)?;
        if association.options.status() != SUCCESS {
            return None;
        }
        let addresses = association.options.all(code::IA_ADDRESS).filter_map(Address::decode);
        let is_valid = |address: &Address| address.valid > 0 && address.options.status() == SUCCESS;
        let granted = addresses.into_iter().find(is_valid)?;
        Some(Terms {
            // Router advertisements define which prefixes are on the link, not this server.
            address: IpNet::V6(Ipv6Net::new(granted.address, 128).ok()?),
            gateway: None,
            routes: Vec::new(),
            dns: dns(&message.options),
            server: server.to_vec(),
            server_mac: None,
            lifetimes: lifetimes(&association, &granted),
        })
    }
}

/// Returns the lifetimes. A server that leaves T1 and T2 to the client sends 0 (RFC 8415, 21.4).
fn lifetimes(association: &Association, granted: &Address) -> Option<Lifetimes> {
    if granted.valid == u32::MAX {
        return None;
    }
    let preferred = granted.preferred.min(granted.valid);
    let or_default = |sent: u32, default: u32| if sent == 0 { default } else { sent };
    let renew = or_default(association.renew, preferred / 2);
    let rebind = or_default(association.rebind, preferred - preferred / 5);
    Some(Lifetimes::new(renew, rebind, granted.valid))
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

    fn context(phase: Phase, terms: Option<&Terms>) -> MessageContext<'_> {
        MessageContext {
            phase,
            xid: 0xff12_3456,
            elapsed: Duration::from_millis(1230),
            terms,
            hint: None,
        }
    }

    fn address(valid: u32) -> Address {
        let address = "fd05::100".parse().unwrap();
        Address { address, preferred: valid / 2, valid, options: Options::default() }
    }

    fn status(status: u16) -> Options {
        Options(vec![(code::STATUS, status.to_be_bytes().to_vec())])
    }

    fn association(id: u32, addresses: &[Address]) -> Association {
        let options =
            addresses.iter().map(|address| (code::IA_ADDRESS, address.encode())).collect();
        Association { id, renew: 0, rebind: 0, options: Options(options) }
    }

    fn reply(kind: u8, association: &Association) -> Message {
        let mut options = Options::default();
        options.push(code::CLIENT_ID, vec![0, 4, 1, 2]);
        options.push(code::SERVER_ID, vec![0, 3, 9]);
        options.push(code::IA_NA, association.encode());
        Message { kind, xid: 0x12_3456, options }
    }

    fn lease() -> Terms {
        client().terms(&reply(kind::REPLY, &association(7, &[address(1000)])), &[0, 3, 9]).unwrap()
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
    fn message_fields_follow_rfc_8415() {
        let lease = lease();
        let check = |phase, kind, names_server: bool| {
            let terms = (phase != Phase::Discover).then_some(&lease);
            let message = Message::decode(&client().encode(&context(phase, terms))).unwrap();
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
    fn reply_is_parsed_into_terms() {
        let mut message = reply(kind::REPLY, &association(7, &[address(0), address(1000)]));
        message.options.push(code::DNS, vec![0; 17]);
        message.options.push(code::DOMAIN_SEARCH, b"\x01a\x02bc\0".to_vec());
        let terms = client().terms(&message, &[0, 3, 9]).unwrap();
        assert_eq!(terms.address.to_string(), "fd05::100/128");
        assert_eq!(
            (terms.dns.nameservers, terms.dns.search),
            (vec!["::".into()], vec!["a.bc".into()])
        );
        assert_eq!(terms.lifetimes, Some(Lifetimes { renew: 250, rebind: 400, valid: 1000 }));
    }

    #[test]
    fn reply_meaning_depends_on_the_status() {
        let lease = lease();
        let parse = |phase, message: &Message| {
            client().parse_reply(&context(phase, Some(&lease)), &message.encode())
        };
        let good = association(7, &[address(1000)]);
        assert!(matches!(
            parse(Phase::Discover, &reply(kind::ADVERTISE, &good)),
            Some(Reply::Offered(_))
        ));
        assert!(matches!(parse(Phase::Renew, &reply(kind::REPLY, &good)), Some(Reply::Granted(_))));
        assert_eq!(parse(Phase::Confirm, &reply(kind::REPLY, &good)), Some(Reply::Confirmed));
        assert_eq!(parse(Phase::Release, &reply(kind::REPLY, &good)), Some(Reply::Released));
        assert_eq!(parse(Phase::Discover, &reply(kind::REPLY, &good)), None);
        let unbound = Association { options: status(3), ..good.clone() };
        assert_eq!(parse(Phase::Renew, &reply(kind::REPLY, &unbound)), Some(Reply::Rejected));
        assert_eq!(parse(Phase::Discover, &reply(kind::ADVERTISE, &unbound)), None);
        let other = association(8, &[address(1000)]);
        assert_eq!(parse(Phase::Request, &reply(kind::REPLY, &other)), Some(Reply::Rejected));
        let mut off_link = reply(kind::REPLY, &good);
        off_link.options.0.extend(status(4).0);
        assert_eq!(parse(Phase::Confirm, &off_link), Some(Reply::Rejected));
        let mut from_other = reply(kind::REPLY, &good);
        from_other.options.0[1].1 = vec![0, 3, 8];
        assert_eq!(parse(Phase::Renew, &from_other), None);
        assert!(matches!(parse(Phase::Rebind, &from_other), Some(Reply::Granted(_))));
        let stranger = Message { xid: 1, ..reply(kind::REPLY, &good) };
        assert_eq!(parse(Phase::Renew, &stranger), None);
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            let _ = (Message::decode(&bytes), Association::decode(&bytes), Address::decode(&bytes));
            let mut message = reply(kind::REPLY, &association(7, &[]));
            message.options.push(code::IA_NA, [&7u32.to_be_bytes()[..], &bytes].concat());
            message.options.push(code::DNS, bytes.clone());
            message.options.push(code::DOMAIN_SEARCH, bytes);
            let _ = client().parse_reply(&context(Phase::Rebind, None), &message.encode());
        }

        #[test]
        fn encoding_and_decoding_keeps_messages(
            kind: u8,
            xid in 0..=XID_MASK,
            options in prop::collection::vec((any::<u16>(), any::<Vec<u8>>()), 0..5),
        ) {
            let message = Message { kind, xid, options: Options(options) };
            prop_assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }
}
