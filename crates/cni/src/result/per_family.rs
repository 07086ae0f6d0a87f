// SPDX-License-Identifier: Apache-2.0
//! Layout of results in 0.1.0 and 0.2.0: one object for each address family that contains the routes, no interfaces.

use gojson::DecodeError;
use serde_json::{Map, Value, json};

use super::{
    Cidr, CniResult, Dns, IpConfig, Route, object, parse_list, parse_lists, put, put_list,
    required, take_ip,
};
use crate::error::{Code, Error};

pub(super) fn parse(mut map: Map<String, Value>) -> Result<CniResult, DecodeError> {
    // The Go plugin loopback prints lists in every version.
    let has = |key| gojson::get(&map, key).is_some();
    if !has("ip4") && !has("ip6") && (has("ips") || has("interfaces")) {
        return parse_lists(map);
    }
    let mut result = CniResult::default();
    for family in ["ip4", "ip6"] {
        if let Some(value) = gojson::take(&mut map, family) {
            parse_family(value, &mut result).map_err(|error| error.within(family))?;
        }
    }
    result.dns = Dns::take(&mut map)?;
    result.extra = map;
    Ok(result)
}

fn parse_family(value: Value, result: &mut CniResult) -> Result<(), DecodeError> {
    let mut map = object(value)?;
    let address = required(gojson::take_as::<Cidr>(&mut map, "ip")?, "ip")?.0;
    let mut ip = IpConfig::new(address, take_ip(&mut map, "gateway")?);
    result.routes.extend(parse_list(&mut map, "routes", Route::parse)?);
    ip.extra = map;
    result.ips.push(ip);
    Ok(())
}

/// Prints the first address of each family. The layout has no room for more.
pub(super) fn print(result: &CniResult) -> Result<Map<String, Value>, Error> {
    let mut map = result.extra.clone();
    for (key, is_ipv4) in [("ip4", true), ("ip6", false)] {
        let first = result.ips.iter().find(|ip| ip.address.addr().is_ipv4() == is_ipv4);
        if let Some(ip) = first {
            map.insert(key.into(), print_family(ip, &result.routes));
        }
    }
    if !map.contains_key("ip4") && !map.contains_key("ip6") {
        return Err(Error::new(Code::INTERNAL, "cannot convert: no valid IP addresses"));
    }
    map.insert("dns".into(), result.dns.print());
    Ok(map)
}

fn print_family(ip: &IpConfig, routes: &[Route]) -> Value {
    let mut map = ip.extra.clone();
    map.insert("ip".into(), json!(ip.address));
    put(&mut map, "gateway", ip.gateway.map(|gateway| json!(gateway)));
    let same_family = |route: &&Route| route.dst.addr().is_ipv4() == ip.address.addr().is_ipv4();
    let bare = |route: &Route| {
        Route { extra: route.extra.clone(), ..Route::new(route.dst, route.gw) }.print()
    };
    put_list(&mut map, "routes", routes.iter().filter(same_family).map(bare).collect());
    Value::Object(map)
}
