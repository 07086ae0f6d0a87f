// SPDX-License-Identifier: Apache-2.0
//! The value of a lease in a store, byte for byte as flannel writes it.

use std::net::{Ipv4Addr, Ipv6Addr};

use gojson::DecodeError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::{BackendData, DataJson};
use crate::cidr::Addresses;
use crate::lease::{Attributes, Error};

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct ValueConf {
    #[serde(rename = "PublicIP")]
    public_ip: Option<String>,
    #[serde(rename = "PublicIPv6")]
    public_ipv6: Option<String>,
    backend_type: Option<String>,
    backend_data: Option<Value>,
    #[serde(rename = "BackendV6Data")]
    backend_v6_data: Option<Value>,
}

pub(super) fn parse(value: &[u8]) -> Result<Attributes, Error> {
    let value: Value =
        serde_json::from_slice(value).map_err(|cause| Error::Json(cause.to_string()))?;
    let conf: ValueConf = gojson::decode(&value)?;
    let public = Addresses {
        v4: address(["PublicIP", "an IPv4 address"], conf.public_ip.as_deref())?
            .filter(|address: &Ipv4Addr| !address.is_unspecified()),
        v6: address(["PublicIPv6", "an IPv6 address"], conf.public_ipv6.as_deref())?
            .filter(|address: &Ipv6Addr| !address.is_unspecified()),
    };
    let data = BackendData::parse(
        conf.backend_type.unwrap_or_default(),
        conf.backend_data.as_ref(),
        conf.backend_v6_data.as_ref(),
    )?;
    Ok(Attributes { public, data })
}

/// Parses a public address. An empty text counts as missing.
pub(super) fn address<T: std::str::FromStr>(
    [key, expected]: [&str; 2],
    text: Option<&str>,
) -> Result<Option<T>, DecodeError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let invalid = |_| DecodeError::at(key, format!("{text:?}"), format!("expected {expected}"));
    text.parse().map(Some).map_err(invalid)
}

/// The fields are in the order of the Go struct, in which flannel prints them.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ValueJson<'a> {
    #[serde(rename = "PublicIP")]
    public_ip: Ipv4Addr,
    #[serde(rename = "PublicIPv6")]
    public_ipv6: Option<Ipv6Addr>,
    #[serde(skip_serializing_if = "str::is_empty")]
    backend_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_data: Option<DataJson<'a>>,
    #[serde(rename = "BackendV6Data", skip_serializing_if = "Option::is_none")]
    backend_v6_data: Option<DataJson<'a>>,
}

pub(super) fn print(attributes: &Attributes) -> String {
    let data = attributes.data.to_json();
    go_json(&ValueJson {
        // flannel always prints an IPv4 address.
        public_ip: attributes.public.v4.unwrap_or(Ipv4Addr::UNSPECIFIED),
        public_ipv6: attributes.public.v6,
        backend_type: attributes.data.kind(),
        backend_data: data.v4,
        backend_v6_data: data.v6,
    })
}

