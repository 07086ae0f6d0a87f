// SPDX-License-Identifier: Apache-2.0
//! `conditionsV4` and `conditionsV6`: which packets a network's port mappings are for, in the words of
//! iptables or of nft. A useful part of both is understood and becomes rules; the rest is an error that
//! names the word. Pure.

mod iptables;
mod nft;

use ipnet::IpNet;
use kernel::Family;
use kernel::nft::{Expr, Fib, MetaKey, Op, Reg};

use crate::nftables::match_expr::{ifname_key, match_network};

/// One thing that is asked of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Match {
    Source(IpNet),
    Destination(IpNet),
    /// The interface that it came in by.
    Interface(Name),
    /// What the source address is to this host, an `RTN_*` number.
    SourceType(u32),
    DestinationType(u32),
    /// The protocol that IP carries.
    Protocol(u8),
}

/// An interface's name, or how it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Whole(String),
    Beginning(String),
}

/// A thing that is asked, or asked not to be so; of several alternatives one will do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    negated: bool,
    alternatives: Vec<Match>,
}

/// All that is asked of a packet, for one family of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// As written, for the digest and for people.
    pub text: String,
    family: Family,
    all: Vec<Condition>,
}

/// A word that is not understood, and what could be in its place.
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
    /// Understands the words; `None` where there are none. The error is a text that names the word.
    pub fn parse(words: &[String], family: Family) -> Result<Option<Self>, String> {
        let text = words.join(" ");
        let text = text.trim();
        let all = match text.chars().next() {
            None => return Ok(None),
            // No condition of nft begins so.
            Some('-' | '!') => iptables::parse(words, family),
            Some(_) => nft::parse(text, family),
        };
        match all {
            Ok(all) => Ok(Some(Self { text: text.to_owned(), family, all })),
            Err(Problem { word, problem }) => Err(format!("{word:?} {problem}")),
        }
    }

    /// The lists of instructions that the packets in question pass one of.
    pub fn exprs(&self) -> Vec<Vec<Expr>> {
        let mut lists = vec![self.family.match_nfproto().to_vec()];
        for condition in &self.all {
            lists = condition.append_to(&lists, self.family);
        }
        lists
    }
}

impl Condition {
    fn append_to(&self, lists: &[Vec<Expr>], family: Family) -> Vec<Vec<Expr>> {
        let longer = |list: &Vec<Expr>, more: Vec<Expr>| [list.clone(), more].concat();
        if self.negated {
            let none = self.alternatives.iter().flat_map(|one| one.exprs(Op::Neq, family));
            let none: Vec<Expr> = none.collect();
            return lists.iter().map(|list| longer(list, none.clone())).collect();
        }
        let alternatives = self.alternatives.iter().map(|one| one.exprs(Op::Eq, family));
        let one_of = |more: Vec<Expr>| lists.iter().map(move |list| longer(list, more.clone()));
        alternatives.flat_map(one_of).collect()
    }
}

