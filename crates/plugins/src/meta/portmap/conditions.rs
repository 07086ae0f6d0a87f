// SPDX-License-Identifier: Apache-2.0
//! `conditionsV4` and `conditionsV6`: the packets that a network's port mappings apply to, in the
//! syntax of iptables or of nft. A useful subset of both is supported and becomes nf_tables rules;
//! anything else is an error that names the word. Pure functions.

mod iptables;
mod nft;

use ipnet::IpNet;
use kernel::Family;
use kernel::nft::{Expr, Fib, MetaKey, Op, Reg};

use crate::nftables::match_expr::{ifname_key, match_network};

/// A property of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Match {
    Source(IpNet),
    Destination(IpNet),
    /// The interface that the packet arrived on.
    Interface(Name),
    /// The type of the source address, an `RTN_*` number.
    SourceType(u32),
    DestinationType(u32),
    /// The transport protocol.
    Protocol(u8),
}

/// The name of an interface, or its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Full(String),
    Prefix(String),
}

/// One condition: any of the alternatives matches, or none of them if it is negated.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    negated: bool,
    alternatives: Vec<Match>,
}

/// All conditions for one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// The original text; part of the chain's ID.
    pub text: String,
    family: Family,
    all: Vec<Condition>,
}

/// An unsupported word and the reason.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    word: String,
    problem: String,
}

impl Problem {
    fn new(word: &str, problem: impl Into<String>) -> Self {
        Self { word: word.to_owned(), problem: problem.into() }
    }
}

impl Conditions {
    /// Returns `None` if there are no words. The error names the unsupported word.
    pub(crate) fn parse(words: &[String], family: Family) -> Result<Option<Self>, String> {
        let text = words.join(" ");
        let text = text.trim();
        let all = match text.chars().next() {
            None => return Ok(None),
            // No condition of nft starts with these characters.
            Some('-' | '!') => iptables::parse(words, family),
            Some(_) => nft::parse(text, family),
        };
        match all {
            Ok(all) => Ok(Some(Self { text: text.to_owned(), family, all })),
            Err(Problem { word, problem }) => Err(format!("{word:?} {problem}")),
        }
    }

    /// The alternative lists of expressions; a packet must match one of the lists.
    pub(crate) fn exprs(&self) -> Vec<Vec<Expr>> {
        let mut lists = vec![self.family.match_nfproto().to_vec()];
        for condition in &self.all {
            lists = condition.append_to(&lists, self.family);
        }
        lists
    }
}

impl Condition {
    fn append_to(&self, lists: &[Vec<Expr>], family: Family) -> Vec<Vec<Expr>> {
        let append = |list: &Vec<Expr>, more: Vec<Expr>| [list.clone(), more].concat();
        if self.negated {
            let none = self.alternatives.iter().flat_map(|one| one.exprs(Op::Neq, family));
            let none: Vec<Expr> = none.collect();
            return lists.iter().map(|list| append(list, none.clone())).collect();
        }
        let alternatives = self.alternatives.iter().map(|one| one.exprs(Op::Eq, family));
        let one_of = |more: Vec<Expr>| lists.iter().map(move |list| append(list, more.clone()));
        alternatives.flat_map(one_of).collect()
    }
}

impl Match {
    fn exprs(&self, op: Op, family: Family) -> Vec<Expr> {
        let compare = |load: Expr, value: Vec<u8>| vec![load, Expr::Cmp(Reg(0), op, value)];
        match self {
            Match::Source(net) => address(family.load_source(Reg(0)), op, *net),
            Match::Destination(net) => address(family.load_destination(Reg(0)), op, *net),
            Match::Interface(name) => compare(Expr::Meta(MetaKey::IifName, Reg(0)), name.value()),
            Match::SourceType(kind) => {
                compare(Expr::Fib(Fib::SourceType, Reg(0)), kind.to_ne_bytes().to_vec())
            }
            Match::DestinationType(kind) => {
                compare(Expr::Fib(Fib::DestinationType, Reg(0)), kind.to_ne_bytes().to_vec())
            }
            Match::Protocol(number) => compare(Expr::Meta(MetaKey::L4Proto, Reg(0)), vec![*number]),
        }
    }
}

