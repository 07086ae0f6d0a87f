// SPDX-License-Identifier: Apache-2.0
//! Configurations and what they come to; the errors are tested with the plugin.

use super::*;

fn request(entries: &[(&str, bool)]) -> Vec<u8> {
    let entries: Vec<RequestConf> = entries
        .iter()
        .map(|(option, skip_default)| RequestConf {
            option: (*option).to_owned(),
            skip_default: *skip_default,
        })
        .collect();
    understand_requested(&entries).unwrap()
}

#[test]
fn options_are_asked_for_once() {
    assert_eq!(request(&[]), DEFAULT_REQUEST);
    assert_eq!(request(&[("routers", false), ("42", false)])[..4], [3, 42, 1, 121]);
    assert_eq!(request(&[("", true)]), Vec::<u8>::new());
    assert_eq!(request(&[("42", true), ("subnet-mask", false), ("42", false)]), [42, 1]);
}

#[test]
fn values_come_from_configuration_and_arguments() {
    let entry = |value: &str, from_arg: &str| ProvideConf {
        option: "host-name".to_owned(),
        value: value.to_owned(),
        from_arg: from_arg.to_owned(),
    };
    let values = |entry: ProvideConf, args: &str| -> Vec<String> {
        let provided = understand_provided(&[entry], args).unwrap();
        provided.iter().map(|one| String::from_utf8_lossy(&one.value).into_owned()).collect()
    };
    assert_eq!(values(entry("a", ""), "X=b"), ["a"]);
    assert_eq!(values(entry("a", "X"), "X=b;Y=c;X=d=e"), ["a", "d=e"]);
    assert_eq!(values(entry("", "X"), "IgnoreUnknown"), Vec::<String>::new());
}

#[test]
fn ipv4_is_the_family_where_none_is_named() {
    assert_eq!(understand_families(None), Ok((true, false)));
    assert_eq!(understand_families(Some(&[])), Ok((true, false)));
    assert_eq!(understand_families(Some(&["ipv6".to_owned()])), Ok((false, true)));
}
