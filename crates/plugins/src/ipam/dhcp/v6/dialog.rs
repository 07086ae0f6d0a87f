// SPDX-License-Identifier: Apache-2.0
//! What a DHCPv6 client says in each phase, and what the answers mean.

use std::net::{IpAddr, Ipv6Addr};

use cni::Dns;
use ipnet::{IpNet, Ipv6Net};

use super::super::dialog::{About, Dialog, Heard, Phase};
use super::super::lease::{Span, Terms};
use super::super::names::names;
use super::message::{Address, Association, Message, Options, SUCCESS, XID_MASK, code, kind};

/// The client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its name for the server; see [`super::super::identity`].
    pub duid: Vec<u8>,
    /// Which of its interfaces.
    pub association: u32,
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
mod tests;
