// SPDX-License-Identifier: Apache-2.0
//! Any JSON as a result of any version: what is read can be printed, and reads back the same.
#![no_main]

use cni::{CniResult, Version};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    for version in Version::ALL {
        let Ok(result) = CniResult::parse(value.clone(), *version) else { continue };
        for target in Version::ALL {
            let Ok(printed) = result.to_json(*target) else { continue };
            let again = CniResult::parse(printed.clone(), *target).expect("what we print reads back");
            assert_eq!(again.to_json(*target).expect("and prints again"), printed);
        }
    }
});