fn address(load: Expr, op: Op, net: IpNet) -> Vec<Expr> {
    let mut exprs = vec![load];
    exprs.extend(match_network(Reg(0), op, net));
    exprs
}

impl Name {
    fn parse(word: &str, wildcard: char) -> Result<Self, Problem> {
        let (name, is_full) = match word.strip_suffix(wildcard) {
            Some(prefix) => (prefix, false),
            None => (word, true),
        };
        let is_invalid = |c: char| c == '/' || c.is_whitespace() || !c.is_ascii();
        if name.is_empty() || name.len() > 15 || name.contains(is_invalid) {
            return Err(Problem::new(word, "is not an interface name"));
        }
        let name = name.to_owned();
        Ok(if is_full { Name::Full(name) } else { Name::Prefix(name) })
    }

    /// The value to compare with. The kernel compares only as many bytes as the value has.
    fn value(&self) -> Vec<u8> {
        match self {
            Name::Full(name) => ifname_key(name).to_vec(),
            Name::Prefix(prefix) => prefix.as_bytes().to_vec(),
        }
    }
}

/// Parses an address, or a network with a prefix length or a netmask.
fn network(word: &str, family: Family) -> Result<IpNet, Problem> {
    let invalid = || match family {
        Family::V4 => Problem::new(word, "is not an IPv4 address or network"),
        Family::V6 => Problem::new(word, "is not an IPv6 address or network"),
    };
    let (address, length) = word.split_once('/').unwrap_or((word, ""));
    let address: std::net::IpAddr = address.parse().map_err(|_| invalid())?;
    let net = match (length, length.parse::<u8>(), length.parse::<std::net::IpAddr>()) {
        ("", ..) => IpNet::from(address),
        (_, Ok(length), _) => IpNet::new(address, length).map_err(|_| invalid())?,
        (_, _, Ok(mask)) => IpNet::with_netmask(address, mask).map_err(|_| invalid())?,
        _ => return Err(invalid()),
    };
    if Family::of(address) == family { Ok(net.trunc()) } else { Err(invalid()) }
}

/// Parses an address type such as `local`.
fn address_type(word: &str) -> Result<u32, Problem> {
    // RTN_* of linux/rtnetlink.h, from 0.
    const TYPES: [&str; 9] = [
        "unspec",
        "unicast",
        "local",
        "broadcast",
        "anycast",
        "multicast",
        "blackhole",
        "unreachable",
        "prohibit",
    ];
    let found = (0..).zip(TYPES).find(|(_, name)| name.eq_ignore_ascii_case(word));
    let problem = || Problem::new(word, format!("is not one of {}", TYPES.join(", ")));
    found.map(|(number, _)| number).ok_or_else(problem)
}

