// SPDX-License-Identifier: Apache-2.0
//! The invariants of ARCHITECTURE.md that a program can check.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::source;
use crate::workspace::Workspace;
use crate::{cmd, elf};

/// Maximum size of podwire-cni as shipped, in bytes.
const MAX_SIZE: usize = 2_500_000;

/// Identifiers that only the crates in `RIM` may use.
const RIM_WORDS: [&str; 3] = ["unsafe", "setns", "libc"];
const RIM: [&str; 2] = ["crates/netlink", "crates/kernel"];

/// Checks the sources; needs no build.
pub(crate) fn check_sources(workspace: &Workspace) -> Result<()> {
    no_async_below_plugins(workspace)?;
    let mut violations = Vec::new();
    for file in source::files(&workspace.root)? {
        let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let name = file.strip_prefix(&workspace.root)?;
        let text = String::from_utf8_lossy(&bytes);
        violations.extend(machine_paths(name, &text, &workspace.root));
        violations.extend(rim_words(name, &text));
    }
    ensure!(violations.is_empty(), "invariants violated:\n  {}", violations.join("\n  "));
    println!("invariants of the sources checked");
    Ok(())
}

/// Checks podwire-cni as shipped.
pub(crate) fn check_plugin_program(program: &Path) -> Result<()> {
    let file = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    let (size, shown) = (file.len(), program.display());
    ensure!(elf::is_static(&file)?, "{shown} is not static");
    ensure!(size < MAX_SIZE, "{shown} has {size} bytes; {MAX_SIZE} is the limit");
    println!("podwire-cni is static and has {size} bytes");
    Ok(())
}

/// cargo fails if tokio is in no dependency tree, and prints nothing if it is only in another one:
/// both are fine.
fn no_async_below_plugins(workspace: &Workspace) -> Result<()> {
    let mut tree = cmd::cargo();
    tree.args(["tree", "-p", "podwire-plugins", "-e", "normal,build", "-i", "tokio"]);
    let output = cmd::output(tree.current_dir(&workspace.root))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && !stderr.contains("did not match any packages") {
        bail!("cargo tree: {stderr}");
    }
    let users = String::from_utf8_lossy(&output.stdout);
    ensure!(users.trim().is_empty(), "the plugins depend on tokio:\n{users}");
    Ok(())
}

/// Finds paths of this machine. Ignores a short root such as `/src`, which matches by chance.
fn machine_paths(name: &Path, text: &str, root: &Path) -> Vec<String> {
    let root = root.to_string_lossy();
    if root.matches('/').count() < 2 {
        return Vec::new();
    }
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains(&*root));
    lines.map(|(at, _)| format!("{}:{}: contains {root}", name.display(), at + 1)).collect()
}

/// Finds `unsafe`, `setns` and `libc` outside the two crates that may use them.
fn rim_words(name: &Path, text: &str) -> Vec<String> {
    let is_rust = name.extension().is_some_and(|extension| extension == "rs");
    if !is_rust || RIM.iter().any(|dir| name.starts_with(dir)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = source::code(line);
        for word in source::words(&code).filter(|word| RIM_WORDS.contains(word)) {
            let allowed = RIM.join(" and ");
            found.push(format!("{}:{}: `{word}` outside {allowed}", name.display(), at + 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rim_words_are_found_in_code_only() {
        fn check(name: &str, line: &str, expected: usize) {
            assert_eq!(rim_words(Path::new(name), line).len(), expected, "{name}: {line}");
        }
        check("crates/cni/src/lib.rs", "unsafe { libc::getpid() }", 2);
        check("crates/cni/src/lib.rs", "// unsafe", 0);
        check("crates/cni/src/lib.rs", "#![forbid(unsafe_code)]", 0);
        check("crates/cni/src/lib.rs", "let trace = \"setns(3\";", 0);
        check("crates/kernel/src/netns.rs", "unsafe { libc::setns(fd, 0) }", 0);
        check("crates/kernel2/src/lib.rs", "use libc;", 1);
        check("docs/design.md", "unsafe", 0);
    }

    #[test]
    fn machine_paths_are_found() {
        let check = |text, root| machine_paths(Path::new("a"), text, Path::new(root));
        assert_eq!(check("see\n/home/me/x/y\n", "/home/me/x"), ["a:2: contains /home/me/x"]);
        assert!(check("see /src/y", "/src").is_empty());
    }
}
