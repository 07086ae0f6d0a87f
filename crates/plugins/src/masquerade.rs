// SPDX-License-Identifier: Apache-2.0
//! `ipMasq`: what a container sends out of its network leaves with the host's address. Each of its addresses
//! is in the set of a chain that the containers of a network share.

use std::net::IpAddr;

use cni::{Attachment, Error, IpConfig, Request};
use ipnet::IpNet;
use kernel::Family;
use kernel::iptables_legacy::is_in_use;
use kernel::nft::{
    BaseChain, ChainKind, DataType, Expr, Hook, MapTo, Nft, Op, Place, Reg, Verdict,
};
use serde::Deserialize;

use crate::fault::OrFault;
use crate::iptables::masquerade as by_iptables;
use crate::rules::match_expr::{match_network, match_set, octets};
use crate::rules::{
    Claim, Entrance, Entry, Feature, Ledger, Map, Number, Owner, Rules, Spread, TABLE, WantedChain,
    key,
};
use crate::{go_rules, identity, iptables, rules};

const SRCNAT: i32 = 100; // NF_IP_PRI_NAT_SRC, linux/netfilter_ipv4.h

/// The chain whose rules lead to the networks' chains.
const NETWORKS: &str = "masq_networks";

static MASQ4: Map = Map {
    number: 1,
    table: TABLE,
    name: "masq4",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Nothing,
    claim: Claim::Last,
    spread: Spread::PartsAndWhole,
    comment: "containers whose packets leave with this host's address",
};

static MASQ6: Map = Map { number: 2, name: "masq6", key: &[DataType::Ipv6Addr], ..MASQ4 };

/// The elements of containers' addresses.
pub static FEATURE: Feature = Feature {
    number: 1,
    table: TABLE,
    maps: &[&MASQ4, &MASQ6],
    chains,
    networks_chains: Some(chain_prefix),
};

/// The keys as written, for the configurations of bridge and ptp.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct MasqueradeConf {
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    ip_masq_options: OptionsConf,
}

#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OptionsConf {
    ipv4: bool,
    ipv6: bool,
    exclude: Vec<cni::Cidr>,
    fully_random: bool,
}

impl Default for OptionsConf {
    fn default() -> Self {
        Self { ipv4: true, ipv6: true, exclude: Vec::new(), fully_random: false }
    }
}

/// How a network's containers leave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    ipv4: bool,
    ipv6: bool,
    /// Where they show their own address.
    exclude: Vec<IpNet>,
    fully_random: bool,
    /// By the program iptables-restore.
    by_iptables: bool,
}

impl Masquerade {
    /// What the configuration asks for, if anything.
    pub fn understand(request: &Request) -> Result<Option<Self>, Error> {
        let conf: MasqueradeConf = request.conf()?;
        let by_iptables = match conf.ip_masq_backend.as_deref() {
            None | Some("" | "nftables") => false,
            Some("iptables") => true,
            Some(other) => {
                let details = format!(
                    "key \"ipMasqBackend\" is {other:?}, allowed are \"nftables\" and \"iptables\""
                );
                let msg = format!("unknown ipmasq backend {other:?}");
                return Err(Error::invalid_config(msg).with_details(details));
            }
        };
        let OptionsConf { ipv4, ipv6, exclude, fully_random } = conf.ip_masq_options;
        let exclude = exclude.iter().map(|net| net.0.trunc()).collect();
        Ok(conf.ip_masq.then_some(Self { ipv4, ipv6, exclude, fully_random, by_iptables }))
    }

    /// Makes the elements of a container's addresses.
    pub fn add(&self, request: &Request, ips: &[IpConfig]) -> Result<(), Error> {
        if self.by_iptables {
            return by_iptables::add(&self.for_iptables(request, ips));
        }
        let (entries, chains) = self.plan(&request.network, ips);
        let mut ledger = open()?;
        let added = ledger.add(&Owner::of(request), &entries, &chains);
        added.map_err(|fault| fault.into_error("masquerade the container's addresses"))
    }

    /// Whether they are there.
    pub fn check(&self, request: &Request, ips: &[IpConfig]) -> Result<(), Error> {
        if self.by_iptables {
            let missing = by_iptables::missing(&self.for_iptables(request, ips))?;
            return missing.map_or(Ok(()), |rule| {
                Err(Error::internal(format!("masquerade: iptables has no rule {rule:?}")))
            });
        }
        let (entries, chains) = self.plan(&request.network, ips);
        let ledger = open()?;
        let found = ledger.check(&Owner::of(request), &entries, &chains);
        let Err(found) = found else { return Ok(()) };
        if self.is_by_go(ledger.nft(), request, ips).or_fault("masquerade")? {
            return Ok(());
        }
        Err(found.into_error("masquerade"))
    }

    /// Whether an ADD could do it.
    pub fn status(&self) -> Result<(), Error> {
        if self.by_iptables { iptables::status() } else { rules::status(&FEATURE, "masquerade") }
    }

    /// Whether the Go plugin masquerades these addresses, where it made the attachment.
    fn is_by_go(&self, nft: &Nft, request: &Request, ips: &[IpConfig]) -> kernel::Result<bool> {
        let mut is_any = false;
        for address in ips.iter().map(|ip| ip.address.addr()).filter(|ip| self.is_for(*ip)) {
            is_any = true;
            let (network, attachment) = (&request.network, request.attachment());
            if !go_rules::has_masquerade(nft, network, &attachment, address)? {
                return Ok(false);
            }
        }
        Ok(is_any)
    }

