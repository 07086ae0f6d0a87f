// SPDX-License-Identifier: Apache-2.0
//! What a DHCPv4 client says in each phase, and what the answers mean.

use std::net::{IpAddr, Ipv4Addr};

use cni::Dns;
use ipnet::Ipv4Net;
use kernel::MacAddr;

use super::super::conf::Provided;
use super::super::dialog::{About, Dialog, Heard, Phase};
use super::super::lease::{Span, Terms, Via};
use super::super::names::names;
use super::message::{Message, code, kind};
use super::options;

/// The largest message that we take: what fits an Ethernet frame.
const MAX_SIZE: u16 = 1500;
/// A lease without a time lasts this long, as with the Go plugin.
const DEFAULT_SECONDS: u32 = 3600;

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
mod tests;
