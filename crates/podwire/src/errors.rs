// SPDX-License-Identifier: Apache-2.0
//! Errors as people read them: what failed, why, and a hint where we know one.

use std::fmt;
use std::io::Write;

use anyhow::{Error, Result};
use plugins::registry::PLUGINS;
use serde_json::Value;
use text::escape;

use crate::privilege::Privilege;

/// An error with advice. It shows as the error itself.
#[derive(Debug)]
struct Hinted {
    error: Error,
    hint: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Hinted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// The command line is wrong, in a way that its parser cannot know: exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Usage {}

/// Adds advice to an error.
pub trait Hint<T> {
    fn hint(self, hint: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Hint<T> for Result<T, E> {
    fn hint(self, hint: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::new(Hinted { error: error.into(), hint: hint() }))
    }
}

/// Tells of something that we could cope with.
pub fn warn(text: &str) {
    // Nobody may be listening, and that is no reason to fail.
    let _ = writeln!(std::io::stderr(), "warning: {}", escape::lines(text));
}

/// Tells of something that is good to know.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "note: {}", escape::lines(text));
}

/// The lines for standard error.
pub fn text(error: &Error, privilege: Privilege) -> String {
    let mut text = String::new();
    for (at, Said { text: said, is_note }) in said(error).into_iter().enumerate() {
        let label = match (at, is_note) {
            (0, _) => "error:",
            (_, false) => "  because",
            (_, true) => "  note:",
        };
        text += &format!("{label} {}\n", escape::lines(&said).replace('\n', "\n  "));
    }
    if let Some(hint) = hint(error, privilege) {
        text += &format!(
            "hint: {}
",
            escape::lines(&hint)
        );
    }
    text
}

/// The same for programs: the CNI error where there is one, else one like it.
pub fn json(error: &Error) -> Value {
    let known = error.chain().find_map(|cause| cni_error(cause));
    let other = || {
        let mut said = said(error).into_iter().map(|said| said.text);
        let first = cni::Error::internal(said.next().unwrap_or_default());
        first.with_details(said.collect::<Vec<_>>().join(": "))
    };
    known.cloned().unwrap_or_else(other).to_json(cni::Version::LATEST)
}

/// Something that an error says.
struct Said {
    text: String,
    /// Details of a plugin's error: causes, advice or what else is good to know.
    is_note: bool,
}

/// Every cause once, the outermost first.
fn said(error: &Error) -> Vec<Said> {
    let mut said: Vec<Said> = Vec::new();
    let mut say = |text: String, is_note: bool| {
        // A wrapper that shows as what it wraps says nothing of its own.
        if !text.is_empty() && said.last().is_none_or(|last| last.text != text) {
            said.push(Said { text, is_note });
        }
    };
    for cause in error.chain() {
        match cni_error(cause) {
            Some(cni::Error { msg, details, .. }) => {
                say(msg.clone(), false);
                say(details.clone(), true);
            }
            None => say(cause.to_string(), false),
        }
    }
    said
}

/// The advice nearest to the outside.
fn hint(error: &Error, privilege: Privilege) -> Option<String> {
    let given = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>());
    if let Some(hinted) = given {
        return Some(hinted.hint.clone());
    }
    let said: Vec<String> = said(error).into_iter().map(|said| said.text).collect();
    let said = said.join("\n");
    let is_refused = said.contains("Operation not permitted") || said.contains("Permission denied");
    if is_refused && !privilege.is_root {
        return Some("this needs root: try it with sudo".to_owned());
    }
    if is_refused && let Some(hint) = privilege.hint(&said) {
        return Some(hint);
    }
    let (_, missing) = said.split_once("failed to find plugin \"")?;
    let (missing, _) = missing.split_once('"')?;
    let install = "install the plugin there, or name its directory with --path";
    Some(match cni::near(missing, PLUGINS.iter().map(|plugin| plugin.name)) {
        Some(known) => format!("did you mean {known:?}? Otherwise {install}"),
        None => install.to_owned(),
    })
}

/// A wrapper hides the type of what it wraps.
fn cni_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a cni::Error> {
    match cause.downcast_ref::<Hinted>() {
        Some(hinted) => hinted.error.downcast_ref(),
        None => cause.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn failure() -> Error {
        let cause = cni::Error::new(cni::Code::INVALID_CONFIG, "no such plugin")
            .with_details("looked in /a\nand /b");
        let result: Result<()> = Err(cause).hint(|| "install it".into());
        result.context("attach a").unwrap_err()
    }

    #[test]
    fn each_cause_has_a_line() {
        let expected = "\
error: attach a
  because no such plugin
  note: looked in /a
  and /b
hint: install it
";
        assert_eq!(text(&failure(), Privilege::ALL), expected);
    }

    #[test]
    fn programs_get_the_cni_error() {
        let printed = json(&failure());
        assert_eq!(printed["code"], 7);
        assert_eq!(printed["msg"], "no such plugin");
        let printed = json(&anyhow::anyhow!("inner").context("outer"));
        assert_eq!((&printed["msg"], &printed["details"]), (&"outer".into(), &"inner".into()));
    }

    #[test]
    fn a_plugin_with_a_name_nearly_right_is_named() {
        let near = |name: &str| cni::near(name, PLUGINS.iter().map(|plugin| plugin.name));
        let check = |name: &str, known: Option<&str>| assert_eq!(near(name), known, "{name}");
        check("brige", Some("bridge"));
        check("brigde", Some("bridge"));
        check("hostlocal", Some("host-local"));
        check("calico", None);
        check("cap", None);
        check("", None);
    }

    #[test]
    fn users_are_told_about_root() {
        let error = anyhow::anyhow!("create namespace: Operation not permitted");
        let user = Privilege { is_root: false, ..Privilege::ALL };
        assert!(text(&error, user).ends_with("hint: this needs root: try it with sudo\n"));
        assert!(!text(&error, Privilege::ALL).contains("hint"));
        let confined = Privilege { capabilities: 0, ..Privilege::ALL };
        let shown = text(&error, confined);
        assert!(
            shown.contains("hint: this process lacks CAP_NET_ADMIN and CAP_SYS_ADMIN"),
            "{shown}"
        );
    }
}