    /// What takes back what an ADD did by iptables, should it fail later.
    pub fn undo_iptables<'a>(
        &'a self,
        request: &'a Request,
        ips: &[IpConfig],
    ) -> Option<impl FnOnce() + use<'a>> {
        let wanted = self.by_iptables.then(|| self.for_iptables(request, ips))?;
        Some(move || by_iptables::take_back(&wanted))
    }

    fn for_iptables<'a>(
        &'a self,
        request: &'a Request,
        ips: &[IpConfig],
    ) -> by_iptables::Wanted<'a> {
        let own = ips.iter().map(|ip| ip.address).filter(|net| self.is_for(net.addr())).collect();
        by_iptables::Wanted {
            network: &request.network,
            container: &request.container_id,
            own,
            exclude: &self.exclude,
            fully_random: self.fully_random,
        }
    }

    fn is_for(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }

    /// An entry for each address, and the chains for them.
    fn plan(&self, network: &str, ips: &[IpConfig]) -> (Vec<Entry>, Vec<WantedChain>) {
        let (mut entries, mut chains) = (Vec::new(), Vec::<WantedChain>::new());
        for ip in ips.iter().filter(|ip| self.is_for(ip.address.addr())) {
            let family = Family::of(ip.address.addr());
            let map = if family == Family::V4 { &MASQ4 } else { &MASQ6 };
            let kept = self.kept(family, ip.address.trunc());
            let number = self.number(network, &kept);
            let key = key(&[&number.to_be_bytes(), &octets(ip.address.addr())]);
            entries.push(Entry { map, key, data: None });
            let chain = self.chain(network, (map, number), family, &kept);
            if chains.iter().all(|other| other.name != chain.name) {
                chains.push(chain);
            }
        }
        (entries, chains)
    }

    /// Where containers of one network show their own address.
    fn kept(&self, family: Family, own: IpNet) -> Vec<IpNet> {
        let is_of_family = |net: &&IpNet| Family::of(net.addr()) == family;
        [own].iter().chain(self.exclude.iter().filter(is_of_family)).copied().collect()
    }

    /// It follows from what the chain does, so that another configuration makes another one and containers
    /// that are there keep theirs.
    fn number(&self, network: &str, kept: &[IpNet]) -> Number {
        let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
        let random = if self.fully_random { "random" } else { "" };
        let words = [network].into_iter().chain(kept.iter().map(String::as_str)).chain([random]);
        identity::digest(&words.collect::<Vec<_>>()) as Number
    }

    /// The chain for addresses of one network.
    fn chain(
        &self,
        network: &str,
        (map, number): (&'static Map, Number),
        family: Family,
        kept: &[IpNet],
    ) -> WantedChain {
        let mut rules: Rules = kept.iter().map(|net| (returning(family, *net), "")).collect();
        rules.push((vec![Expr::Masquerade { fully_random: self.fully_random }], ""));
        let exprs = match_set(family, family.load_source(Reg(0)), &map.part(number));
        let name = format!("{}{number:08x}", chain_prefix(network));
        WantedChain {
            parts: vec![(map, number)],
            entrances: vec![Entrance { from: NETWORKS, place: Place::Last, exprs }],
            ..WantedChain::new(name, network, rules)
        }
    }
}

/// DEL: what was made by the older iptables, which netlink does not reach.
pub fn remove_by_iptables(request: &Request, addresses: &[IpAddr]) -> Result<(), Error> {
    let families = [Family::V4, Family::V6];
    if !is_by_iptables(request) || !families.iter().any(|one| is_in_use(*one, "nat")) {
        return Ok(());
    }
    by_iptables::remove(&request.network, &request.container_id, addresses)
}

/// GC of what iptables made.
pub fn gc_by_iptables(request: &Request, valid: &[Attachment]) -> Result<(), Error> {
    if is_by_iptables(request) { by_iptables::gc(&request.network, valid) } else { Ok(()) }
}

fn is_by_iptables(request: &Request) -> bool {
    let understood = Masquerade::understand(request).ok().flatten();
    understood.is_some_and(|masquerade| masquerade.by_iptables)
}

fn open() -> Result<Ledger, Error> {
    Ledger::open(&FEATURE).or_fault("masquerade")
}

fn chain_prefix(network: &str) -> String {
    format!("masq-{:016x}-", identity::digest(&[network]))
}

fn returning(family: Family, to: IpNet) -> Vec<Expr> {
    let mut exprs = family.match_nfproto().to_vec();
    exprs.push(family.load_destination(Reg(0)));
    exprs.extend(match_network(Reg(0), Op::Eq, to));
    exprs.push(Expr::Verdict(Verdict::Return));
    exprs
}

/// Multicast keeps its source: answers to it do not come back by the same way.
fn chains() -> Vec<WantedChain> {
    let multicast = [(Family::V4, "224.0.0.0/4"), (Family::V6, "ff00::/8")];
    let mut rules = Rules::new();
    for (family, net) in multicast {
        rules.push((returning(family, net.parse().expect("a network")), ""));
    }
    for (family, map) in [(Family::V4, &MASQ4), (Family::V6, &MASQ6)] {
        let mut exprs = match_set(family, family.load_source(Reg(0)), map.name);
        exprs.push(Expr::Verdict(Verdict::Jump(NETWORKS.to_owned())));
        rules.push((exprs, ""));
    }
    let base = BaseChain { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: SRCNAT };
    let comment = "what leaves the containers' networks";
    let first = WantedChain::new("masq_postrouting", comment, rules);
    let comment = "to the chain of a container's network";
    let networks = WantedChain::new(NETWORKS, comment, Rules::new());
    vec![WantedChain { base: Some(base), ..first }, networks]
}
