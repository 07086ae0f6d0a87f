// SPDX-License-Identifier: Apache-2.0
//! Comparison of observed tables, chains, sets, ranges and rules with the desired ones, and events
//! of changes.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, DataType, Event, Events, Expr, Hook, MapTo, MetaKey, Nft,
    Op, Place, Range, Reg, Rule, Set, Table, TableFamily, Verdict,
};
use kernel::{Family, Received};
use testkit::{in_netns, run};

const TABLE: Table<'static> = Table { family: TableFamily::Inet, name: "t" };

const CHAIN: Chain<'static> = Chain {
    table: TABLE,
    name: "c",
    base: Some(BaseChain { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: 100 }),
    comment: "",
};

const SET: Set<'static> = Set {
    table: TABLE,
    name: "s",
    key: &[DataType::Ipv4Addr],
    data: MapTo::Nothing,
    is_interval: true,
    comment: "",
};

fn nft(script: &str) -> String {
    run("nft", &[script])
}

fn ranges(texts: &[&str]) -> Vec<Range> {
    let networks: Vec<IpNet> = texts.iter().map(|text| text.parse().unwrap()).collect();
    Range::of(&networks)
}

#[test]
fn ranges_are_written_and_read_back() {
    in_netns(|| {
        let nft_socket = Nft::open().unwrap();
        let written =
            ranges(&["10.0.0.0/8", "255.255.255.255/32", "192.0.2.0/25", "192.0.2.192/26"]);
        let mut batch = Batch::new();
        batch.add_table(TABLE, "");
        batch.add_set(&SET);
        batch.add_ranges(TABLE, "s", &written);
        nft_socket.commit(&batch).unwrap();
        let shown = nft("list set inet t s").split_whitespace().collect::<Vec<_>>().join(" ");
        let elements = "10.0.0.0/8, 192.0.2.0/25, 192.0.2.192/26, 255.255.255.255 }";
        assert!(shown.contains(&format!("flags interval elements = {{ {elements}")), "{shown}");
        assert_eq!(nft_socket.ranges(TABLE, "s").unwrap(), written);
        nft("flush set inet t s");
        nft(
            "add element inet t s { 10.0.0.0/9, 10.128.0.0-10.200.0.255, 0.0.0.0/32, 224.0.0.0/3 }",
        );
        let mut read = nft_socket.ranges(TABLE, "s").unwrap();
        assert_eq!(read.pop(), ranges(&["224.0.0.0/3"]).pop());
        assert_eq!(read[0], ranges(&["0.0.0.0/32"])[0]);
        assert_eq!(read[1], ranges(&["10.0.0.0/9"])[0]);
        let mut batch = Batch::new();
        batch.flush_set(TABLE, "s");
        batch.add_ranges(TABLE, "s", &ranges(&["10.0.0.0/7"]));
        nft_socket.commit(&batch).unwrap();
        assert_eq!(nft_socket.ranges(TABLE, "s").unwrap(), ranges(&["10.0.0.0/7"]));
        // These need more than one message.
        let many: Vec<String> = (0..250).map(|n| format!("172.16.{n}.0/25")).collect();
        let many = ranges(&many.iter().map(String::as_str).collect::<Vec<_>>());
        let mut batch = Batch::new();
        batch.flush_set(TABLE, "s");
        batch.add_ranges(TABLE, "s", &many);
        nft_socket.commit(&batch).unwrap();
        assert_eq!(nft_socket.ranges(TABLE, "s").unwrap(), many);
        assert_eq!(nft_socket.ranges(TABLE, "missing").unwrap(), []);
    });
}

#[test]
fn changed_table_is_detected() {
    in_netns(|| {
        let socket = Nft::open().unwrap();
        assert_eq!(socket.table(TABLE).unwrap(), None);
        let mut batch = Batch::new();
        batch.add_table(TABLE, "");
        batch.add_set(&SET);
        batch.add_chain(&CHAIN);
        socket.commit(&batch).unwrap();
        let observed = || socket.table(TABLE).unwrap().unwrap();
        let is_unchanged = || {
            let table = observed();
            table.is_active && table.chains[0].is_like(&CHAIN) && table.sets[0].is_like(&SET)
        };
        assert!(is_unchanged() && observed().chains.len() == 1 && observed().sets.len() == 1);
        nft("add table inet t { flags dormant; }");
        assert!(!is_unchanged());
        nft("delete table inet t");
        let is_accepted = |kind: &str, set: &str| {
            nft(&format!(
                "add table inet t; add set inet t s {{ {set} }}; add chain inet t c {{ {kind} }}"
            ));
            let result = is_unchanged();
            let mut batch = Batch::new();
            batch.remove_table(TABLE);
            socket.commit(&batch).unwrap();
            result
        };
        let (chain, set) =
            ("type nat hook postrouting priority 100;", "type ipv4_addr; flags interval;");
        assert!(is_accepted(chain, set));
        assert!(!is_accepted("type nat hook postrouting priority 99;", set));
        assert!(!is_accepted("type nat hook prerouting priority 100;", set));
        assert!(!is_accepted("type filter hook postrouting priority 100;", set));
        assert!(!is_accepted("type nat hook postrouting priority 100; policy drop;", set));
        assert!(!is_accepted("", set));
        assert!(!is_accepted(chain, "type ipv4_addr;"));
        assert!(!is_accepted(chain, "type ipv6_addr; flags interval;"));
    });
}

