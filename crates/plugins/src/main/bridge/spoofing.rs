// SPDX-License-Identifier: Apache-2.0
//! `macspoofchk`: a bridge port accepts frames from its container's MAC address only. Each
//! container has two set elements; the cost of a lookup does not grow with the number of
//! containers.

use cni::{Error, Request};
use kernel::nft::{
    BaseChain, ChainKind, DataType, Expr, Hook, MapTo, MetaKey, PayloadBase, Reg, Table,
    TableFamily, Verdict,
};
use kernel::{IfName, MacAddr};

use crate::compat::go_nft;
use crate::error::Context;
use crate::nftables::match_expr::ifname_key;
use crate::nftables::{
    self, ConflictPolicy, DesiredChain, ElementStore, Entry, Feature, Map, Owner, Placement, key,
};

const BRIDGE: Table<'static> = Table { family: TableFamily::Bridge, name: "podwire" };
const PRIORITY: i32 = -300; // NF_BR_PRI_NAT_DST_BRIDGED, linux/netfilter_bridge.h

static PORTS: Map = Map {
    number: 1,
    table: BRIDGE,
    name: "ports",
    key: &[DataType::IfName],
    data: MapTo::Nothing,
    conflict: ConflictPolicy::LastWins,
    placement: Placement::Single,
    comment: "ports whose MAC address is checked",
};

static ADDRESSES: Map = Map {
    number: 2,
    name: "addresses",
    key: &[DataType::IfName, DataType::EtherAddr],
    comment: "port . MAC address that it may send from",
    ..PORTS
};

pub(super) static FEATURE: Feature = Feature {
    number: 4,
    table: BRIDGE,
    maps: &[&PORTS, &ADDRESSES],
    chains: base_chain,
    networks_chains: None,
};

/// Allows the port to send from this MAC address only.
pub(super) fn add(request: &Request, port: IfName, mac: MacAddr) -> Result<(), Error> {
    let mut store = ElementStore::open(&FEATURE).context(DOING)?;
    let added = store.add(&Owner::of(request), &entries(port, mac), &[]);
    added.map_err(|error| error.into_error(DOING))
}

/// CHECK.
pub(super) fn check(request: &Request, port: IfName, mac: MacAddr) -> Result<(), Error> {
    let store = ElementStore::open(&FEATURE).context(DOING)?;
    let found = store.check(&Owner::of(request), &entries(port, mac), &[]);
    let Err(error) = found else { return Ok(()) };
    let is_by_go = go_nft::has_spoof_check(store.nft(), &request.attachment(), mac);
    if is_by_go.context("macspoofchk")? {
        return Ok(());
    }
    Err(error.into_error("macspoofchk"))
}

/// STATUS.
pub(super) fn status() -> Result<(), Error> {
    nftables::status(&FEATURE, "check MAC addresses")
}

const DOING: &str = "check the source MAC address of the container";

fn entries(port: IfName, mac: MacAddr) -> [Entry; 2] {
    let port = ifname_key(port.as_str());
    let address = key(&[&port, &mac.0]);
    [
        Entry { map: &PORTS, key: port.to_vec(), data: None },
        Entry { map: &ADDRESSES, key: address, data: None },
    ]
}

fn base_chain() -> Vec<DesiredChain> {
    let from_port = Expr::Meta(MetaKey::IifName, Reg(0));
    let source = Expr::Payload { base: PayloadBase::Link, offset: 6, len: 6, to: Reg(4) };
    let is_in = |map: &Map| Expr::Lookup { set: map.name.into(), key: Reg(0), inverted: false };
    let own = vec![from_port.clone(), source, is_in(&ADDRESSES), Expr::Verdict(Verdict::Accept)];
    let others = vec![from_port, is_in(&PORTS), Expr::Verdict(Verdict::Drop)];
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Prerouting, priority: PRIORITY };
    let comment = "containers send from their own MAC address";
    let rules = vec![(own, ""), (others, "")];
    vec![DesiredChain { base: Some(base), ..DesiredChain::new("spoofing", comment, rules) }]
}
