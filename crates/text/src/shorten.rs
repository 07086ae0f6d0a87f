// SPDX-License-Identifier: Apache-2.0
//! Text from outside in errors: shown, but never pages of it.

use std::borrow::Cow;

/// Shortens a text to about this many characters. What is left out stands between the beginning and
/// the end, because an error often ends with what was expected.
pub fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    // A text has at least as many bytes as characters: nearly all texts end here.
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let tail = most / 4;
    let Some((head_end, _)) = text.char_indices().nth(most - tail) else { return text.into() };
    let tail_start = text.char_indices().rev().nth(tail).map_or(head_end, |(start, _)| start);
    if tail_start <= head_end {
        return Cow::Borrowed(text);
    }
    let (head, tail) = (&text[..head_end], &text[tail_start..]);
    format!("{head}… ({} bytes in all) …{tail}", text.len()).into()
}

/// A value of a configuration as an error shows it.
pub fn shorten_value(value: impl std::fmt::Display) -> String {
    let text = value.to_string();
    match shorten(&text, 400) {
        Cow::Borrowed(_) => text,
        Cow::Owned(short) => short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_and_end_stay() {
        assert_eq!(shorten("", 8), "");
        assert_eq!(shorten("12345678", 8), "12345678");
        assert_eq!(shorten("éééééééé", 8), "éééééééé");
        assert_eq!(shorten("abcdefghijklmnop", 8), "abcdef… (16 bytes in all) …nop");
        let long = format!("key is {}, expected a number", "é".repeat(1_000_000));
        let short = shorten(&long, 400);
        assert!(short.starts_with("key is é") && short.ends_with("é, expected a number"));
        assert!(short.chars().count() < 450, "{short}");
        assert!(short.contains("(2000026 bytes in all)"), "{short}");
        for most in 0..20 {
            shorten("éaéaéaéa", most);
        }
    }
}