/// Prints compact JSON as Go does. Go escapes characters that could end a script in a web page. Such
/// characters occur only inside JSON strings.
pub(super) fn go_json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("strings and numbers always serialize");
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::backend::{Vtep, WireguardData};
    use crate::cidr::PerFamily;
    use kernel::wireguard::PublicKey;

    #[test]
    fn flannels_values_are_parsed_and_printed_unchanged() {
        for text in [
            r#"{"PublicIP":"192.168.90.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"76:40:2b:2c:32:07"}}"#,
            r#"{"PublicIP":"192.168.90.1","PublicIPv6":"fd00:90::1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5a:e3:a9:5e:b9:eb"},"BackendV6Data":{"VNI":1,"VtepMAC":"26:df:a1:32:09:f3"}}"#,
            r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00:90::1","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"26:df:a1:32:09:f3"}}"#,
            r#"{"PublicIP":"192.168.90.1","PublicIPv6":null,"BackendType":"host-gw"}"#,
            r#"{"PublicIP":"192.168.90.1","PublicIPv6":null,"BackendType":"ipip"}"#,
            r#"{"PublicIP":"192.168.90.2","PublicIPv6":null}"#,
            r#"{"PublicIP":"1.2.3.4","PublicIPv6":"fd00:90::1","BackendType":"wireguard","BackendData":{"PublicKey":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","Port":51820},"BackendV6Data":{"PublicKey":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","Port":51821}}"#,
            r#"{"PublicIP":"1.2.3.4","PublicIPv6":null,"BackendType":"extension","BackendData":"a \u003cb\u003e \u0026 \"c\"\n"}"#,
        ] {
            let attributes = parse(text.as_bytes()).unwrap();
            assert_eq!(print(&attributes), text);
        }
    }

    #[test]
    fn unknown_keys_and_backends_are_accepted() {
        let text = r#" {"publicip": "1.2.3.4", "backendtype": "vxlan", "Unknown": [1],
            "BackendData": {"vtepmac": "02-00-5E-10-00-AB"}, "BackendV6Data": null} "#;
        let attributes = parse(text.as_bytes()).unwrap();
        let mac = "02:00:5e:10:00:ab".parse().unwrap();
        let expected =
            BackendData::Vxlan(PerFamily { v4: Some(Vtep { vni: None, mac }), v6: None });
        assert_eq!(attributes.data, expected);
        let text =
            r#"{"PublicIP": "1.2.3.4", "BackendType": "aws-vpc", "BackendData": {"a": [1]}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap().data, BackendData::Other("aws-vpc".to_owned()));
    }

    #[test]
    fn invalid_values_are_named_in_errors() {
        let check = |text: &str, words: &str| {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} should say {words:?}");
        };
        check("", "is not JSON");
        check("[]", "expected an object");
        check(r#"{"PublicIP": "1.2.3"}"#, r#"key "PublicIP" is "1.2.3": expected an IPv4"#);
        check(r#"{"PublicIPv6": "1.2.3.4"}"#, "expected an IPv6 address");
        let vxlan = |data: &str| format!(r#"{{"BackendType": "vxlan", "BackendData": {data}}}"#);
        check(&vxlan("{}"), r#"key "BackendData.VtepMAC" is "": expected the MAC address"#);
        check(&vxlan(r#"{"VtepMAC": "01:00:5e:00:00:01"}"#), "of one device");
        check(&vxlan(r#"{"VtepMAC": "00:00:00:00:00:00"}"#), "of one device");
        check(&vxlan(r#"{"VtepMAC": "02:00:5e:10:00:ab", "VNI": -1}"#), "BackendData.VNI");
        check(&vxlan("\"x\""), r#"key "BackendData": expected an object"#);
        check(
            r#"{"BackendType": "wireguard", "BackendV6Data": {"PublicKey": "short"}}"#,
            r#"key "BackendV6Data.PublicKey" is "short": expected base64 of 32 bytes"#,
        );
        check(r#"{"BackendType": "extension", "BackendData": 3}"#, "expected a text");
    }

    fn any_vtep() -> impl Strategy<Value = Vtep> {
        (any::<[u8; 6]>(), 0u32..1 << 24).prop_map(|(mut octets, vni)| {
            octets[0] = octets[0] & 0xfe | 2;
            Vtep { vni: Some(vni), mac: kernel::MacAddr(octets) }
        })
    }

    fn any_wireguard() -> impl Strategy<Value = WireguardData> {
        (any::<[u8; 32]>(), 1u16..)
            .prop_map(|(key, port)| WireguardData { key: PublicKey(key), port: Some(port) })
    }

    fn any_data() -> impl Strategy<Value = BackendData> {
        prop_oneof![
            Just(BackendData::Bare),
            Just(BackendData::HostGw),
            Just(BackendData::Ipip),
            (option::of(any_vtep()), option::of(any_vtep()))
                .prop_map(|(v4, v6)| BackendData::Vxlan(PerFamily { v4, v6 })),
            (option::of(any_wireguard()), option::of(any_wireguard()))
                .prop_map(|(v4, v6)| BackendData::Wireguard(PerFamily { v4, v6 })),
            option::of(".+").prop_map(BackendData::Extension),
        ]
    }

    /// Attributes of any node.
    pub(in crate::lease) fn any_attributes() -> impl Strategy<Value = Attributes> {
        let public = (option::of(1u32..), option::of(1u128..)).prop_map(|(v4, v6)| Addresses {
            v4: v4.map(Ipv4Addr::from_bits),
            v6: v6.map(Ipv6Addr::from_bits),
        });
        (public, any_data()).prop_map(|(public, data)| Attributes { public, data })
    }

    proptest! {
        #[test]
        fn printed_values_parse_to_the_same_attributes(attributes in any_attributes()) {
            prop_assert_eq!(parse(print(&attributes).as_bytes()).unwrap(), attributes);
        }

        #[test]
        fn parsing_any_bytes_does_not_panic(bytes: Vec<u8>, kind in "vxlan|wireguard|extension|", data: String) {
            let _ = parse(&bytes);
            let value = serde_json::json!({
                "PublicIP": data, "BackendType": kind,
                "BackendData": {"VtepMAC": data, "PublicKey": data, "Port": bytes.len()},
            });
            let _ = parse(value.to_string().as_bytes());
            let _ = parse(format!(r#"{{"BackendType":"{kind}","BackendData":{data}}}"#).as_bytes());
        }
    }
}
