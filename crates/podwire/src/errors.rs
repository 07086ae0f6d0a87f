// SPDX-License-Identifier: Apache-2.0
//! Error messages: the operation that failed, its causes, and a hint if one is known.

use std::fmt;
use std::io::Write;

use anyhow::{Error, Result};
use plugins::registry::PLUGINS;
use serde_json::Value;
use text::escape;

use crate::privilege::Privilege;

/// An error with a hint. Its text is the text of the error.
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

/// A mistake on the command line that clap cannot detect: exit status 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Usage {}

/// Adds a hint to an error.
pub(crate) trait Hint<T> {
    fn hint(self, hint: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Error>> Hint<T> for Result<T, E> {
    fn hint(self, hint: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| with_hint(error.into(), hint()))
    }
}

pub(crate) fn with_hint(error: Error, hint: String) -> Error {
    Error::new(Hinted { error, hint })
}

/// Prints a warning to standard error.
pub(crate) fn warn(text: &str) {
    // Standard error may be closed; that is no reason to fail.
    let _ = writeln!(std::io::stderr(), "warning: {}", escape::lines(text));
}

/// Prints a note to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "note: {}", escape::lines(text));
}

/// The error message for standard error, one line per cause.
pub(crate) fn text(error: &Error, privilege: Privilege) -> String {
    let mut text = String::new();
    for (at, Cause { text: cause, is_note }) in causes(error).into_iter().enumerate() {
        let label = match (at, is_note) {
            (0, _) => "error:",
            (_, false) => "  because",
            (_, true) => "  note:",
        };
        text += &format!("{label} {}\n", escape::lines(&cause).replace('\n', "\n  "));
    }
    if let Some(hint) = hint(error, privilege) {
        text += &format!("hint: {}\n", escape::lines(&hint));
    }
    text
}

/// The error as JSON: the CNI error in the chain, or an internal CNI error with the same text.
pub(crate) fn json(error: &Error) -> Value {
    let cni_error = error.chain().find_map(|cause| cni_error(cause));
    let internal = || {
        let mut causes = causes(error).into_iter().map(|cause| cause.text);
        let first = cni::Error::internal(causes.next().unwrap_or_default());
        first.with_details(causes.collect::<Vec<_>>().join(": "))
    };
    cni_error.cloned().unwrap_or_else(internal).to_json(cni::Version::LATEST)
}

struct Cause {
    text: String,
    /// Details of a CNI error, which are not always a cause.
    is_note: bool,
}

/// All causes without repetitions, the outermost first.
fn causes(error: &Error) -> Vec<Cause> {
    let mut causes: Vec<Cause> = Vec::new();
    let mut push = |text: String, is_note: bool| {
        // A wrapper such as `Hinted` repeats the text of the error inside.
        if !text.is_empty() && causes.last().is_none_or(|last| last.text != text) {
            causes.push(Cause { text, is_note });
        }
    };
    for cause in error.chain() {
        match cni_error(cause) {
            Some(cni::Error { msg, details, .. }) => {
                push(msg.clone(), false);
                push(details.clone(), true);
            }
            None => push(cause.to_string(), false),
        }
    }
    causes
}

/// The outermost hint in the chain, or one derived from the text.
fn hint(error: &Error, privilege: Privilege) -> Option<String> {
    let hinted = error.chain().find_map(|cause| cause.downcast_ref::<Hinted>());
    if let Some(hinted) = hinted {
        return Some(hinted.hint.clone());
    }
    let texts: Vec<String> = causes(error).into_iter().map(|cause| cause.text).collect();
    let text = texts.join("\n");
    let is_denied = text.contains("Operation not permitted") || text.contains("Permission denied");
    if is_denied && !privilege.is_root {
        return Some("root is required: run the command with sudo".to_owned());
    }
    if is_denied && let Some(hint) = privilege.hint(&text) {
        return Some(hint);
    }
    let (_, missing) = text.split_once("failed to find plugin \"")?;
    let (missing, _) = missing.split_once('"')?;
    let install = "install the plugin there, or pass its directory with --path";
    Some(match text::suggest(missing, PLUGINS.iter().map(|plugin| plugin.name)) {
        Some(known) => format!("did you mean {known:?}? Otherwise {install}"),
        None => install.to_owned(),
    })
}

/// The CNI error behind this cause; `Hinted` hides its type.
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
    fn text_has_one_line_per_cause() {
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
    fn json_is_the_cni_error() {
        let printed = json(&failure());
        assert_eq!(printed["code"], 7);
        assert_eq!(printed["msg"], "no such plugin");
        let printed = json(&anyhow::anyhow!("inner").context("outer"));
        assert_eq!((&printed["msg"], &printed["details"]), (&"outer".into(), &"inner".into()));
    }

    #[test]
    fn misspelled_plugin_gets_a_suggestion() {
        let near = |name: &str| text::suggest(name, PLUGINS.iter().map(|plugin| plugin.name));
        let check = |name: &str, known: Option<&str>| assert_eq!(near(name), known, "{name}");
        check("brige", Some("bridge"));
        check("brigde", Some("bridge"));
        check("hostlocal", Some("host-local"));
        check("weave-net", None);
        check("cap", None);
        check("", None);
    }

    #[test]
    fn missing_permission_gets_a_hint() {
        let error = anyhow::anyhow!("create namespace: Operation not permitted");
        let user = Privilege { is_root: false, ..Privilege::ALL };
        let hint = "hint: root is required: run the command with sudo\n";
        assert!(text(&error, user).ends_with(hint));
        assert!(!text(&error, Privilege::ALL).contains("hint"));
        let confined = Privilege { capabilities: 0, ..Privilege::ALL };
        let shown = text(&error, confined);
        assert!(
            shown.contains("hint: this process lacks CAP_NET_ADMIN and CAP_SYS_ADMIN"),
            "{shown}"
        );
    }
}