#[test]
fn rule_is_compared_with_desired_expressions() {
    in_netns(|| {
        let socket = Nft::open().unwrap();
        let bit = 0x4000_u32.to_ne_bytes().to_vec();
        let marked = vec![
            Expr::Meta(MetaKey::Mark, Reg(0)),
            Expr::Bitwise { reg: Reg(0), mask: bit.clone(), xor: vec![0; 4] },
            Expr::Cmp(Reg(0), Op::Eq, bit),
            Expr::Counter,
            Expr::Verdict(Verdict::Jump("d".into())),
        ];
        let looked_up = |inverted, fully_random| {
            let lookup = Expr::Lookup { set: "s".into(), key: Reg(0), inverted };
            let rest = [Family::V4.load_source(Reg(0)), lookup, Expr::Masquerade { fully_random }];
            [&Family::V4.match_nfproto()[..], &rest].concat()
        };
        let desired = [marked, looked_up(false, true), looked_up(true, false)];
        let mut batch = Batch::new();
        batch.add_table(TABLE, "");
        batch.add_set(&SET);
        batch.add_chain(&CHAIN);
        batch.add_chain(&Chain { name: "d", base: None, ..CHAIN });
        for exprs in &desired {
            let (exprs, place) = (exprs.clone(), Place::Last);
            batch.add_rule(&Rule { table: TABLE, chain: "c", place, exprs, comment: "" });
        }
        socket.commit(&batch).unwrap();
        let check = |rule: &str| {
            nft("flush chain inet t c");
            nft(&format!("add rule inet t c {rule}"));
            let observed = socket.rules(TABLE, "c").unwrap();
            desired.iter().position(|exprs| observed[0].is_like(exprs))
        };
        let observed = socket.rules(TABLE, "c").unwrap();
        for (at, rule) in observed.iter().enumerate() {
            let like: Vec<usize> = (0..3).filter(|one| rule.is_like(&desired[*one])).collect();
            assert_eq!(like, [at]);
        }
        assert_eq!(check("meta mark & 0x4000 == 0x4000 counter jump d"), Some(0));
        assert_eq!(check("meta mark & 0x4000 == 0x4000 counter goto d"), None);
        assert_eq!(check("meta mark & 0x4000 == 0x4000 jump d"), None);
        assert_eq!(check("meta mark & 0x4000 != 0x4000 counter jump d"), None);
        assert_eq!(check("meta mark & 0xc000 == 0x4000 counter jump d"), None);
        assert_eq!(check("ip saddr @s masquerade fully-random"), Some(1));
        assert_eq!(check("ip saddr @s masquerade"), None);
        assert_eq!(check("ip saddr != @s masquerade"), Some(2));
        assert_eq!(check("ip saddr != @s masquerade random"), None);
        assert_eq!(check("ip daddr != @s masquerade"), None);
    });
}

#[test]
fn rules_that_block_everything_are_detected() {
    in_netns(|| {
        let socket = Nft::open().unwrap();
        let filter = Table { family: TableFamily::Ip, name: "filter" };
        let check = |words: &str, expected: bool| {
            run("iptables-nft", &["-F", "FORWARD"]);
            let words = format!("-A FORWARD {words}");
            run("iptables-nft", &words.split_whitespace().collect::<Vec<_>>());
            let rules = socket.rules(filter, "FORWARD").unwrap();
            assert_eq!(rules[0].blocks_all(), expected, "{words}");
        };
        check("-j DROP", true);
        check("-m comment --comment all -j DROP", true);
        check("-j REJECT --reject-with icmp-host-prohibited", true);
        check("-j ACCEPT", false);
        check("-i eth0 -j DROP", false);
        check("-s 10.0.0.0/8 -j REJECT", false);
        check("-m conntrack --ctstate INVALID -j DROP", false);
        check("-j LOG", false);
    });
}

#[test]
fn changes_have_events() {
    in_netns(|| {
        let mut events = Events::listen().unwrap();
        let mut next = |script: &str| {
            nft(script);
            let (mut received, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
            while received.is_empty() {
                let result = events.receive(deadline, |event| received.push(event)).unwrap();
                assert_ne!(result, Received::Deadline, "{script}");
            }
            while events.receive(Instant::now(), |event| received.push(event)).unwrap()
                == Received::Events
            {}
            received
        };
        let event = |family, chain: Option<&str>| Event {
            family,
            table: "t".to_owned(),
            chain: chain.map(str::to_owned),
        };
        let inet = |chain| event(TableFamily::Inet, chain);
        assert_eq!(next("add table inet t"), [inet(None)]);
        assert_eq!(next("add chain inet t c"), [inet(Some("c"))]);
        assert_eq!(next("add rule inet t c accept"), [inet(Some("c"))]);
        assert_eq!(next("add set inet t s { type mark; }"), [inet(None)]);
        assert_eq!(next("add element inet t s { 7 }"), [inet(None)]);
        assert_eq!(next("add table ip6 t"), [event(TableFamily::Ip6, None)]);
        let received = next("flush ruleset");
        assert!(
            received.contains(&inet(None)) && received.contains(&inet(Some("c"))),
            "{received:?}"
        );
    });
}
