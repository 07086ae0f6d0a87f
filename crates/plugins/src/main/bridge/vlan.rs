// SPDX-License-Identifier: Apache-2.0
//! VLANs of a container's port: as written, and as understood. Pure; what is done with them is in
//! the files below.

pub mod gateway;
pub mod port;

use cni::Error;
use kernel::bridge_vlan::{self, MAX};
use serde::Deserialize;

/// What the native VLAN of a trunk is where none is named, as that of a switch.
const USUAL_NATIVE: u16 = 1;

/// What a network wants of a bridge that filters VLANs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vlans {
    /// Frames without a tag belong here.
    pub native: Option<u16>,
    /// Frames with one of these tags pass: first and last, ascending, without overlap.
    trunk: Vec<(u16, u16)>,
    /// The port stays in the bridge's default VLAN too.
    pub keeps_default: bool,
}

/// The keys.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct VlansConf {
    vlan: i64,
    vlan_trunk: Option<Vec<Option<TrunkConf>>>,
    preserve_default_vlan: bool,
}

/// A number, a range, or both.
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
    /// What the keys mean; none where the bridge need not filter VLANs.
    pub fn understand(&self) -> Result<Option<Vlans>, Error> {
        let native = match self.vlan {
            0 => None,
            vlan => {
                let wrong = format!("invalid VLAN ID {vlan} (must be between 0 and {MAX})");
                Some(number(&wrong, "vlan", vlan, 0)?)
            }
        };
        if native.is_none() && self.vlan_trunk.is_none() {
            return Ok(None);
        }
        let mut trunk = Vec::new();
        let items = self.vlan_trunk.iter().flatten().enumerate();
        for (at, item) in items.filter_map(|(at, item)| Some((at, (*item)?))) {
            trunk.extend(item.understand(at)?);
        }
        let keeps_default = self.preserve_default_vlan;
        Ok(Some(Vlans { native, trunk: merged(trunk), keeps_default }))
    }
}

impl TrunkConf {
    fn understand(self, at: usize) -> Result<Vec<(u16, u16)>, Error> {
        let key = |name: &str| format!("vlanTrunk[{at}].{name}");
        let mut found = Vec::new();
        match (self.min, self.max) {
            (None, None) => {}
            (Some(min), Some(max)) => {
                let range = (
                    number("incorrect trunk minID parameter", &key("minID"), min, 1)?,
                    number("incorrect trunk maxID parameter", &key("maxID"), max, 1)?,
                );
                if range.0 > range.1 {
                    let details =
                        format!("key {:?} is {min}, which is above its maxID {max}", key("minID"));
                    let msg = "minID is greater than maxID in trunk parameter";
                    return Err(Error::invalid_config(msg).with_details(details));
                }
                found.push(range);
            }
            (min, _) => {
                let (there, missing) =
                    if min.is_some() { ("minID", "maxID") } else { ("maxID", "minID") };
                let msg = format!(
                    "minID and maxID should be configured simultaneously, {missing} is missing"
                );
                let details = format!("key {:?} needs {missing:?} beside it", key(there));
                return Err(Error::invalid_config(msg).with_details(details));
            }
        }
        if let Some(id) = self.id {
            let id = number("incorrect trunk id parameter", &key("id"), id, 1)?;
            found.push((id, id));
        }
        Ok(found)
    }
}

fn number(wrong: &str, key: &str, written: i64, lowest: u16) -> Result<u16, Error> {
    let number = u16::try_from(written).ok();
    number.filter(|number| (lowest..=MAX).contains(number)).ok_or_else(|| {
        let details = format!("key {key:?} is {written}, allowed are {lowest} to {MAX}");
        Error::invalid_config(wrong).with_details(details)
    })
}

/// Ascending, and what overlaps or adjoins in one.
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
    /// What the container's port must be in, besides the default VLAN. A native VLAN that the trunk has
    /// as well is native: a frame can leave with a tag or without, but not both.
    pub fn of_port(&self) -> Vec<bridge_vlan::Vlans> {
        let native = self.native.or((!self.trunk.is_empty()).then_some(USUAL_NATIVE));
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
    use kernel::bridge_vlan::Vlans as Wanted;
    use serde_json::{Value, json};

    use super::*;

    fn understood(keys: Value) -> Result<Option<Vlans>, Error> {
        serde_json::from_value::<VlansConf>(keys).unwrap().understand()
    }

    #[test]
    fn keys_are_understood() {
        let check = |keys: Value, expected: &[Wanted]| {
            let vlans = understood(keys.clone()).unwrap().unwrap();
            assert_eq!(vlans.of_port(), expected, "{keys}");
        };
        assert_eq!(understood(json!({})).unwrap(), None);
        assert_eq!(understood(json!({"vlan": 0, "preserveDefaultVlan": true})).unwrap(), None);
        check(json!({"vlan": 100}), &[Wanted::native(100)]);
        check(json!({"vlanTrunk": []}), &[]);
        check(json!({"vlanTrunk": [{}, null]}), &[]);
        check(json!({"vlanTrunk": [{"id": 7}]}), &[Wanted::native(1), Wanted::tagged(7, 7)]);
        let trunk = json!([{"minID": 20, "maxID": 30}, {"id": 31}, {"id": 25}, {"id": 40}]);
        let ranges = [Wanted::tagged(20, 31), Wanted::tagged(40, 40)];
        check(
            json!({"vlan": 5, "vlanTrunk": trunk}),
            &[&[Wanted::native(5)], &ranges[..]].concat(),
        );
        let all = json!([{"minID": 1, "maxID": 4094, "id": 9}]);
        check(json!({"vlanTrunk": all}), &[Wanted::native(1), Wanted::tagged(2, 4094)]);
        let around = [Wanted::native(50), Wanted::tagged(1, 49), Wanted::tagged(51, 4094)];
        check(json!({"vlan": 50, "vlanTrunk": all}), &around);
    }

    #[test]
    fn bad_numbers_are_named() {
        let check = |keys: Value, words: &str| {
            let error = understood(keys).unwrap_err();
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
