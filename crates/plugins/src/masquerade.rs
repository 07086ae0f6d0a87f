// SPDX-License-Identifier: Apache-2.0
//! `ipMasq`: what a container sends out of its network leaves with the host's address. One element an
//! address, which jumps to a chain that the containers of a network share.

use cni::{Error, IpConfig, Request};
use ipnet::IpNet;
use kernel::nft::{
    BaseChain, ChainKind, Data, DataType, Expr, Hook, MapTo, Op, REG_VERDICT, Reg, Verdict,
};
use serde::Deserialize;

use crate::fault::OrFault;
use crate::identity;
use crate::rules::phrase::{Ip, in_network, octets};
use crate::rules::{Entry, Feature, Ledger, Map, Owner, TABLE, WantedChain};

const SRCNAT: i32 = 100; // NF_IP_PRI_NAT_SRC, linux/netfilter_ipv4.h

static MASQ4: Map = Map {
    number: 1,
    table: TABLE,
    name: "masq4",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Verdicts,
    first_come: false,
    comment: "container: its network's rules for leaving",
};

static MASQ6: Map = Map { number: 2, name: "masq6", key: &[DataType::Ipv6Addr], ..MASQ4 };

/// The elements of containers' addresses.
pub static FEATURE: Feature = Feature {
    number: 1,
    table: TABLE,
    maps: &[&MASQ4, &MASQ6],
    chains: base_chain,
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
}

impl Masquerade {
    /// What the configuration asks for, if anything.
    pub fn understand(request: &Request) -> Result<Option<Self>, Error> {
        let conf: MasqueradeConf = request.conf()?;
        match conf.ip_masq_backend.as_deref() {
            None | Some("" | "nftables") => {}
            Some(other) => {
                let msg = format!(
                    "key \"ipMasqBackend\" is {other:?}, allowed are \"nftables\" and \"iptables\""
                );
                return Err(Error::invalid_config(msg));
            }
        }
        let OptionsConf { ipv4, ipv6, exclude, fully_random } = conf.ip_masq_options;
        let exclude = exclude.iter().map(|net| net.0.trunc()).collect();
        Ok(conf.ip_masq.then_some(Self { ipv4, ipv6, exclude, fully_random }))
    }

    /// Makes the elements of a container's addresses.
    pub fn add(&self, request: &Request, ips: &[IpConfig]) -> Result<(), Error> {
        let (entries, chains) = self.plan(&request.network, ips);
        let mut ledger = open()?;
        let added = ledger.add(&Owner::of(request), &entries, &chains);
        ledger.close();
        added.map_err(|fault| fault.into_error("masquerade the container's addresses"))
    }

    /// Whether they are there.
    pub fn check(&self, request: &Request, ips: &[IpConfig]) -> Result<(), Error> {
        let (entries, _) = self.plan(&request.network, ips);
        let found = open()?.check(&Owner::of(request), &entries);
        found.map_err(|fault| fault.into_error("masquerade"))
    }

    /// An element for each address, and the chains that they jump to.
    fn plan(&self, network: &str, ips: &[IpConfig]) -> (Vec<Entry>, Vec<WantedChain>) {
        let (mut entries, mut chains) = (Vec::new(), Vec::<WantedChain>::new());
        for ip in ips {
            let family = Ip::of(ip.address.addr());
            let (map, is_wanted) = match family {
                Ip::V4 => (&MASQ4, self.ipv4),
                Ip::V6 => (&MASQ6, self.ipv6),
            };
            if !is_wanted {
                continue;
            }
            let chain = self.chain(network, family, ip.address.trunc());
            let data = Some(Data::Verdict(Verdict::Jump(chain.name.clone())));
            entries.push(Entry { map, key: octets(ip.address.addr()), data });
            if chains.iter().all(|other| other.name != chain.name) {
                chains.push(chain);
            }
        }
        (entries, chains)
    }

    /// The chain for addresses of one network: its name follows from what it does, so that another
    /// configuration makes another one and containers that are there keep theirs.
    fn chain(&self, network: &str, family: Ip, own: IpNet) -> WantedChain {
        let is_of_family = |net: &&IpNet| Ip::of(net.addr()) == family;
        let kept: Vec<IpNet> =
            [own].iter().chain(self.exclude.iter().filter(is_of_family)).copied().collect();
        let words: Vec<String> = kept.iter().map(ToString::to_string).collect();
        let random = if self.fully_random { "random" } else { "" };
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.push(random);
        let mut rules: Vec<(Vec<Expr>, &'static str)> = Vec::new();
        for net in &kept {
            rules.push((returning(family, *net), ""));
        }
        rules.push((vec![Expr::Masquerade { fully_random: self.fully_random }], ""));
        WantedChain {
            name: format!("{}{:08x}", chain_prefix(network), identity::digest(&words) as u32),
            base: None,
            comment: network.to_owned(),
            rules,
            entrances: Vec::new(),
        }
    }
}

fn open() -> Result<Ledger, Error> {
    Ledger::open(&FEATURE).or_fault("masquerade")
}

fn chain_prefix(network: &str) -> String {
    format!("masq-{:016x}-", identity::digest(&[network]))
}

fn returning(family: Ip, to: IpNet) -> Vec<Expr> {
    let mut exprs = family.only().to_vec();
    exprs.push(family.destination(Reg(0)));
    exprs.extend(in_network(Reg(0), Op::Eq, to));
    exprs.push(Expr::Verdict(Verdict::Return));
    exprs
}

/// Multicast keeps its source: answers to it do not come back by the same way.
fn base_chain() -> Vec<WantedChain> {
    let multicast = [(Ip::V4, "224.0.0.0/4"), (Ip::V6, "ff00::/8")];
    let mut rules: Vec<(Vec<Expr>, &'static str)> = Vec::new();
    for (family, net) in multicast {
        rules.push((returning(family, net.parse().expect("a network")), ""));
    }
    for (family, map) in [(Ip::V4, &MASQ4), (Ip::V6, &MASQ6)] {
        let mut exprs = family.only().to_vec();
        exprs.push(family.source(Reg(0)));
        exprs.push(Expr::Map { set: map.name.to_owned(), key: Reg(0), to: REG_VERDICT });
        rules.push((exprs, ""));
    }
    let base = BaseChain { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: SRCNAT };
    let comment = "what leaves the containers' networks".to_owned();
    let (name, entrances) = ("masq_postrouting".to_owned(), Vec::new());
    vec![WantedChain { name, base: Some(base), comment, rules, entrances }]
}
