// SPDX-License-Identifier: Apache-2.0
//! The VLAN keys of bridge. Pure functions; `port` and `gateway` apply them.

pub(super) mod gateway;
pub(super) mod port;

use cni::Error;
use kernel::bridge_vlan::{self, MAX};
use serde::Deserialize;

/// The native VLAN of a trunk by default, as on a switch.
const DEFAULT_NATIVE: u16 = 1;

/// The VLANs of a container's port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Vlans {
    /// The VLAN of untagged frames.
    pub native: Option<u16>,
    /// Ranges of tagged VLANs (first, last), ascending and without overlap.
    trunk: Vec<(u16, u16)>,
    /// The port also stays in the bridge's default VLAN.
    pub keeps_default: bool,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VlansConf {
    vlan: i64,
    vlan_trunk: Option<Vec<Option<TrunkConf>>>,
    preserve_default_vlan: bool,
}

/// One item of `vlanTrunk`: an ID, a range, or both.
#[derive(Debug, Deserialize, Default, Clone, Copy)]
#[serde(default)]
struct TrunkConf {
    id: Option<i64>,
    #[serde(rename = "minID")]
    min: Option<i64>,
    #[serde(rename = "maxID")]
    max: Option<i64>,
}

impl VlansConf {
    /// Returns `None` if the bridge need not filter VLANs.
    pub(super) fn validate(&self) -> Result<Option<Vlans>, Error> {
        let native = match self.vlan {
            0 => None,
            vlan => {
                let msg = format!("invalid VLAN ID {vlan} (must be between 0 and {MAX})");
                Some(parse_id(&msg, "vlan", vlan, 0)?)
            }
        };
        if native.is_none() && self.vlan_trunk.is_none() {
            return Ok(None);
        }
        let mut trunk = Vec::new();
        let items = self.vlan_trunk.iter().flatten().enumerate();
        for (at, item) in items.filter_map(|(at, item)| Some((at, (*item)?))) {
            trunk.extend(item.validate(at)?);
        }
        let keeps_default = self.preserve_default_vlan;
        Ok(Some(Vlans { native, trunk: merged(trunk), keeps_default }))
    }
}

impl TrunkConf {
    fn validate(self, at: usize) -> Result<Vec<(u16, u16)>, Error> {
        let key = |name: &str| format!("vlanTrunk[{at}].{name}");
        let mut ranges = Vec::new();
        match (self.min, self.max) {
            (None, None) => {}
            (Some(min), Some(max)) => {
                let range = (
                    parse_id("incorrect trunk minID parameter", &key("minID"), min, 1)?,
                    parse_id("incorrect trunk maxID parameter", &key("maxID"), max, 1)?,
                );
                if range.0 > range.1 {
                    let details =
                        format!("key {:?} is {min}, which is above its maxID {max}", key("minID"));
                    let msg = "minID is greater than maxID in trunk parameter";
                    return Err(Error::invalid_config(msg).with_details(details));
                }
                ranges.push(range);
            }
            (min, _) => {
                let (present, missing) =
                    if min.is_some() { ("minID", "maxID") } else { ("maxID", "minID") };
                let msg = format!(
                    "minID and maxID should be configured simultaneously, {missing} is missing"
                );
                let details = format!("key {:?} needs {missing:?} beside it", key(present));
                return Err(Error::invalid_config(msg).with_details(details));
            }
        }
        if let Some(id) = self.id {
            let id = parse_id("incorrect trunk id parameter", &key("id"), id, 1)?;
            ranges.push((id, id));
        }
        Ok(ranges)
    }
}

fn parse_id(msg: &str, key: &str, id: i64, min: u16) -> Result<u16, Error> {
    let parsed = u16::try_from(id).ok();
    parsed.filter(|id| (min..=MAX).contains(id)).ok_or_else(|| {
        let details = format!("key {key:?} is {id}, allowed are {min} to {MAX}");
        Error::invalid_config(msg).with_details(details)
    })
}

