// SPDX-License-Identifier: Apache-2.0
//! `ipMasq`: packets that leave a container's network get the host's address. Each container
//! address is an element of the set of a chain that the containers of a network share.

use std::net::IpAddr;

use cni::{Attachment, Error, IpConfig, Request};
use ipnet::IpNet;
use kernel::Family;
use kernel::iptables_legacy::is_in_use;
use kernel::nft::{
    BaseChain, ChainKind, DataType, Expr, Hook, MapTo, Nft, Op, Place, Reg, Verdict,
};
use serde::Deserialize;

use crate::attach::names;
use crate::compat::go_nft;
use crate::compat::iptables::{self, masquerade as by_iptables};
use crate::error::Context;
use crate::nftables::match_expr::{match_network, match_set, octets};
use crate::nftables::{
    self, ChainId, ConflictPolicy, DesiredChain, ElementStore, Entry, Feature, JumpRule, Map,
    Owner, Placement, Rules, TABLE, key,
};

const SRCNAT: i32 = 100; // NF_IP_PRI_NAT_SRC, linux/netfilter_ipv4.h

/// The chain that jumps to the networks' chains.
const NETWORKS: &str = "masq_networks";

static MASQ4: Map = Map {
    number: 1,
    table: TABLE,
    name: "masq4",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Nothing,
    conflict: ConflictPolicy::LastWins,
    placement: Placement::PerChainAndSingle,
    comment: "containers whose packets leave with this host's address",
};

static MASQ6: Map = Map { number: 2, name: "masq6", key: &[DataType::Ipv6Addr], ..MASQ4 };

pub(crate) static FEATURE: Feature = Feature {
    number: 1,
    table: TABLE,
    maps: &[&MASQ4, &MASQ6],
    chains,
    networks_chains: Some(chain_prefix),
};

/// The keys of bridge and ptp.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct MasqueradeConf {
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

/// The parsed configuration of masquerading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Masquerade {
    ipv4: bool,
    ipv6: bool,
    /// Destinations that are not masqueraded.
    exclude: Vec<IpNet>,
    fully_random: bool,
    /// Uses iptables-restore instead of netlink.
    by_iptables: bool,
}

