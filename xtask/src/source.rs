// SPDX-License-Identifier: Apache-2.0
//! Lists the files of the workspace, and strips comments and strings from Rust code.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Directories that git ignores. This walks the tree itself, because git may be missing.
const IGNORED: [&str; 4] = [".git", "cache", "fuzz/artifacts", "fuzz/corpus"];

/// All files of the workspace, sorted.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() && is_source(root, &entry.path()) => dirs.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Whether to descend into a directory. Cargo marks target directories with a CACHEDIR.TAG.
fn is_source(root: &Path, dir: &Path) -> bool {
    let is_ignored = IGNORED.iter().any(|name| dir == root.join(name));
    !is_ignored && !dir.join("CACHEDIR.TAG").exists()
}

/// A line without `//` comments and string literals.
pub(crate) fn code(line: &str) -> String {
    let mut code = String::new();
    let mut chars = line.chars().peekable();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => drop(chars.next()),
            // The character literal '"'.
            '\'' if !in_string && chars.peek() == Some(&'"') => drop(chars.next()),
            '"' => in_string = !in_string,
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            _ if !in_string => code.push(c),
            _ => {}
        }
    }
    code
}

/// The identifiers in a piece of code: `unsafe_code` is one, `libc::c_int` are two.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_omits_comments_and_strings() {
        fn check(line: &str, expected: &str) {
            assert_eq!(code(line), expected);
        }
        check("let x = 1; // unsafe", "let x = 1; ");
        check("/// unsafe", "");
        check(r#"expect("hidden(", '"', "a\"hidden")"#, "expect(, ', )");
        check("unsafe { x / y }", "unsafe { x / y }");
    }

    #[test]
    fn words_are_whole_identifiers() {
        let split: Vec<_> = words("#![forbid(unsafe_code)] libc::open()").collect();
        assert_eq!(split, ["forbid", "unsafe_code", "libc", "open"]);
    }

    #[test]
    fn walk_skips_build_directories() {
        let dir = tempfile::tempdir().unwrap();
        let sources = [".ci/run", "src/cache/disk.rs", "src/lib.rs"];
        let ignored = [".git/HEAD", "cache/x", "target/CACHEDIR.TAG", "target/debug/x"];
        for path in sources.iter().chain(&ignored) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let expected = sources.map(|path| dir.path().join(path));
        assert_eq!(files(dir.path()).unwrap(), expected);
    }
}