impl Match {
    fn exprs(&self, op: Op, family: Family) -> Vec<Expr> {
        let compare = |load: Expr, value: Vec<u8>| vec![load, Expr::Cmp(Reg(0), op, value)];
        match self {
            Match::Source(net) => address(family.load_source(Reg(0)), op, *net),
            Match::Destination(net) => address(family.load_destination(Reg(0)), op, *net),
            Match::Interface(name) => {
                compare(Expr::Meta(MetaKey::IifName, Reg(0)), name.compared_with())
            }
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
        let (beginning, is_whole) = match word.strip_suffix(wildcard) {
            Some(beginning) => (beginning, false),
            None => (word, true),
        };
        let bad = |c: char| c == '/' || c.is_whitespace() || !c.is_ascii();
        if beginning.is_empty() || beginning.len() > 15 || beginning.contains(bad) {
            return Err(Problem::new(word, "is no name of an interface"));
        }
        let name = beginning.to_owned();
        Ok(if is_whole { Name::Whole(name) } else { Name::Beginning(name) })
    }

    /// A shorter value is compared with the beginning only.
    fn compared_with(&self) -> Vec<u8> {
        match self {
            Name::Whole(name) => ifname_key(name).to_vec(),
            Name::Beginning(beginning) => beginning.as_bytes().to_vec(),
        }
    }
}

/// An address, or a network with the length or the mask of its prefix.
fn network(word: &str, family: Family) -> Result<IpNet, Problem> {
    let wanted = || match family {
        Family::V4 => Problem::new(word, "is no IPv4 address or network"),
        Family::V6 => Problem::new(word, "is no IPv6 address or network"),
    };
    let (address, length) = word.split_once('/').unwrap_or((word, ""));
    let address: std::net::IpAddr = address.parse().map_err(|_| wanted())?;
    let net = match (length, length.parse::<u8>(), length.parse::<std::net::IpAddr>()) {
        ("", ..) => IpNet::from(address),
        (_, Ok(length), _) => IpNet::new(address, length).map_err(|_| wanted())?,
        (_, _, Ok(mask)) => IpNet::with_netmask(address, mask).map_err(|_| wanted())?,
        _ => return Err(wanted()),
    };
    if Family::of(address) == family { Ok(net.trunc()) } else { Err(wanted()) }
}

/// `local` and its like.
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
    let problem = || Problem::new(word, format!("is none of {}", TYPES.join(", ")));
    found.map(|(number, _)| number).ok_or_else(problem)
}

fn protocol(word: &str) -> Result<u8, Problem> {
    super::conf::Protocol::parse(word)
        .map(super::conf::Protocol::number)
        .ok_or_else(|| Problem::new(word, "is none of tcp, udp, sctp"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str, family: Family) -> Result<Option<Conditions>, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Conditions::parse(&words, family)
    }

    /// What is understood is the same, however it is said.
    #[test]
    fn both_languages_say_the_same() {
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
    fn nothing_asked_is_no_condition() {
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
    fn problems_name_the_word() {
        let check = |text: &str, family, problem: &str| {
            assert_eq!(parse(text, family), Err(problem.to_owned()), "{text}");
        };
        let known = "is not understood here; allowed are";
        check("-s fd00::1", Family::V4, "\"fd00::1\" is no IPv4 address or network");
        check("ip6 saddr 10.0.0.1", Family::V6, "\"10.0.0.1\" is no IPv6 address or network");
        check("ip saddr 10.0.0.1/33", Family::V4, "\"10.0.0.1/33\" is no IPv4 address or network");
        check("-s", Family::V4, "\"-s\" must be followed by a value");
        check("ip saddr", Family::V4, "\"saddr\" must be followed by a value");
        check("ip saddr {", Family::V4, "\"{\" has no }");
        check("ip saddr { }", Family::V4, "\"{\" has nothing in it");
        check("-i eth0 !", Family::V4, "\"!\" must be followed by an option");
        check(
            "-m addrtype --dst-type NEAR",
            Family::V4,
            "\"NEAR\" is none of unspec, unicast, local, broadcast, anycast, multicast, \
             blackhole, unreachable, prohibit",
        );
        check("-p icmp", Family::V4, "\"icmp\" is none of tcp, udp, sctp");
        check("ip ttl 5", Family::V4, &format!("\"ttl\" {known} saddr, daddr"));
        check("ip6 saddr ::1", Family::V4, "\"ip6\" is for the other family of addresses");
        check("-m set", Family::V4, &format!("\"set\" {known} addrtype, comment, tcp, udp, sctp"));
        assert!(parse("--ttl 5", Family::V4).unwrap_err().starts_with("\"--ttl\" is not"));
        assert!(parse("tcp dport 5", Family::V4).unwrap_err().starts_with("\"tcp\" is not"));
        check("-i sixteen-letters-", Family::V4, "\"sixteen-letters-\" is no name of an interface");
    }

    proptest! {
        #[test]
        fn any_words_are_read(words in prop::collection::vec("\\PC{0,8}", 0..6)) {
            let _ = Conditions::parse(&words, Family::V4);
        }

        #[test]
        fn any_words_of_the_languages_are_read(
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
