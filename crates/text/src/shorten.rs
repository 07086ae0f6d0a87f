// SPDX-License-Identifier: Apache-2.0
//! Shortens input of any length for error messages.

use std::borrow::Cow;

/// Shortens a text to about `max` characters. The middle is left out, because an error often ends with the expected
/// value.
pub fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    // A text has at least as many bytes as characters, so this covers nearly all texts.
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let tail = max / 4;
    let Some((head_end, _)) = text.char_indices().nth(max - tail) else { return text.into() };
    let tail_start = text.char_indices().rev().nth(tail).map_or(head_end, |(start, _)| start);
    if tail_start <= head_end {
        return Cow::Borrowed(text);
    }
    let (head, tail) = (&text[..head_end], &text[tail_start..]);
    format!("{head}… ({} bytes in all) …{tail}", text.len()).into()
}

/// Shortens a configuration value for an error message.
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
    fn shortened_text_keeps_start_and_end() {
        assert_eq!(shorten("", 8), "");
        assert_eq!(shorten("12345678", 8), "12345678");
        assert_eq!(shorten("éééééééé", 8), "éééééééé");
        assert_eq!(shorten("abcdefghijklmnop", 8), "abcdef… (16 bytes in all) …nop");
        let long = format!("key is {}, expected a number", "é".repeat(1_000_000));
        let short = shorten(&long, 400);
        assert!(short.starts_with("key is é") && short.ends_with("é, expected a number"));
        assert!(short.chars().count() < 450, "{short}");
        assert!(short.contains("(2000026 bytes in all)"), "{short}");
        for max in 0..20 {
            shorten("éaéaéaéa", max);
        }
    }
}
