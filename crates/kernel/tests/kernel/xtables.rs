// SPDX-License-Identifier: Apache-2.0
//! Accept rules in iptables' chain FORWARD, verified with `iptables-nft`.

use ipnet::IpNet;
use kernel::Family;
use kernel::nft::xtables::{FILTER, FORWARD, Form, Forwarded, comment_of, table};
use kernel::nft::{Batch, Nft, ObservedRule, Place};
use testkit::{in_netns, run};

use crate::net;

const MARK: u32 = 0x1000;

fn iptables(words: &str) -> String {
    run("iptables-nft", &words.split_whitespace().collect::<Vec<_>>())
}

fn network() -> IpNet {
    net("10.5.0.0/16")
}

fn only_rule(nft: &Nft) -> ObservedRule {
    let mut rules = nft.rules(table(Family::V4, FILTER), FORWARD).unwrap();
    assert_eq!(rules.len(), 1, "{rules:?}");
    rules.remove(0)
}

#[test]
fn accept_rule_is_recognized_in_each_form() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        let kinds = [
            (Forwarded::From(network()), "-s 10.5.0.0/16"),
            (Forwarded::To(network()), "-d 10.5.0.0/16"),
            (Forwarded::Marked(MARK), "-m mark --mark 0x1000/0x1000"),
        ];
        for (packets, words) in kinds {
            for form in [Form::Iptables, Form::Nft] {
                iptables("-F FORWARD");
                let mut batch = Batch::new();
                batch.add_rule(&packets.accept_rule(Family::V4, Place::Last, "a-text", form));
                nft.commit(&batch).unwrap();
                let rule = only_rule(&nft);
                assert!(packets.is_accepted_by(&rule), "{packets:?} {form:?}: {rule:?}");
                assert_eq!(comment_of(&rule), "a-text", "{packets:?} {form:?}");
                if form == Form::Iptables {
                    let expected =
                        format!("-A FORWARD {words} -m comment --comment a-text -j ACCEPT");
                    let listed = iptables("-S FORWARD");
                    assert!(listed.contains(&expected), "{listed}");
                }
            }
        }
    });
}

#[test]
fn other_rules_are_not_accept_rules() {
    in_netns(|| {
        let nft = Nft::open().unwrap();
        let check = |packets: Forwarded, words: &str, expected: bool| {
            iptables("-F FORWARD");
            iptables(&format!("-A FORWARD {words}"));
            assert_eq!(packets.is_accepted_by(&only_rule(&nft)), expected, "{words}");
        };
        let from = Forwarded::From(network());
        check(from, "-s 10.5.0.0/16 -j ACCEPT", true);
        check(from, "-s 10.6.0.0/16 -j ACCEPT", false);
        check(from, "! -s 10.5.0.0/16 -j ACCEPT", false);
        check(from, "-s 10.5.0.0/16 -j DROP", false);
        check(from, "-s 10.5.0.0/16 -i eth0 -j ACCEPT", false);
        check(from, "-m mark --mark 0x1000/0x1000 -j ACCEPT", false);
        let marked = Forwarded::Marked(MARK);
        check(marked, "-m mark --mark 0x1000/0x1000 -j ACCEPT", true);
        check(marked, "-m mark --mark 0x2000/0x2000 -j ACCEPT", false);
        check(marked, "-m mark ! --mark 0x1000/0x1000 -j ACCEPT", false);
        check(marked, "-m mark --mark 0x1000/0x1000 -j DROP", false);
        check(marked, "-m mark --mark 0x1000/0x1000 -i eth0 -j ACCEPT", false);
    });
}
