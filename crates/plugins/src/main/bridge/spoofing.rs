// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: a port of the bridge takes frames only from the hardware address that its container
//! was given. Two elements a container; looking them up costs the same however many there are.

use cni::{Error, Request};
use kernel::nft::{
    BaseChain, ChainKind, DataType, Expr, Hook, MapTo, MetaKey, PayloadBase, Reg, Table,
    TableFamily, Verdict,
};
use kernel::{IfName, MacAddr};

use crate::fault::OrFault;
use crate::rules::match_expr::ifname_key;
use crate::rules::{Claim, Entry, Feature, Ledger, Map, Owner, Spread, WantedChain, key};
use crate::{go_rules, rules};

const BRIDGE: Table<'static> = Table { family: TableFamily::Bridge, name: "podwire" };
/// Before anything else looks at the frame: NF_BR_PRI_NAT_DST_BRIDGED, linux/netfilter_bridge.h.
const FIRST: i32 = -300;

static PORTS: Map = Map {
    number: 1,
    table: BRIDGE,
    name: "ports",
    key: &[DataType::IfName],
    data: MapTo::Nothing,
    claim: Claim::Last,
    spread: Spread::Whole,
    comment: "ports whose hardware address is checked",
};

static ADDRESSES: Map = Map {
    number: 2,
    name: "addresses",
    key: &[DataType::IfName, DataType::EtherAddr],
    comment: "port . hardware address that it may send from",
    ..PORTS
};

/// The elements of bridges' ports.
pub static FEATURE: Feature = Feature {
    number: 4,
    table: BRIDGE,
    maps: &[&PORTS, &ADDRESSES],
    chains: base_chain,
    networks_chains: None,
};

/// Lets the port send from this address only.
pub fn add(request: &Request, port: IfName, mac: MacAddr) -> Result<(), Error> {
    let mut ledger = Ledger::open(&FEATURE).or_fault(DOING)?;
    let added = ledger.add(&Owner::of(request), &entries(port, mac), &[]);
    added.map_err(|fault| fault.into_error(DOING))
}

/// Whether it may.
pub fn check(request: &Request, port: IfName, mac: MacAddr) -> Result<(), Error> {
    let ledger = Ledger::open(&FEATURE).or_fault(DOING)?;
    let found = ledger.check(&Owner::of(request), &entries(port, mac), &[]);
    let Err(fault) = found else { return Ok(()) };
    let by_go = go_rules::has_spoof_check(ledger.nft(), &request.attachment(), mac);
    if by_go.or_fault("macspoofchk")? {
        return Ok(());
    }
    Err(fault.into_error("macspoofchk"))
}

/// Whether the kernel could.
pub fn status() -> Result<(), Error> {
    rules::status(&FEATURE, "check hardware addresses")
}

const DOING: &str = "check the hardware address that the container sends from";

fn entries(port: IfName, mac: MacAddr) -> [Entry; 2] {
    let port = ifname_key(port.as_str());
    let address = key(&[&port, &mac.0]);
    [
        Entry { map: &PORTS, key: port.to_vec(), data: None },
        Entry { map: &ADDRESSES, key: address, data: None },
    ]
}

fn base_chain() -> Vec<WantedChain> {
    let from_port = Expr::Meta(MetaKey::IifName, Reg(0));
    let source = Expr::Payload { base: PayloadBase::Link, offset: 6, len: 6, to: Reg(4) };
    let is_in = |map: &Map| Expr::Lookup { set: map.name.into(), key: Reg(0), inverted: false };
    let own = vec![from_port.clone(), source, is_in(&ADDRESSES), Expr::Verdict(Verdict::Accept)];
    let others = vec![from_port, is_in(&PORTS), Expr::Verdict(Verdict::Drop)];
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: FIRST };
    let comment = "containers send from their own hardware address";
    let rules = vec![(own, ""), (others, "")];
    vec![WantedChain { base: Some(base), ..WantedChain::new("spoofing", comment, rules) }]
}
