// SPDX-License-Identifier: Apache-2.0
//! The result of an ADD: one type for all versions, with a parser and a printer for each of the three layouts. Unknown
//! keys are kept and printed again.

mod per_family;

use std::net::IpAddr;

use gojson::DecodeError;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::error::{Code, Error};
use crate::version::{Shape, Version};

/// The result of an ADD.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CniResult {
    /// Interfaces created or changed, on the host and in the container.
    pub interfaces: Vec<Interface>,
    /// Assigned addresses.
    pub ips: Vec<IpConfig>,
    /// Created routes.
    pub routes: Vec<Route>,
    /// DNS settings for the container.
    pub dns: Dns,
    /// Keys that are not in the specification.
    pub extra: Map<String, Value>,
}

/// An interface of a result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interface {
    /// Interface name.
    pub name: String,
    /// MAC address as text, or empty.
    pub mac: String,
    /// MTU, or 0 if not set.
    pub mtu: u32,
    /// Path of the namespace exactly as the runtime gave it; empty for the host.
    pub sandbox: String,
    /// Path of a socket used instead of an interface, or empty.
    pub socket_path: String,
    /// PCI address of the device, or empty.
    pub pci_id: String,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

/// An address of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct IpConfig {
    /// Index of the result's interface that has the address.
    pub interface: Option<usize>,
    /// Address and prefix length; host bits are kept.
    pub address: IpNet,
    /// Gateway of the subnet.
    pub gateway: Option<IpAddr>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

impl IpConfig {
    /// Creates an address that is not on an interface yet, as an IPAM plugin returns it.
    pub fn new(address: IpNet, gateway: Option<IpAddr>) -> IpConfig {
        IpConfig { interface: None, address, gateway, extra: Map::new() }
    }
}

/// A route of a configuration or a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Gateway. With `None` the gateway of the address is used.
    pub gw: Option<IpAddr>,
    /// Path MTU, or 0 if not set.
    pub mtu: u32,
    /// Maximum TCP segment size, or 0 if not set.
    pub advmss: u32,
    /// Metric, or 0 if not set.
    pub priority: u32,
    /// Routing table.
    pub table: Option<u32>,
    /// Scope number as in the kernel.
    pub scope: Option<u8>,
    /// Unknown keys.
    pub extra: Map<String, Value>,
}

impl Route {
    /// Creates a route with destination and gateway only.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Route {
        let (mtu, advmss, priority) = (0, 0, 0);
        Route { dst, gw, mtu, advmss, priority, table: None, scope: None, extra: Map::new() }
    }

    /// Parses a route.
    pub fn parse(value: Value) -> Result<Route, DecodeError> {
        let mut map = object(value)?;
        let mut route = Route::new(
            required(gojson::take_as::<Cidr>(&mut map, "dst")?, "dst")?.0,
            take_ip(&mut map, "gw")?,
        );
        route.mtu = gojson::take_as(&mut map, "mtu")?.unwrap_or(0);
        route.advmss = gojson::take_as(&mut map, "advmss")?.unwrap_or(0);
        route.priority = gojson::take_as(&mut map, "priority")?.unwrap_or(0);
        route.table = gojson::take_as(&mut map, "table")?;
        route.scope = gojson::take_as(&mut map, "scope")?;
        route.extra = map;
        Ok(route)
    }

    fn print(&self) -> Value {
        let mut map = self.extra.clone();
        map.insert("dst".into(), json!(self.dst));
        put(&mut map, "gw", self.gw.map(|gw| json!(gw)));
        put_number(&mut map, "mtu", self.mtu);
        put_number(&mut map, "advmss", self.advmss);
        put_number(&mut map, "priority", self.priority);
        put(&mut map, "table", self.table.map(|table| json!(table)));
        put(&mut map, "scope", self.scope.map(|scope| json!(scope)));
        Value::Object(map)
    }
}

impl<'de> serde::Deserialize<'de> for Route {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Route, D::Error> {
        Route::parse(Value::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// DNS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Dns {
    /// Servers in the order of use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains for short names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Unknown keys. Kept for results only.
    #[serde(skip)]
    pub extra: Map<String, Value>,
}

impl Dns {
    /// Returns whether no setting is present.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }

