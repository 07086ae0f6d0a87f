// SPDX-License-Identifier: Apache-2.0
//! A container image that contains only busybox, as an archive in the format of `docker save`.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};
use testkit::{require, run};

/// Image name; the registry `localhost` is never contacted.
pub const IMAGE: &str = "localhost/box:1";

/// Serves [`PAGE`] on port 80.
pub const SERVER: &str = "httpd -f -p 80 -h /www";

pub const PAGE: &str = "hello from a container\n";

const TOOLS: &str = "sh sleep wget httpd ip";

/// Writes the archive into `directory` and returns its path.
pub fn archive(directory: &Path) -> String {
    require!(Program("busybox"), Program("tar"));
    let root = directory.join("root");
    for below in ["bin", "www", "tmp", "etc"] {
        fs::create_dir_all(root.join(below)).expect("create a directory in /run");
    }
    let busybox = run("sh", &["-c", "command -v busybox"]);
    fs::copy(busybox.trim(), root.join("bin/busybox")).expect("copy busybox");
    for tool in TOOLS.split_whitespace() {
        symlink("busybox", root.join("bin").join(tool)).expect("create a symlink in /run");
    }
    fs::write(root.join("www/index.html"), PAGE).expect("write a file in /run");
    let layer = directory.join("layer.tar");
    tar(&root, &layer, &["."]);
    write_config_and_manifest(directory, &layer);
    let image = directory.join("image.tar");
    tar(directory, &image, &["manifest.json", "config.json", "layer.tar"]);
    image.display().to_string()
}

fn write_config_and_manifest(directory: &Path, layer: &Path) {
    let digest = Sha256::digest(fs::read(layer).expect("the layer was just written"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let arch =
        [("x86_64", "amd64"), ("aarch64", "arm64")].into_iter().find(|(ours, _)| *ours == ARCH);
    let config = json!({
        "architecture": arch.map_or(ARCH, |(_, theirs)| theirs),
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "1000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    for (name, content) in [("config.json", config), ("manifest.json", manifest)] {
        fs::write(directory.join(name), content.to_string()).expect("write a file in /run");
    }
}

fn tar(from: &Path, to: &Path, entries: &[&str]) {
    let [from, to] = [from, to].map(|path| path.to_str().expect("test paths are UTF-8"));
    run("tar", &[&["--create", "--file", to, "--directory", from], entries].concat());
}