impl Masquerade {
    /// Returns `None` if the network is not masqueraded.
    pub(crate) fn parse(request: &Request) -> Result<Option<Self>, Error> {
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

    pub(crate) fn add(&self, request: &Request, ips: &[IpConfig]) -> Result<(), Error> {
        if self.by_iptables {
            return by_iptables::add(&self.for_iptables(request, ips));
        }
        let (entries, chains) = self.plan(&request.network, ips);
        let mut store = open()?;
        let added = store.add(&Owner::of(request), &entries, &chains);
        added.map_err(|error| error.into_error("masquerade the container's addresses"))
    }

    pub(crate) fn check(&self, request: &Request, ips: &[IpConfig]) -> Result<(), Error> {
        if self.by_iptables {
            let missing = by_iptables::missing(&self.for_iptables(request, ips))?;
            return missing.map_or(Ok(()), |rule| {
                Err(Error::internal(format!("masquerade: iptables has no rule {rule:?}")))
            });
        }
        let (entries, chains) = self.plan(&request.network, ips);
        let store = open()?;
        let checked = store.check(&Owner::of(request), &entries, &chains);
        let Err(error) = checked else { return Ok(()) };
        if self.is_by_go(store.nft(), request, ips).context("masquerade")? {
            return Ok(());
        }
        Err(error.into_error("masquerade"))
    }

    pub(crate) fn status(&self) -> Result<(), Error> {
        if self.by_iptables { iptables::status() } else { nftables::status(&FEATURE, "masquerade") }
    }

    /// Whether the Go plugin masquerades these addresses because it made the attachment.
    fn is_by_go(&self, nft: &Nft, request: &Request, ips: &[IpConfig]) -> kernel::Result<bool> {
        let mut is_any = false;
        for address in ips.iter().map(|ip| ip.address.addr()).filter(|ip| self.is_for(*ip)) {
            is_any = true;
            let (network, attachment) = (&request.network, request.attachment());
            if !go_nft::has_masquerade(nft, network, &attachment, address)? {
                return Ok(false);
            }
        }
        Ok(is_any)
    }

    /// The undo step of an ADD with iptables.
    pub(crate) fn undo_iptables<'a>(
        &'a self,
        request: &'a Request,
        ips: &[IpConfig],
    ) -> Option<impl FnOnce() + use<'a>> {
        let desired = self.by_iptables.then(|| self.for_iptables(request, ips))?;
        Some(move || by_iptables::rollback(&desired))
    }

    fn for_iptables<'a>(
        &'a self,
        request: &'a Request,
        ips: &[IpConfig],
    ) -> by_iptables::DesiredRules<'a> {
        let own = ips.iter().map(|ip| ip.address).filter(|net| self.is_for(net.addr())).collect();
        by_iptables::DesiredRules {
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

    /// An entry for each address, and the chains that use the entries.
    fn plan(&self, network: &str, ips: &[IpConfig]) -> (Vec<Entry>, Vec<DesiredChain>) {
        let (mut entries, mut chains) = (Vec::new(), Vec::<DesiredChain>::new());
        for ip in ips.iter().filter(|ip| self.is_for(ip.address.addr())) {
            let family = Family::of(ip.address.addr());
            let map = if family == Family::V4 { &MASQ4 } else { &MASQ6 };
            let excluded = self.excluded(family, ip.address.trunc());
            let id = self.chain_id(network, &excluded);
            let key = key(&[&id.to_be_bytes(), &octets(ip.address.addr())]);
            entries.push(Entry { map, key, data: None });
            let chain = self.chain(network, (map, id), family, &excluded);
            if chains.iter().all(|other| other.name != chain.name) {
                chains.push(chain);
            }
        }
        (entries, chains)
    }

    /// The destinations that are not masqueraded: the container's own network and those of the
    /// configuration.
    fn excluded(&self, family: Family, own: IpNet) -> Vec<IpNet> {
        let is_of_family = |net: &&IpNet| Family::of(net.addr()) == family;
        [own].iter().chain(self.exclude.iter().filter(is_of_family)).copied().collect()
    }

    /// The ID is derived from the contents of the chain. A changed configuration therefore makes a
    /// new chain, and existing containers keep theirs.
    fn chain_id(&self, network: &str, excluded: &[IpNet]) -> ChainId {
        let excluded: Vec<String> = excluded.iter().map(ToString::to_string).collect();
        let random = if self.fully_random { "random" } else { "" };
        let words = [network].into_iter().chain(excluded.iter().map(String::as_str));
        let words = words.chain([random]);
        names::digest(&words.collect::<Vec<_>>()) as ChainId
    }

    fn chain(
        &self,
        network: &str,
        (map, id): (&'static Map, ChainId),
        family: Family,
        excluded: &[IpNet],
    ) -> DesiredChain {
        let mut rules: Rules = excluded.iter().map(|net| (returning(family, *net), "")).collect();
        rules.push((vec![Expr::Masquerade { fully_random: self.fully_random }], ""));
        let exprs = match_set(family, family.load_source(Reg(0)), &map.part(id));
        let name = format!("{}{id:08x}", chain_prefix(network));
        DesiredChain {
            parts: vec![(map, id)],
            jump_rules: vec![JumpRule { from: NETWORKS, place: Place::Last, exprs }],
            ..DesiredChain::new(name, network, rules)
        }
    }
}

/// DEL of rules that iptables-legacy made, which netlink does not reach.
pub(crate) fn remove_by_iptables(request: &Request, addresses: &[IpAddr]) -> Result<(), Error> {
    let families = [Family::V4, Family::V6];
    if !is_by_iptables(request) || !families.iter().any(|one| is_in_use(*one, "nat")) {
        return Ok(());
    }
    by_iptables::remove(&request.network, &request.container_id, addresses)
}

/// GC of rules that iptables made.
pub(crate) fn gc_by_iptables(request: &Request, valid: &[Attachment]) -> Result<(), Error> {
    if is_by_iptables(request) { by_iptables::gc(&request.network, valid) } else { Ok(()) }
}

fn is_by_iptables(request: &Request) -> bool {
    let parsed = Masquerade::parse(request).ok().flatten();
    parsed.is_some_and(|masquerade| masquerade.by_iptables)
}

fn open() -> Result<ElementStore, Error> {
    ElementStore::open(&FEATURE).context("masquerade")
}

fn chain_prefix(network: &str) -> String {
    format!("masq-{:016x}-", names::digest(&[network]))
}

fn returning(family: Family, to: IpNet) -> Vec<Expr> {
    let mut exprs = family.match_nfproto().to_vec();
    exprs.push(family.load_destination(Reg(0)));
    exprs.extend(match_network(Reg(0), Op::Eq, to));
    exprs.push(Expr::Verdict(Verdict::Return));
    exprs
}

/// Multicast keeps its source address: replies do not pass the same NAT entry.
fn chains() -> Vec<DesiredChain> {
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
    let comment = "packets that leave the containers' networks";
    let first = DesiredChain::new("masq_postrouting", comment, rules);
    let comment = "jumps to the chain of a container's network";
    let networks = DesiredChain::new(NETWORKS, comment, Rules::new());
    vec![DesiredChain { base: Some(base), ..first }, networks]
}