/// Sorts the ranges and joins those that overlap or adjoin.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

impl Vlans {
    /// The VLANs of the container's port, in addition to the default VLAN. If the native VLAN is in
    /// the trunk too, it is native: frames of a VLAN leave either tagged or untagged.
    pub(super) fn of_port(&self) -> Vec<bridge_vlan::Vlans> {
        let native = self.native.or((!self.trunk.is_empty()).then_some(DEFAULT_NATIVE));
        let tagged = self.trunk.iter().flat_map(|range| without(*range, native));
        let tagged = tagged.map(|(first, last)| bridge_vlan::Vlans::tagged(first, last));
        native.map(bridge_vlan::Vlans::native).into_iter().chain(tagged).collect()
    }
}

fn without((first, last): (u16, u16), vlan: Option<u16>) -> Vec<(u16, u16)> {
    match vlan.filter(|vlan| (first..=last).contains(vlan)) {
        None => vec![(first, last)],
        Some(vlan) => {
            let parts = [(first, vlan - 1), (vlan + 1, last)];
            parts.into_iter().filter(|(first, last)| first <= last).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use kernel::bridge_vlan::Vlans as PortVlans;
    use serde_json::{Value, json};

    use super::*;

    fn validate(keys: Value) -> Result<Option<Vlans>, Error> {
        serde_json::from_value::<VlansConf>(keys).unwrap().validate()
    }

    #[test]
    fn keys_give_the_vlans_of_the_port() {
        let check = |keys: Value, expected: &[PortVlans]| {
            let vlans = validate(keys.clone()).unwrap().unwrap();
            assert_eq!(vlans.of_port(), expected, "{keys}");
        };
        assert_eq!(validate(json!({})).unwrap(), None);
        assert_eq!(validate(json!({"vlan": 0, "preserveDefaultVlan": true})).unwrap(), None);
        check(json!({"vlan": 100}), &[PortVlans::native(100)]);
        check(json!({"vlanTrunk": []}), &[]);
        check(json!({"vlanTrunk": [{}, null]}), &[]);
        check(json!({"vlanTrunk": [{"id": 7}]}), &[PortVlans::native(1), PortVlans::tagged(7, 7)]);
        let trunk = json!([{"minID": 20, "maxID": 30}, {"id": 31}, {"id": 25}, {"id": 40}]);
        let ranges = [PortVlans::tagged(20, 31), PortVlans::tagged(40, 40)];
        check(
            json!({"vlan": 5, "vlanTrunk": trunk}),
            &[&[PortVlans::native(5)], &ranges[..]].concat(),
        );
        let all = json!([{"minID": 1, "maxID": 4094, "id": 9}]);
        check(json!({"vlanTrunk": all}), &[PortVlans::native(1), PortVlans::tagged(2, 4094)]);
        let around = [PortVlans::native(50), PortVlans::tagged(1, 49), PortVlans::tagged(51, 4094)];
        check(json!({"vlan": 50, "vlanTrunk": all}), &around);
    }

    #[test]
    fn invalid_ids_are_named() {
        let check = |keys: Value, words: &str| {
            let error = validate(keys).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        };
        check(json!({"vlan": 4095}), "\"vlan\" is 4095, allowed are 0 to 4094");
        check(json!({"vlan": -1}), "\"vlan\" is -1");
        check(
            json!({"vlanTrunk": [{"id": 1}, {"id": 0}]}),
            "\"vlanTrunk[1].id\" is 0, allowed are 1",
        );
        check(json!({"vlanTrunk": [{"minID": 1}]}), "\"vlanTrunk[0].minID\" needs \"maxID\"");
        check(json!({"vlanTrunk": [{"maxID": 1}]}), "\"vlanTrunk[0].maxID\" needs \"minID\"");
        check(json!({"vlanTrunk": [{"minID": 9, "maxID": 8}]}), "above its maxID 8");
        check(json!({"vlanTrunk": [{"minID": 9, "maxID": 70000}]}), "maxID\" is 70000");
    }
}