    fn take(from: &mut Map<String, Value>) -> Result<Dns, DecodeError> {
        let Some(value) = gojson::take(from, "dns") else { return Ok(Dns::default()) };
        let within = |error: DecodeError| error.within("dns");
        let mut map = object(value).map_err(within)?;
        let take = |map: &mut _, key| gojson::take_as(map, key).map_err(within);
        Ok(Dns {
            nameservers: take(&mut map, "nameservers")?.unwrap_or_default(),
            search: take(&mut map, "search")?.unwrap_or_default(),
            options: take(&mut map, "options")?.unwrap_or_default(),
            domain: gojson::take_as(&mut map, "domain").map_err(within)?.unwrap_or_default(),
            extra: map,
        })
    }

    fn print(&self) -> Value {
        let mut map = self.extra.clone();
        let texts = |list: &[String]| list.iter().map(|text| text.as_str().into()).collect();
        put_list(&mut map, "nameservers", texts(&self.nameservers));
        put_text(&mut map, "domain", &self.domain);
        put_list(&mut map, "search", texts(&self.search));
        put_list(&mut map, "options", texts(&self.options));
        Value::Object(map)
    }
}

impl CniResult {
    /// Parses a result in the version that it states, or in `fallback` if it states none, as libcni does. `null` is an
    /// empty result.
    pub fn parse(value: Value, fallback: Version) -> Result<CniResult, Error> {
        let invalid =
            |problem: DecodeError| Error::because(Code::DECODE, "result of a plugin", &problem);
        if value.is_null() {
            return Ok(CniResult::default());
        }
        let mut map = object(value).map_err(invalid)?;
        let version = gojson::take_as::<String>(&mut map, "cniVersion").map_err(invalid)?;
        let version = match version.as_deref() {
            None | Some("") => fallback,
            Some(text) => Version::parse(text).ok_or_else(|| unknown_version(text))?,
        };
        match version.shape() {
            Shape::PerFamily => per_family::parse(map),
            Shape::VersionedList | Shape::List => parse_lists(map),
        }
        .map_err(invalid)
    }

    /// Returns the result in the layout of this version.
    pub fn to_json(&self, version: Version) -> Result<Value, Error> {
        let mut map = match version.shape() {
            Shape::PerFamily => per_family::print(self)?,
            shape => self.print_lists(shape),
        };
        map.insert("cniVersion".into(), version.as_str().into());
        Ok(Value::Object(map))
    }

    fn print_lists(&self, shape: Shape) -> Map<String, Value> {
        let mut map = self.extra.clone();
        let interfaces = self.interfaces.iter().map(|interface| interface.print(shape)).collect();
        put_list(&mut map, "interfaces", interfaces);
        put_list(&mut map, "ips", self.ips.iter().map(|ip| ip.print(shape)).collect());
        put_list(&mut map, "routes", self.routes.iter().map(Route::print).collect());
        if shape != Shape::List || !self.dns.is_empty() {
            map.insert("dns".into(), self.dns.print());
        }
        map
    }
}

impl Interface {
    fn parse(value: Value) -> Result<Interface, DecodeError> {
        let mut map = object(value)?;
        Ok(Interface {
            name: gojson::take_as(&mut map, "name")?.unwrap_or_default(),
            mac: gojson::take_as(&mut map, "mac")?.unwrap_or_default(),
            mtu: gojson::take_as(&mut map, "mtu")?.unwrap_or(0),
            sandbox: gojson::take_as(&mut map, "sandbox")?.unwrap_or_default(),
            socket_path: gojson::take_as(&mut map, "socketPath")?.unwrap_or_default(),
            pci_id: gojson::take_as(&mut map, "pciID")?.unwrap_or_default(),
            extra: map,
        })
    }

