// SPDX-License-Identifier: Apache-2.0
//! Arbitrary bytes as a datagram from the kernel, with attributes nested three levels deep: no panic, no
//! endless loop.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netlink::{Attrs, Replies};

fuzz_target!(|data: &[u8]| {
    for reply in Replies::new(data) {
        let _ = reply.outcome();
        read(Attrs::new(reply.payload), 3);
    }
    read(Attrs::new(data), 3);
});

fn read(attrs: Attrs<'_>, depth: u32) {
    for attr in attrs {
        let _ = (attr.u8(), attr.u16(), attr.u32(), attr.u64(), attr.be32(), attr.str());
        if depth > 0 {
            read(attr.nested(), depth - 1);
        }
    }
}
