// SPDX-License-Identifier: Apache-2.0
//! nf_tables: `nft` verifies what the crate writes, and creates what it reads.

use kernel::nft::{
    BaseChain, Batch, Chain, ChainKind, CtKey, Data, DataType, Element, Expr, Fib, Hook, MapTo,
    MetaKey, Nft, Op, PayloadBase, Place, REG_VERDICT, Reg, Rule, Set, Table, TableFamily,
    Userdata, Verdict,
};
use testkit::{in_netns, run};

const TABLE: Table<'static> = Table { family: TableFamily::Inet, name: "t" };

/// `meta l4proto . th dport map @ports`, keyed as `tcp . 8080`.
const TCP_8080: [u8; 8] = [6, 0, 0, 0, 0x1f, 0x90, 0, 0];
const TO_POD: [u8; 8] = [10, 1, 0, 2, 0, 80, 0, 0];

fn payload(base: PayloadBase, offset: u32, len: u32, to: u32) -> Expr {
    Expr::Payload { base, offset, len, to: Reg(to) }
}

fn rule(chain: &'static str, comment: &'static str, exprs: Vec<Expr>) -> Rule<'static> {
    Rule { table: TABLE, chain, place: Place::Last, exprs, comment }
}

fn base(name: &'static str, kind: ChainKind, hook: Hook, priority: i32) -> Chain<'static> {
    let base = Some(BaseChain { kind, hook, priority });
    Chain { table: TABLE, name, base, comment: "" }
}

fn set<'a>(name: &'a str, key: &'a [DataType], data: MapTo<'a>) -> Set<'a> {
    Set { table: TABLE, name, key, data, is_interval: false, comment: "by test" }
}

/// Expressions that count a packet and mark it.
fn mark() -> Vec<Expr> {
    vec![
        Expr::Counter,
        Expr::Meta(MetaKey::Mark, Reg(0)),
        Expr::Bitwise {
            reg: Reg(0),
            mask: (!0x1000_u32).to_ne_bytes().to_vec(),
            xor: 0x1000_u32.to_ne_bytes().to_vec(),
        },
        Expr::SetMeta(MetaKey::Mark, Reg(0)),
    ]
}

/// Builds a batch with every kind of object and expression that podwire uses.
fn everything() -> Batch {
    use DataType::{IfName, InetProto, InetService, Ipv4Addr};
    let mut batch = Batch::new();
    batch.add_table(TABLE, "made by a test");
    batch.add_set(&set(
        "ports",
        &[InetProto, InetService],
        MapTo::Values(&[Ipv4Addr, InetService]),
    ));
    batch.add_set(&set("pods", &[IfName, Ipv4Addr], MapTo::Nothing));
    batch.add_set(&set("verdicts", &[Ipv4Addr], MapTo::Verdicts));
    batch.create_chain(&Chain { table: TABLE, name: "masq", base: None, comment: "a comment" });
    batch.add_chain(&base("prerouting", ChainKind::Nat, Hook::Prerouting, -100));
    batch.add_chain(&base("postrouting", ChainKind::Nat, Hook::Postrouting, 100));
    batch.add_chain(&base("forward", ChainKind::Filter, Hook::Forward, -10));
    let v4 = [Expr::Meta(MetaKey::NfProto, Reg(0)), Expr::Cmp(Reg(0), Op::Eq, vec![2])];
    let dnat = [
        Expr::Fib(Fib::DestinationType, Reg(0)),
        Expr::Cmp(Reg(0), Op::Eq, 2_u32.to_ne_bytes().to_vec()),
        Expr::Meta(MetaKey::L4Proto, Reg(0)),
        payload(PayloadBase::Transport, 2, 2, 1),
        Expr::Map { set: "ports".into(), key: Reg(0), to: Reg(0) },
        Expr::Dnat { family: TableFamily::Ip, address: Reg(0), port: Reg(1) },
    ];
    batch.add_rule(&rule("prerouting", "ports", [&v4[..], &dnat].concat()));
    let hairpin = [
        Expr::Ct(CtKey::Status, Reg(0)),
        Expr::Bitwise { reg: Reg(0), mask: 0x20_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Expr::Cmp(Reg(0), Op::Neq, vec![0; 4]),
        Expr::Meta(MetaKey::IifName, Reg(0)),
        payload(PayloadBase::Network, 16, 4, 4),
        Expr::Lookup { set: "pods".into(), key: Reg(0), inverted: false },
        Expr::Masquerade { fully_random: true },
    ];
    batch.add_rule(&rule("postrouting", "", [&v4[..], &hairpin].concat()));
    let verdicts = [
        payload(PayloadBase::Network, 12, 4, 0),
        Expr::Map { set: "verdicts".into(), key: Reg(0), to: REG_VERDICT },
    ];
    batch.add_rule(&rule("postrouting", "", [&v4[..], &verdicts].concat()));
    batch.add_rule(&rule("masq", "", vec![Expr::Masquerade { fully_random: false }]));
    batch.add_rule(&rule("forward", "", mark()));
    let jump = Expr::Verdict(Verdict::Jump("masq".into()));
    batch.add_rule(&rule("postrouting", "to masq", vec![jump]));
    batch
}

fn add_elements(batch: &mut Batch) {
    let userdata = Userdata { comment: "net c1/eth0".into(), bytes: vec![1, 2, 3] };
    let data = Data::Value(TO_POD.to_vec());
    let one = Element { key: &TCP_8080, data: Some(&data), userdata: Some(&userdata) };
    batch.create_elements(TABLE, "ports", &[one]);
    let mut pod = b"cni0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    pod.extend([10, 1, 0, 2]);
    batch.create_elements(TABLE, "pods", &[Element { key: &pod, data: None, userdata: None }]);
    let jump = Data::Verdict(Verdict::Jump("masq".into()));
    let one = Element { key: &[10, 1, 0, 2], data: Some(&jump), userdata: None };
    batch.create_elements(TABLE, "verdicts", &[one]);
}

const LISTED: &str = r#"table inet t {
	comment "made by a test"
	map ports {
		type inet_proto . inet_service : ipv4_addr . inet_service
		comment "by test"
		elements = { tcp . 8080 comment "net c1/eth0" : 10.1.0.2 . 80 }
	}

	set pods {
		type ifname . ipv4_addr
		comment "by test"
		elements = { "cni0" . 10.1.0.2 }
	}

	map verdicts {
		type ipv4_addr : verdict
		comment "by test"
		elements = { 10.1.0.2 : jump masq }
	}

	chain masq {
		comment "a comment"
		masquerade
	}

	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @ports comment "ports"
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat iifname . ip daddr @pods masquerade fully-random
		ip saddr vmap @verdicts
		jump masq comment "to masq"
	}

	chain forward {
		type filter hook forward priority filter - 10; policy accept;
		counter packets 0 bytes 0 meta mark set meta mark | 0x00001000
	}
}
"#;