    fn print(&self, shape: Shape) -> Value {
        let mut map = self.extra.clone();
        map.insert("name".into(), self.name.as_str().into());
        put_text(&mut map, "mac", &self.mac);
        put_text(&mut map, "sandbox", &self.sandbox);
        if shape == Shape::List {
            put_number(&mut map, "mtu", self.mtu);
            put_text(&mut map, "socketPath", &self.socket_path);
            put_text(&mut map, "pciID", &self.pci_id);
        }
        Value::Object(map)
    }
}

impl IpConfig {
    fn parse(value: Value) -> Result<IpConfig, DecodeError> {
        let mut map = object(value)?;
        gojson::take(&mut map, "version"); // the address implies it
        Ok(IpConfig {
            interface: gojson::take_as(&mut map, "interface")?,
            address: required(gojson::take_as::<Cidr>(&mut map, "address")?, "address")?.0,
            gateway: take_ip(&mut map, "gateway")?,
            extra: map,
        })
    }

    fn print(&self, shape: Shape) -> Value {
        let mut map = self.extra.clone();
        if shape == Shape::VersionedList {
            let family = if self.address.addr().is_ipv4() { "4" } else { "6" };
            map.insert("version".into(), family.into());
        }
        map.insert("address".into(), json!(self.address));
        put(&mut map, "interface", self.interface.map(|index| json!(index)));
        put(&mut map, "gateway", self.gateway.map(|gateway| json!(gateway)));
        Value::Object(map)
    }
}

fn parse_lists(mut map: Map<String, Value>) -> Result<CniResult, DecodeError> {
    Ok(CniResult {
        interfaces: parse_list(&mut map, "interfaces", Interface::parse)?,
        ips: parse_list(&mut map, "ips", IpConfig::parse)?,
        routes: parse_list(&mut map, "routes", Route::parse)?,
        dns: Dns::take(&mut map)?,
        extra: map,
    })
}

fn parse_list<T>(
    map: &mut Map<String, Value>,
    key: &str,
    parse: fn(Value) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let items: Vec<Value> = gojson::take_as(map, key)?.unwrap_or_default();
    let numbered = items.into_iter().enumerate();
    numbered.map(|(at, item)| parse(item).map_err(|error| error.under(key, at))).collect()
}

/// An address with prefix length. An IPv4-mapped IPv6 address becomes an IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(pub IpNet);

impl<'de> serde::Deserialize<'de> for Cidr {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Cidr, D::Error> {
        let text = String::deserialize(from)?;
        let net: IpNet = text.parse().map_err(|_| {
            serde::de::Error::custom("expected an address with prefix length, such as 10.1.2.3/24")
        })?;
        let IpNet::V6(v6) = net else { return Ok(Cidr(net)) };
        let Some(v4) = v6.addr().to_ipv4_mapped() else { return Ok(Cidr(net)) };
        let length = v6.prefix_len().saturating_sub(96);
        Ok(Cidr(ipnet::Ipv4Net::new(v4, length).map_or(net, IpNet::V4)))
    }
}

/// Takes an address. An IPv4-mapped IPv6 address becomes an IPv4 address.
fn take_ip(map: &mut Map<String, Value>, key: &str) -> Result<Option<IpAddr>, DecodeError> {
    Ok(gojson::take_as(map, key)?.map(|ip: IpAddr| ip.to_canonical()))
}

fn object(value: Value) -> Result<Map<String, Value>, DecodeError> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(serde::de::Error::custom("expected an object")),
    }
}

fn required<T>(value: Option<T>, key: &str) -> Result<T, DecodeError> {
    value.ok_or_else(|| serde::de::Error::custom(format_args!("key {key:?} is missing")))
}

fn unknown_version(text: &str) -> Error {
    let supported: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
    Error::new(Code::INCOMPATIBLE_VERSION, format!("result has cniVersion {text:?}"))
        .with_details(format!("supported are {}", supported.join(", ")))
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        map.insert(key.into(), value);
    }
}

fn put_text(map: &mut Map<String, Value>, key: &str, text: &str) {
    put(map, key, (!text.is_empty()).then(|| Value::from(text)));
}

fn put_number(map: &mut Map<String, Value>, key: &str, number: u32) {
    put(map, key, (number != 0).then(|| Value::from(number)));
}

fn put_list(map: &mut Map<String, Value>, key: &str, items: Vec<Value>) {
    put(map, key, (!items.is_empty()).then_some(Value::Array(items)));
}
