// SPDX-License-Identifier: Apache-2.0
//! The workspace's files, and the code of a line of Rust without its comments and strings.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What git keeps or ignores, by its path in the workspace. The tree is walked because a
/// fresh machine, or an unpacked archive, has no git.
const NOT_OURS: [&str; 4] = [".git", "cache", "fuzz/artifacts", "fuzz/corpus"];

/// All files of the workspace, sorted.
pub fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() && is_ours(root, &entry.path()) => dirs.push(entry.path()),
                kind if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Cargo marks its target directories, whatever their name, with a CACHEDIR.TAG.
fn is_ours(root: &Path, dir: &Path) -> bool {
    let is_ignored = NOT_OURS.iter().any(|name| dir == root.join(name));
    !is_ignored && !dir.join("CACHEDIR.TAG").exists()
}

/// A line without `//` comments and without what stands in quotes.
pub fn code(line: &str) -> String {
    let mut code = String::new();
    let mut chars = line.chars().peekable();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => drop(chars.next()),
            // A quotation mark as a character.
            '\'' if !in_string && chars.peek() == Some(&'"') => drop(chars.next()),
            '"' => in_string = !in_string,
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            _ if !in_string => code.push(c),
            _ => {}
        }
    }
    code
}

/// The words of a piece of code: `unsafe_code` is one, `libc::c_int` are two.
pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_no_comments_and_strings() {
        fn check(line: &str, expected: &str) {
            assert_eq!(code(line), expected);
        }
        check("let x = 1; // unsafe", "let x = 1; ");
        check("/// unsafe", "");
        check(r#"expect("hidden(", '"', "a\"hidden")"#, "expect(, ', )");
        check("unsafe { x / y }", "unsafe { x / y }");
    }

    #[test]
    fn words_are_whole() {
        let found: Vec<_> = words("#![forbid(unsafe_code)] libc::open()").collect();
        assert_eq!(found, ["forbid", "unsafe_code", "libc", "open"]);
    }

    #[test]
    fn walk_leaves_out_what_is_built() {
        let dir = tempfile::tempdir().unwrap();
        let ours = [".ci/run", "src/cache/disk.rs", "src/lib.rs"];
        let others = [".git/HEAD", "cache/x", "target/CACHEDIR.TAG", "target/debug/x"];
        for path in ours.iter().chain(&others) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let expected = ours.map(|path| dir.path().join(path));
        assert_eq!(files(dir.path()).unwrap(), expected);
    }
}