#[test]
fn nft_lists_and_restores_every_object() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        let mut batch = everything();
        add_elements(&mut batch);
        nft.commit(&batch).unwrap();
        let listed = run("nft", &["list", "ruleset"]);
        assert_eq!(listed, LISTED);
        let saved = std::env::temp_dir().join(format!("nft-saved-{}", std::process::id()));
        std::fs::write(&saved, &listed).unwrap();
        run("nft", &["flush", "ruleset"]);
        run("nft", &["-f", saved.to_str().unwrap()]);
        assert_eq!(run("nft", &["list", "ruleset"]), LISTED);
        std::fs::remove_file(saved).unwrap();
    });
}

/// Interface names and marks are in host byte order, which the user data of the set must say.
#[test]
fn nft_prints_interface_names_and_marks() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        let mut batch = Batch::new();
        batch.add_table(TABLE, "");
        batch.add_set(&set("ports", &[DataType::IfName], MapTo::Nothing));
        batch.add_set(&set("marks", &[DataType::Mark], MapTo::Values(&[DataType::Mark])));
        let port = Element { key: b"cni0\0\0\0\0\0\0\0\0\0\0\0\0", data: None, userdata: None };
        batch.create_elements(TABLE, "ports", &[port]);
        let (mark, one) = (0x1000_u32.to_ne_bytes(), Data::Value(1_u32.to_ne_bytes().to_vec()));
        let element = Element { key: &mark, data: Some(&one), userdata: None };
        batch.create_elements(TABLE, "marks", &[element]);
        nft.commit(&batch).unwrap();
        let listed = run("nft", &["list", "ruleset"]);
        for element in ["{ \"cni0\" }", "{ 0x00001000 : 0x00000001 }"] {
            assert!(listed.contains(element), "{listed}");
        }
    });
}

#[test]
fn batch_is_applied_completely_or_not_at_all() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        let mut batch = everything();
        batch.remove_chain(TABLE, "missing");
        let error = nft.commit(&batch).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert!(error.to_string().starts_with("remove chain inet t missing"), "{error}");
        assert_eq!(run("nft", &["list", "ruleset"]), "");
        nft.commit(&everything()).unwrap();
        assert!(nft.commit(&everything()).unwrap_err().already_exists());
    });
}

