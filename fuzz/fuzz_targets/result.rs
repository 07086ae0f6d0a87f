// SPDX-License-Identifier: Apache-2.0
//! Arbitrary JSON as a result of every version: a parsed result can be printed and parsed again.
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
            let again = CniResult::parse(printed.clone(), *target).expect("a printed result can be parsed");
            assert_eq!(again.to_json(*target).expect("a parsed result can be printed"), printed);
        }
    }
});
