// SPDX-License-Identifier: Apache-2.0
//! Initial RAM disk of the machine: a shell, kernel modules and a script, as a cpio archive
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::fs;

use anyhow::{Context, Result};

use super::{Kernel, modules, text};

/// Mounts the shared root directory.
const INIT: &str = include_str!("init.sh");

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// Builds the archive for a kernel.
pub(crate) fn archive(kernel: &Kernel) -> Result<Vec<u8>> {
    let busybox = kernel.busybox();
    let busybox = fs::read(&busybox).with_context(|| format!("read {}", busybox.display()))?;
    let mut archive = Archive::default();
    for dir in ["bin", "modules", "proc", "sys", "dev", "lower", "layer", "new"] {
        archive.add(dir, DIRECTORY, b"");
    }
    archive.add("bin/busybox", PROGRAM, &busybox);
    archive.add("init", PROGRAM, INIT.as_bytes());
    archive.add("all-modules", FILE, text(&kernel.all_modules())?.as_bytes());
    let mut order = String::new();
    for (name, module) in modules::for_boot(&kernel.modules())? {
        let path = format!("modules/{name}.ko");
        archive.add(&path, FILE, &module);
        order.push_str(&format!("/{path}\n"));
    }
    archive.add("modules/order", FILE, order.as_bytes());
    Ok(archive.end())
}

#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let length =
            |bytes: usize| u32::try_from(bytes).expect("boot files are smaller than 4 GiB");
        let (size, name_size) = (length(contents.len()), length(name.len() + 1));
        // Inode, mode, user, group, links, time, size, device (2), special device (2), length
        // of the name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").into_bytes());
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned() {
        let mut archive = Archive::default();
        archive.add("a", FILE, b"hello");
        let first = b"07070100000001000081a40000000000000000000000010000000000000005\
            0000000000000000000000000000000000000002\
            00000000a\0hello\0\0\0";
        let first: Vec<u8> = first.iter().copied().filter(|byte| *byte != b' ').collect();
        assert_eq!(String::from_utf8_lossy(&archive.bytes), String::from_utf8_lossy(&first));
        let whole = archive.end();
        assert_eq!(whole.len() % 4, 0);
        assert!(whole.windows(10).any(|bytes| bytes == b"TRAILER!!!"));
    }
}
