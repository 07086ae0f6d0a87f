// SPDX-License-Identifier: Apache-2.0
//! The Debian mirror of this machine, read from apt's sources in both formats.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One package source of apt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) uri: String,
    pub(crate) suites: Vec<String>,
    pub(crate) components: Vec<String>,
    /// Path of a keyring. A key inside the file is ignored: apt then uses its trusted keys, which on
    /// Debian include the archive's.
    pub(crate) signed_by: Option<String>,
}

impl Source {
    /// A `deb` or `deb-src` line for the same mirror with another suite.
    pub(crate) fn line(&self, kind: &str, suite: &str) -> String {
        let keys = self.signed_by.as_ref();
        let options = keys.map(|path| format!("[signed-by={path}] ")).unwrap_or_default();
        format!("{kind} {options}{} {suite} main\n", self.uri)
    }
}

/// The mirror of the installed release, not of security updates or other vendors.
pub(crate) fn mirror() -> Result<Source> {
    let release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let codename = codename(&release).context("/etc/os-release has no VERSION_CODENAME")?;
    let sources = read(Path::new("/etc/apt"))?;
    let source = choose(&sources, codename);
    source.cloned().with_context(|| format!("no source of {codename} main below /etc/apt"))
}

fn codename(os_release: &str) -> Option<&str> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(value.trim_matches('"'))
}

fn choose<'a>(sources: &'a [Source], codename: &str) -> Option<&'a Source> {
    sources.iter().find(|source| {
        let is_release = |suite: &String| suite == codename || suite == "stable";
        source.suites.iter().any(is_release) && source.components.iter().any(|c| c == "main")
    })
}

fn read(etc_apt: &Path) -> Result<Vec<Source>> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(etc_apt.join("sources.list.d")) {
        let mut parts: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let parse = match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => one_line,
            Some("sources") => deb822,
            _ => continue,
        };
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        sources.extend(parse(&text));
    }
    Ok(sources)
}

/// `deb [signed-by=/path arch=amd64] uri suite component...`
fn one_line(text: &str) -> Vec<Source> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter_map(|line| entry(line.strip_prefix("deb")?)).collect()
}

fn entry(line: &str) -> Option<Source> {
    // Without a space this is `deb-src`.
    let line = line.strip_prefix([' ', '\t'])?.trim_start();
    let (options, line) = match line.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", line),
    };
    let mut words = line.split_whitespace().map(str::to_owned);
    Some(Source {
        uri: words.next()?,
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by: options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned),
    })
}

/// Paragraphs of `Key: value`; a line that starts with a space continues the previous one.
fn deb822(text: &str) -> Vec<Source> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let paragraphs = lines.split(|line| line.trim().is_empty());
    paragraphs.filter(|lines| !lines.is_empty()).flat_map(paragraph).collect()
}

fn paragraph(lines: &[&str]) -> Vec<Source> {
    let words = |key: &str| -> Vec<String> {
        let text = field(lines, key).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let is_off = field(lines, "Enabled").is_some_and(|value| value.trim() == "no");
    if is_off || !words("Types").iter().any(|kind| kind == "deb") {
        return Vec::new();
    }
    let keyring = field(lines, "Signed-By").map(|value| value.trim().to_owned());
    let of_uri = |uri| Source {
        uri,
        suites: words("Suites"),
        components: words("Components"),
        signed_by: keyring.clone().filter(|path| path.starts_with('/')),
    };
    words("URIs").into_iter().map(of_uri).collect()
}

fn field(lines: &[&str], key: &str) -> Option<String> {
    let is_key =
        |line: &&str| line.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case(key));
    let start = lines.iter().position(is_key)?;
    let mut value = lines[start].split_once(':')?.1.to_owned();
    for line in lines[start + 1..].iter().take_while(|line| line.starts_with([' ', '\t'])) {
        value.push('\n');
        value.push_str(line);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(uri: &str, suites: &[&str], components: &[&str], key: Option<&str>) -> Source {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Source {
            uri: uri.to_owned(),
            suites: owned(suites),
            components: owned(components),
            signed_by: key.map(str::to_owned),
        }
    }

    #[test]
    fn one_line_format_is_parsed() {
        let text = "# comment\n\
            deb http://m.example/debian bookworm main contrib # why\n\
            deb-src http://m.example/debian bookworm main\n\
            deb [arch=amd64 signed-by=/k.gpg] https://v.example/apt stable main\n";
        let expected = [
            source("http://m.example/debian", &["bookworm"], &["main", "contrib"], None),
            source("https://v.example/apt", &["stable"], &["main"], Some("/k.gpg")),
        ];
        assert_eq!(one_line(text), expected);
    }

    #[test]
    fn deb822_format_is_parsed() {
        let text = "Types: deb\n# note\nURIs: http://m.example/debian\n\
            Suites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n\n\n\
            Types: deb-src\nURIs: http://s.example\nSuites: bookworm\nComponents: main\n\n\
            Enabled: no\nTypes: deb\nURIs: http://o.example\nSuites: bookworm\n\n\
            Types: deb\nURIs: http://i.example\nSuites: x\nComponents: main\nSigned-By:\n -----BEGIN\n";
        let expected = [
            source(
                "http://m.example/debian",
                &["bookworm", "bookworm-updates"],
                &["main"],
                Some("/k.gpg"),
            ),
            source("http://i.example", &["x"], &["main"], None),
        ];
        assert_eq!(deb822(text), expected);
    }

    #[test]
    fn mirror_of_the_release_is_chosen() {
        let sources = [
            source("security", &["bookworm-security"], &["main"], None),
            source("vendor", &["bookworm"], &["tools"], None),
            source("mirror", &["bookworm", "bookworm-updates"], &["main"], Some("/k.gpg")),
        ];
        let source = choose(&sources, "bookworm").unwrap();
        assert_eq!(source.line("deb", "sid"), "deb [signed-by=/k.gpg] mirror sid main\n");
        assert_eq!(choose(&sources, "trixie"), None);
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=\"bookworm\"\n"), Some("bookworm"));
    }
}
