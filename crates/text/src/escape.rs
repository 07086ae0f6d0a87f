// SPDX-License-Identifier: Apache-2.0
//! Escapes untrusted text for a terminal, a web page or a log. Control characters (escape sequences, C1 codes, line
//! breaks) and characters that change how others appear (bidirectional overrides, invisible characters) become visible
//! escapes such as `\u{1b}`. Escaping twice changes nothing.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes a text that must stay on one line, such as a name.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, is_active, visible_escape)
}

/// Escapes a text of several lines. Line feeds and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |letter| is_active(letter) && !is_layout(letter), visible_escape)
}

/// Escapes a whole JSON document with JSON escapes, which changes none of its values.
pub fn json(document: &str) -> Cow<'_, str> {
    escape(document, |letter| is_active(letter) && !is_layout(letter), json_escape)
}

fn is_layout(letter: char) -> bool {
    matches!(letter, '\n' | '\t')
}

/// Returns whether a character has an effect other than being displayed.
fn is_active(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}' // zero width, direction
            | '\u{2028}'..='\u{202e}' // line and paragraph, direction
            | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

fn escape(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    write: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_escaped(letter) {
            true => write(&mut escaped, letter),
            false => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

fn visible_escape(text: &mut String, letter: char) {
    match letter {
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        // Writing to a string cannot fail.
        other => drop(write!(text, "\\u{{{:x}}}", u32::from(other))),
    }
}

fn json_escape(text: &mut String, letter: char) {
    for unit in letter.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn control_characters_become_visible() {
        let check = |text: &str, escaped: &str| assert_eq!(line(text), escaped);
        check("10.5.1.0-24 Grüße, 節点 '\"\\{}", "10.5.1.0-24 Grüße, 節点 '\"\\{}");
        check("\u{1b}[31mred\u{1b}]0;title\u{7}", "\\u{1b}[31mred\\u{1b}]0;title\\u{7}");
        check("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}");
        check("a\r\nb\tc", "a\\r\\nb\\tc");
        check("\u{202e}gpj.exe\u{2066}", "\\u{202e}gpj.exe\\u{2066}");
        check("\u{2028}\u{200b}\u{feff}\u{e0041}", "\\u{2028}\\u{200b}\\u{feff}\\u{e0041}");
        assert_eq!(lines("a\n\tb\u{1b}"), "a\n\tb\\u{1b}");
    }

    #[test]
    fn escaped_json_keeps_its_values() {
        let value = json!({"name": "\u{1b}[31m\n\u{9b}\u{202e}\u{7f}\u{e0041}ü", "n": 1});
        for document in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let escaped = json(&document);
            assert_eq!(escaped.matches(|c| is_active(c) && c != '\n').count(), 0, "{escaped:?}");
            assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), value);
        }
    }

    proptest! {
        #[test]
        fn escaping_is_complete_and_idempotent(text: String) {
            let escaped = line(&text).into_owned();
            prop_assert!(!escaped.contains(is_active));
            prop_assert_eq!(line(&escaped), escaped.as_str());
            prop_assert_eq!(lines(&escaped), escaped.as_str());
            let document = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&json(&document)).unwrap(), text);
        }
    }
}
