// SPDX-License-Identifier: Apache-2.0
//! Kernel modules for mounting the root directory, with their dependencies, in load order.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cmd;

/// The root directory and the output use virtio.
const NEEDED: [&str; 5] = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console"];

/// Name and contents of each module, in load order.
pub(crate) fn for_boot(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let paths = order(&read("modules.dep")?, &read("modules.builtin")?)?;
    paths.iter().map(|path| Ok((module_name(path), contents(&dir.join(path))?))).collect()
}

/// Parses lines of `path: dependency…`; the dependency to load first is the last one.
fn order(dependencies: &str, built_in: &str) -> Result<Vec<String>> {
    let mut order: Vec<String> = Vec::new();
    for name in NEEDED {
        let line = dependencies.lines().filter_map(|line| line.split_once(':'));
        let Some((path, needs)) = line.clone().find(|(path, _)| module_name(path) == name) else {
            let is_there = built_in.lines().any(|path| module_name(path) == name);
            is_there.then_some(()).with_context(|| format!("the kernel has no module {name}"))?;
            continue;
        };
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.iter().any(|known| known == path) {
                order.push(path.to_owned());
            }
        }
    }
    Ok(order)
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

fn contents(path: &PathBuf) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("read {}", path.display())),
    };
    Ok(cmd::output(cmd::command(program).arg("-dc").arg(path))?.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_come_first_and_once() {
        let dependencies = "kernel/net/9p/9pnet.ko:\n\
            kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko kernel/virtio.ko\n\
            kernel/virtio.ko:\nkernel/virtio-console.ko: kernel/virtio.ko\n\
            kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko\nkernel/overlay.ko:\n";
        let built_in = "kernel/drivers/virtio/virtio_pci.ko\n";
        let expected = [
            "kernel/virtio.ko",
            "kernel/net/9p/9pnet.ko",
            "kernel/net/9p/9pnet_virtio.ko.xz",
            "kernel/fs/9p/9p.ko",
            "kernel/overlay.ko",
            "kernel/virtio-console.ko",
        ];
        assert_eq!(order(dependencies, built_in).unwrap(), expected);
        assert!(order(dependencies, "").is_err());
    }
}
