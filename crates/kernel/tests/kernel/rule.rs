// SPDX-License-Identifier: Apache-2.0
//! Policy routing rules.

use kernel::rule::{self, Rule};
use kernel::{Family, Netlink};
use serde_json::{Value, json};
use testkit::{Ns, in_netns};

use crate::{ip, name};

fn shown(args: &[&str]) -> Vec<Value> {
    Ns::here().ip_json(args).as_array().unwrap().clone()
}

#[test]
fn rules_are_added_and_removed() {
    in_netns(|| {
        let nl = Netlink::open().unwrap();
        let source = Rule {
            from: Some("10.1.2.3/32".parse().unwrap()),
            to: Some("10.9.0.0/16".parse().unwrap()),
            priority: Some(50),
            protocol: 97,
            ..Rule::new(Family::V4, 1000)
        };
        let mark = Rule {
            mark: Some((0x10, 0xf0)),
            iif: Some(name("lo")),
            invert: true,
            priority: Some(60),
            ..Rule::new(Family::V4, 100)
        };
        let oif =
            Rule { oif: Some(name("eth9")), priority: Some(70), ..Rule::new(Family::V6, 100) };
        nl.apply([&source, &mark, &oif].map(rule::add)).unwrap();
        let observed = shown(&["rule", "show"]);
        assert_eq!(observed.len(), 5, "{observed:?}");
        assert_eq!((&observed[1]["priority"], &observed[1]["table"]), (&json!(50), &json!("1000")));
        assert_eq!(
            (&observed[1]["src"], &observed[1]["dst"]),
            (&json!("10.1.2.3"), &json!("10.9.0.0"))
        );
        assert_eq!((&observed[1]["dstlen"], &observed[1]["protocol"]), (&json!(16), &json!("97")));
        assert_eq!(
            (&observed[2]["fwmark"], &observed[2]["fwmask"]),
            (&json!("0x10"), &json!("0xf0"))
        );
        assert_eq!((&observed[2]["iif"], &observed[2]["not"]), (&json!("lo"), &json!(null)));
        assert!(observed[2].as_object().unwrap().contains_key("not"));
        let observed = shown(&["-6", "rule", "show"]);
        assert_eq!((&observed[1]["oif"], &observed[1]["table"]), (&json!("eth9"), &json!("100")));

        assert!(nl.apply([rule::add(&source)]).unwrap_err().already_exists());
        nl.apply([&source, &mark, &oif].map(rule::remove)).unwrap();
        assert_eq!(shown(&["rule", "show"]).len(), 3);
        assert!(nl.apply([rule::remove(&source)]).unwrap_err().is_not_found());
    });
}

#[test]
fn list_returns_all_attributes() {
    in_netns(|| {
        ip(
            "rule add not from 10.1.2.3 to 10.9.0.0/16 fwmark 0x10/0xf0 iif lo oif x table 1000 prio 5 proto 97",
        );
        ip("-6 rule add from fd00::/64 lookup 7 prio 6");
        let nl = Netlink::open().unwrap();
        let observed = rule::list(&nl, Family::V4).unwrap();
        assert_eq!(
            observed.iter().map(|rule| rule.priority.unwrap()).collect::<Vec<_>>(),
            [0, 5, 32766, 32767]
        );
        let expected = Rule {
            family: Family::V4,
            priority: Some(5),
            from: Some("10.1.2.3/32".parse().unwrap()),
            to: Some("10.9.0.0/16".parse().unwrap()),
            mark: Some((0x10, 0xf0)),
            iif: Some(name("lo")),
            oif: Some(name("x")),
            invert: true,
            table: 1000,
            action: rule::ACTION_TABLE,
            protocol: 97,
        };
        assert_eq!(observed[1], expected);
        nl.apply([rule::remove(&observed[1])]).unwrap();
        let observed = rule::list(&nl, Family::V6).unwrap();
        assert_eq!((observed[1].from, observed[1].table), (Some("fd00::/64".parse().unwrap()), 7));
        assert_eq!(observed[1].mark, None);
    });
}