#[test]
fn elements_are_looked_up_by_key_and_removed() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        assert_eq!(nft.element(TABLE, "ports", &TCP_8080).unwrap(), None);
        assert!(nft.elements(TABLE, "ports").unwrap().is_empty());
        let mut batch = everything();
        add_elements(&mut batch);
        nft.commit(&batch).unwrap();
        let observed = nft.element(TABLE, "ports", &TCP_8080).unwrap().unwrap();
        assert_eq!(
            (observed.key.as_slice(), observed.data.as_slice()),
            (&TCP_8080[..], &TO_POD[..])
        );
        assert_eq!(
            (observed.userdata.bytes.as_slice(), observed.userdata.comment.as_str()),
            (&[1, 2, 3][..], "net c1/eth0")
        );
        assert_eq!(nft.elements(TABLE, "ports").unwrap(), [observed]);
        assert_eq!(nft.elements(TABLE, "verdicts").unwrap()[0].target.as_deref(), Some("masq"));
        let mut batch = Batch::new();
        let element = Element { key: &TCP_8080, data: None, userdata: None };
        batch.remove_elements(TABLE, "ports", std::slice::from_ref(&element));
        nft.commit(&batch).unwrap();
        assert!(!run("nft", &["list", "ruleset"]).contains("8080"));
        assert!(nft.commit(&batch).unwrap_err().is_not_found());
        drop(nft);
        kernel::deferred_close::close_in_background();
    });
}

#[test]
fn rules_are_listed_and_removed_by_handle() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        assert!(nft.rules(TABLE, "postrouting").unwrap().is_empty());
        assert!(!nft.has_table(TABLE).unwrap());
        nft.commit(&everything()).unwrap();
        assert!(nft.has_table(TABLE).unwrap() && nft.has_chain(TABLE, "masq").unwrap());
        assert!(!nft.has_chain(TABLE, "missing").unwrap());
        run("nft", &["add", "table", "ip", "t"]);
        run("nft", &["add", "chain", "ip", "t", "foreign"]);
        assert_eq!(nft.chains(TABLE).unwrap(), ["masq", "prerouting", "postrouting", "forward"]);
        let rules = nft.rules(TABLE, "postrouting").unwrap();
        assert_eq!(rules.len(), 3);
        let jump = &rules[2];
        assert_eq!((jump.target.as_deref(), jump.comment.as_str()), (Some("masq"), "to masq"));
        let mut batch = Batch::new();
        batch.remove_rule(TABLE, "postrouting", jump.handle);
        nft.commit(&batch).unwrap();
        assert!(!run("nft", &["list", "ruleset"]).contains("to masq"));
        run("nft", &["add", "rule", "inet", "t", "forward", "drop", "comment", "foreign"]);
        assert_eq!(nft.rules(TABLE, "forward").unwrap()[1].comment, "foreign");
    });
}

/// A removal that depends on an earlier read is rejected if the ruleset has changed since.
#[test]
fn commit_at_stale_generation_is_rejected() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        assert!(nft.sets(TABLE).unwrap().is_empty());
        nft.commit(&everything()).unwrap();
        run("nft", &["add", "table", "ip", "t"]);
        run("nft", &["add", "set", "ip", "t", "foreign", "{ type mark; }"]);
        assert_eq!(nft.sets(TABLE).unwrap(), ["ports", "pods", "verdicts"]);
        let mut batch = Batch::new();
        batch.remove_set(TABLE, "verdicts");
        let generation = nft.generation().unwrap();
        assert!(nft.commit_at(generation, &batch).unwrap_err().is_busy());
        let mut batch = Batch::new();
        batch.remove_rule(TABLE, "postrouting", nft.rules(TABLE, "postrouting").unwrap()[1].handle);
        batch.remove_set(TABLE, "verdicts");
        run("nft", &["add element inet t pods { eth0 . 10.1.0.9 }"]);
        assert!(nft.commit_at(generation, &batch).unwrap_err().is_stale_generation());
        let generation = nft.generation().unwrap();
        nft.commit_at(generation, &batch).unwrap();
        assert_eq!(nft.sets(TABLE).unwrap(), ["ports", "pods"]);
        assert!(!run("nft", &["list", "ruleset"]).contains("verdicts"));
        drop(nft);
        kernel::deferred_close::close_in_background();
    });
}

#[test]
fn batch_with_thousands_of_elements_succeeds() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        nft.commit(&everything()).unwrap();
        let keys: Vec<[u8; 8]> = (1..=3000_u16)
            .map(|port| {
                let [high, low] = port.to_be_bytes();
                [17, 0, 0, 0, high, low, 0, 0]
            })
            .collect();
        let data = Data::Value(TO_POD.to_vec());
        let elements: Vec<Element> =
            keys.iter().map(|key| Element { key, data: Some(&data), userdata: None }).collect();
        let mut batch = Batch::new();
        batch.create_elements(TABLE, "ports", &elements);
        nft.commit(&batch).unwrap();
        assert_eq!(nft.elements(TABLE, "ports").unwrap().len(), 3000);
    });
}