fn protocol(word: &str) -> Result<u8, Problem> {
    super::conf::Protocol::parse(word)
        .map(super::conf::Protocol::number)
        .ok_or_else(|| Problem::new(word, "is not one of tcp, udp, sctp"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str, family: Family) -> Result<Option<Conditions>, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Conditions::parse(&words, family)
    }

    #[test]
    fn both_syntaxes_give_the_same_expressions() {
        let check = |iptables: &str, nft: &str, family| {
            let one = parse(iptables, family).unwrap().expect("a condition");
            let other = parse(nft, family).unwrap().expect("a condition");
            assert_eq!(one.exprs(), other.exprs(), "{iptables} and {nft}");
        };
        check("-s 10.0.0.0/8", "ip saddr 10.0.0.0/8", Family::V4);
        check("-s 10.0.0.0/255.0.0.0", "ip saddr == 10.0.0.0/8", Family::V4);
        check("! -d 192.0.2.1", "ip daddr != 192.0.2.1", Family::V4);
        check("--source fd00::/8 -i eth0", "ip6 saddr fd00::/8 iifname eth0", Family::V6);
        check("! --in-interface eth+", "meta iifname != \"eth*\"", Family::V4);
        check("-m addrtype --dst-type LOCAL", "fib daddr type local", Family::V4);
        check("-m addrtype ! --src-type LOCAL", "fib saddr type != local", Family::V4);
        check("-p tcp -m comment --comment x", "meta l4proto tcp", Family::V4);
        check("-s 10.0.0.1,10.0.0.2", "ip saddr { 10.0.0.1, 10.0.0.2 }", Family::V4);
        check("-d 10.0.0.1,10.0.0.2", "ip daddr {10.0.0.1,10.0.0.2}", Family::V4);
        let (words, text) = ("-s 10.0.0.0/8,192.0.2.0/24 ! -i eth1", "iifname != eth1");
        check(words, &format!("ip saddr {{ 10.0.0.0/8, 192.0.2.0/24 }} {text}"), Family::V4);
    }

    #[test]
    fn empty_words_are_no_condition() {
        for words in [&[][..], &[String::new()], &[" ".to_owned()]] {
            assert_eq!(Conditions::parse(words, Family::V4), Ok(None));
        }
    }

    #[test]
    fn alternatives_become_several_lists() {
        let text = "ip saddr { 10.0.0.1, 10.0.0.2 } iifname { a, b, c }";
        assert_eq!(parse(text, Family::V4).unwrap().unwrap().exprs().len(), 6);
        let text = "ip saddr != { 10.0.0.1, 10.0.0.2 }";
        let lists = parse(text, Family::V4).unwrap().unwrap().exprs();
        assert_eq!((lists.len(), lists[0].len()), (1, 2 + 2 * 2));
    }

    #[test]
    fn errors_name_the_word() {
        let check = |text: &str, family, problem: &str| {
            assert_eq!(parse(text, family), Err(problem.to_owned()), "{text}");
        };
        let known = "is not supported; allowed are";
        check("-s fd00::1", Family::V4, "\"fd00::1\" is not an IPv4 address or network");
        check("ip6 saddr 10.0.0.1", Family::V6, "\"10.0.0.1\" is not an IPv6 address or network");
        check(
            "ip saddr 10.0.0.1/33",
            Family::V4,
            "\"10.0.0.1/33\" is not an IPv4 address or network",
        );
        check("-s", Family::V4, "\"-s\" must be followed by a value");
        check("ip saddr", Family::V4, "\"saddr\" must be followed by a value");
        check("ip saddr {", Family::V4, "\"{\" has no matching }");
        check("ip saddr { }", Family::V4, "\"{\" is empty");
        check("-i eth0 !", Family::V4, "\"!\" must be followed by an option");
        check(
            "-m addrtype --dst-type NEAR",
            Family::V4,
            "\"NEAR\" is not one of unspec, unicast, local, broadcast, anycast, multicast, \
             blackhole, unreachable, prohibit",
        );
        check("-p icmp", Family::V4, "\"icmp\" is not one of tcp, udp, sctp");
        check("ip ttl 5", Family::V4, &format!("\"ttl\" {known} saddr, daddr"));
        check("ip6 saddr ::1", Family::V4, "\"ip6\" is for the other address family");
        check("-m set", Family::V4, &format!("\"set\" {known} addrtype, comment, tcp, udp, sctp"));
        assert!(parse("--ttl 5", Family::V4).unwrap_err().starts_with("\"--ttl\" is not"));
        assert!(parse("tcp dport 5", Family::V4).unwrap_err().starts_with("\"tcp\" is not"));
        check("-i sixteen-letters-", Family::V4, "\"sixteen-letters-\" is not an interface name");
    }

    proptest! {
        #[test]
        fn parse_never_panics(words in prop::collection::vec("\\PC{0,8}", 0..6)) {
            let _ = Conditions::parse(&words, Family::V4);
        }

        #[test]
        fn parse_never_panics_on_known_words(
            words in prop::collection::vec(prop::sample::select(vec![
                "-s", "-d", "-i", "!", "-m", "addrtype", "--dst-type", "LOCAL", "10.0.0.1", "ip",
                "saddr", "daddr", "!=", "{", "}", ",", "iifname", "meta", "fib", "type", "eth0",
                "-p", "tcp", "l4proto", "10.0.0.0/8",
            ]), 0..12)
        ) {
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            if let Ok(Some(conditions)) = Conditions::parse(&words, Family::V4) {
                prop_assert!(!conditions.exprs().is_empty());
            }
        }
    }
}
