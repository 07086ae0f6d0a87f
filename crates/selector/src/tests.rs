// SPDX-License-Identifier: Apache-2.0
//! The cases are those of Calico's own tests (libcalico-go/lib/selector/parser/parser_test.go and
//! tokenizer/tokenizer_test.go), so that both parsers accept and select the same.

use proptest::prelude::*;

use super::*;

/// Checks which labels a selector selects, and that its canonical text selects the same. Labels are written as
/// `name=value` with blanks between them.
fn check(text: &str, selected: &[&str], rejected: &[&str]) {
    let selector = Selector::parse(text).unwrap();
    let canonical = Selector::parse(&selector.to_string()).unwrap();
    assert_eq!(selector.to_string(), canonical.to_string(), "{text}");
    for (lists, expected) in [(selected, true), (rejected, false)] {
        for list in lists {
            let labels: BTreeMap<String, String> = list
                .split_ascii_whitespace()
                .map(|word| word.split_once('=').unwrap())
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            assert_eq!(selector.matches(&labels), expected, "{text} for {list:?}");
            assert_eq!(canonical.matches(&labels), expected, "{canonical} for {list:?}");
        }
    }
}

#[test]
fn comparison_selects_as_in_calico() {
    check(r#"a == "b""#, &["a=b", "a=b c=d"], &["", "a=c", "c=d"]);
    check("a == 'a'", &["a=a"], &["a=b", ""]);
    check(r#"a != "a""#, &["", "a=b"], &["a=a"]);
    check(r#"a contains "a""#, &["a=a", "a=bab", "a=aaa b=c"], &["", "a=b", "b=aaa"]);
    check(r#"a starts with "a""#, &["a=a", "a=abb", "a=aaa b=c"], &["", "a=b", "a=baa", "b=aaa"]);
    check(r#"a ends with "a""#, &["a=a", "a=bba", "a=aaa b=c"], &["", "a=b", "a=aab", "b=aaa"]);
}

#[test]
fn set_selects_as_in_calico() {
    check(r#"a in {"'", '"', "c"}"#, &["a=c", "a=\"", "a='"], &["", "a=e"]);
    check(r#"a not in {"'", '"', "c"}"#, &["", "a=e"], &["a=c", "a=\"", "a='"]);
    check(r#"a in {"a", "b"}"#, &["a=a", "a=b"], &["a=c"]);
    check(r#"!a in {"a"}"#, &["a=b", ""], &["a=a"]);
    check("a in {}", &[], &["", "a=a"]);
    check("a in {'a',}", &["a=a"], &[]);
}

#[test]
fn presence_and_constants_select_as_in_calico() {
    check("has(a)", &["a=b"], &["b=b"]);
    check("!has(a)", &["b=b"], &["a=b"]);
    for text in ["!!! has(a)", "!! ! has(a)", "! !!has(a)"] {
        check(text, &["b=b"], &["a=b"]);
    }
    check("!!has(b)", &["b=b"], &["a=b"]);
    for text in ["", " ", "all()", " all()", "all( )", "global()", " global()"] {
        check(text, &["", "a=b"], &[]);
    }
}

#[test]
fn boolean_operators_bind_as_in_calico() {
    check(r#"a == "b" && c == "d""#, &["a=b c=d"], &["", "a=b c=e", "a=c c=d", "c=d", "a=b"]);
    check(r#"a == "b" || c == "d""#, &["a=b c=d", "a=b", "c=d"], &["", "a=e c=e", "c=e", "a=e"]);
    check("a == 'a1' && b != 'b1'", &["a=a1"], &["a=a1 b=b1"]);
    check("a != 'a1' && !b == 'b1'", &["a=x b=x"], &["a=a1 b=b1"]);
    check("! a == 'a1' || ! b == 'b1'", &["a=a1", ""], &["a=a1 b=b1"]);
    check("!(!has(a) || has(b))", &["a=a"], &["", "a=a b=b"]);
    check("has(a) || has(b) && has(c)", &["a=1", "b=1 c=1"], &["b=1", "c=1"]);
    check("(has(a) || has(b)) && has(c)", &["a=1 c=1", "b=1 c=1"], &["a=1", "b=1"]);
}

#[test]
fn operator_words_are_labels_elsewhere() {
    check("contains contains 'x'", &["contains=axb"], &["contains=a"]);
    check("in in {'x'}", &["in=x"], &["in=y"]);
    check("startswith startswith 'x'", &["startswith=xy"], &["startswith=y"]);
    check("has == 'x'", &["has=x"], &[""]);
    check("a notin {'x'}", &["a=y"], &["a=x"]);
    check("label contains\"value\"", &["label=values"], &[]);
    check("calico/k8s_NS-.1/role == 'x'", &["calico/k8s_NS-.1/role=x"], &[]);
}

#[test]
fn text_is_canonical_as_in_calico() {
    for (text, expected) in [
        ("", "all()"),
        (" (all() )", "all()"),
        ("! (has( b)||! has(a ))", "!(has(b) || !has(a))"),
        (r#"! (a == "b"&&! c != "d")"#, r#"!(a == "b" && !c != "d")"#),
        (r#"a == "'""#, r#"a == "'""#),
        (r#"a == '"'"#, r#"a == '"'"#),
        (r#"a startswith '"'"#, r#"a starts with '"'"#),
        (r#"a endswith "'""#, r#"a ends with "'""#),
        (r#"a!='"'"#, r#"a != '"'"#),
        (r#"a in {"z", "z", "x", "y", "x", "a"}"#, r#"a in {"a", "x", "y", "z"}"#),
        ("!(k == 'v')", r#"!k == "v""#),
        (
            "!(!(k == 'v' && has(t) || all()) && (a in {'b', 'c'}))",
            r#"!(!((k == "v" && has(t)) || all()) && a in {"b", "c"})"#,
        ),
    ] {
        assert_eq!(Selector::parse(text).unwrap().to_string(), expected, "{text}");
    }
}

#[test]
fn text_that_calico_rejects_is_rejected() {
    for text in [
        "b == b",
        "b contains b",
        "b starts with b",
        "b ends with b",
        "'b1' == b",
        "b",
        "a b",
        "!",
        r#"foo == "bar" &"#,
        r#"foo == "bar" |"#,
        "foo != ||",
        r#"foo in {"", ||"#,
        r#"foo in """#,
        r#""FOO"#,
        r#""FOO'"#,
        "'FOO",
        "(",
        r#"(a == "foo""#,
        ")",
        "()",
        "%",
        r#"a == "b" && %"#,
        "a ",
        "has(foo) &&",
        r#"label = "value""#,
        "all(",
        "global(",
        "has()",
        "has(foo",
        "has( foo ",
        r#"label starts foo "value""#,
        r#"label inf "value""#,
        r#"label ends withs "value""#,
        r#"a == "b" c == "d""#,
        "a == \u{e9}",
        "\u{e9} == 'a'",
    ] {
        assert!(Selector::parse(text).is_err(), "{text}");
    }
    let longest = "a".repeat(MAX_LABEL_LENGTH);
    assert!(Selector::parse(&format!("{longest} == 'v'")).is_ok());
    assert!(Selector::parse(&format!("{longest}a == 'v'")).is_err());
}

#[test]
fn error_names_position_and_what_is_allowed() {
    for (text, expected) in [
        ("a = 'b'", r#"at position 2: expected ==, found "=""#),
        (
            "a is 'b'",
            "at position 2: expected ==, !=, in, not in, contains, starts with or ends with, found \"is\"",
        ),
        ("a == b", r#"at position 5: expected a string in quotes, found "b""#),
        ("a == 'b", "at position 5: string without closing quote"),
        (
            "a == 'b' || ",
            "at position 12: expected a label, has(…), all(), global(), ! or (, found the end",
        ),
        ("(a == 'b'", "at position 9: expected &&, || or ), found the end"),
        ("a == 'b' c", r#"at position 9: expected &&, || or the end, found "c""#),
        ("a in {'b' 'c'}", r#"at position 10: expected a string in quotes or }, found "'c'}""#),
    ] {
        assert_eq!(Selector::parse(text).unwrap_err().to_string(), expected, "{text}");
    }
    let deep = format!("{}has(a){}", "(".repeat(101), ")".repeat(101));
    assert!(matches!(Selector::parse(&deep), Err(ParseError::TooDeep { .. })));
}

#[test]
fn labels_can_be_a_function() {
    let selector = Selector::parse("has(a) && !has(b)").unwrap();
    assert!(selector.matches_with(|label| (label == "a").then_some("x")));
    assert!(!selector.matches_with(|_| Some("x")));
}

fn expr() -> impl Strategy<Value = Expr> {
    let label = "[a-z]{1,3}(/[a-z]{1,2})?";
    // A string cannot contain both kinds of quotes.
    let text = "[ -&(-~é]{0,4}";
    let set = || proptest::collection::btree_set("[ -&(-~é]{0,4}", 0..3);
    let leaf = prop_oneof![
        Just(Expr::All),
        Just(Expr::Global),
        label.prop_map(Expr::Has),
        (label, text).prop_map(|(label, text)| Expr::Label(label, Test::Equals(text))),
        (label, text).prop_map(|(label, text)| Expr::Label(label, Test::Differs(text))),
        (label, text).prop_map(|(label, text)| Expr::Label(label, Test::EndsWith(text))),
        (label, set()).prop_map(|(label, set)| Expr::Label(label, Test::In(set))),
        (label, set()).prop_map(|(label, set)| Expr::Label(label, Test::NotIn(set))),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let list = || proptest::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            inner
                .clone()
                .prop_filter("a double negation is removed", |e| !matches!(e, Expr::Not(_)))
                .prop_map(|e| Expr::Not(Box::new(e))),
            list().prop_map(Expr::And),
            list().prop_map(Expr::Or),
        ]
    })
}

proptest! {
    #[test]
    fn canonical_text_parses_to_the_same_expression(expr in expr()) {
        let text = expr.to_string();
        let parsed = Selector::parse(&text).unwrap();
        prop_assert_eq!(parsed.expr(), &expr, "{}", text);
    }

    #[test]
    fn parser_never_panics(text in "[ab!=&|(){}'\", hasinotcé]{0,40}") {
        let _ = Selector::parse(&text);
    }
}
