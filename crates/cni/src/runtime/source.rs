// SPDX-License-Identifier: Apache-2.0
//! The text of a configuration and its file, so that an error can name file, line and column and quote the line.

use std::collections::BTreeMap;
use std::path::Path;

use gojson::DecodeError;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{Code, Error};

/// The text of a configuration.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub bytes: &'a [u8],
    pub file: Option<&'a Path>,
}

impl Source<'_> {
    /// Parses the text, which must be a JSON object.
    pub(super) fn object(&self) -> Result<Map<String, Value>, Error> {
        serde_json::from_slice(self.bytes).map_err(|cause| {
            let text = cause.to_string();
            let problem = text.rsplit_once(" at line ").map_or(&*text, |(problem, _)| problem);
            let position = Some((cause.line(), cause.column())).filter(|(line, _)| *line > 0);
            self.error(Code::DECODE, position, problem)
        })
    }

    /// Creates an error about an invalid value.
    pub(super) fn invalid(&self, problem: &DecodeError) -> Error {
        let position = self.locate(&problem.path);
        self.error(Code::INVALID_CONFIG, position, &problem.to_string())
    }

    fn error(&self, code: Code, position: Option<(usize, usize)>, problem: &str) -> Error {
        let file = self.file.map(|file| file.display().to_string());
        let at = match (file, position) {
            (Some(file), Some((line, column))) => format!("{file}:{line}:{column}"),
            (Some(file), None) => file,
            (None, Some((line, column))) => {
                format!("network configuration, line {line} column {column}")
            }
            (None, None) => "network configuration".to_owned(),
        };
        let error = Error::new(code, format!("{at}: {problem}"));
        match position.and_then(|(line, _)| Some((line, self.line(line)?))) {
            Some((number, line)) => error.with_details(format!("line {number}: {line}")),
            None => error,
        }
    }

    /// Returns the start of a line by its number.
    fn line(&self, number: usize) -> Option<String> {
        let line = self.bytes.split(|byte| *byte == b'\n').nth(number.checked_sub(1)?)?;
        let text = String::from_utf8_lossy(line.trim_ascii());
        Some(text.chars().take(160).collect()).filter(|text: &String| !text.is_empty())
    }

    /// Returns line and column of the value at a path such as `plugins[1].type`.
    fn locate(&self, path: &str) -> Option<(usize, usize)> {
        if path.is_empty() {
            return None;
        }
        let whole = str::from_utf8(self.bytes).ok()?;
        let mut inner = whole;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            inner = match step.strip_suffix(']') {
                Some(index) => item(inner, index.parse().ok()?)?,
                None => field(inner, step)?,
            };
        }
        // Both are slices of the same text, so the difference of their addresses is the offset.
        let before = &self.bytes[..inner.as_ptr() as usize - whole.as_ptr() as usize];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        Some((line, column))
    }
}

fn field<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let folded = || fields.iter().rfind(|(other, _)| other.eq_ignore_ascii_case(key));
    fields.get(key).copied().or_else(|| folded().map(|(_, value)| *value)).map(RawValue::get)
}

fn item(list: &str, index: usize) -> Option<&str> {
    let items: Vec<&RawValue> = serde_json::from_str(list).ok()?;
    items.get(index).copied().map(RawValue::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"{\n  \"name\": \"a\",\n  \"plugins\": [\n    {}, {\"Type\": 3}\n  ]\n}\n";

    #[test]
    fn value_is_located_by_path() {
        let source = Source { bytes: TEXT, file: None };
        assert_eq!(source.locate("name"), Some((2, 11)));
        assert_eq!(source.locate("plugins[0]"), Some((4, 5)));
        assert_eq!(source.locate("plugins[1].type"), Some((4, 18)));
        assert_eq!(source.locate("plugins[2].type"), None);
        assert_eq!(source.locate("cni.dev/attachments"), None);
        assert_eq!(source.locate(""), None);
    }

    #[test]
    fn error_names_file_line_and_column() {
        let file = Path::new("/etc/cni/net.d/10-a.conflist");
        let source = Source { bytes: TEXT, file: Some(file) };
        let error = source.invalid(&DecodeError::at("plugins[1].type", 3, "expected a text"));
        assert_eq!(
            error.to_string(),
            "/etc/cni/net.d/10-a.conflist:4:18: key \"plugins[1].type\" is 3: expected a text; \
             line 4: {}, {\"Type\": 3}"
        );
        let truncated = Source { bytes: &TEXT[..30], file: None }.object().expect_err("cut off");
        assert_eq!(truncated.code, Code::DECODE);
        assert_eq!(
            truncated.msg,
            "network configuration, line 3 column 13: EOF while parsing a value"
        );
        let empty = Source { bytes: b"", file: Some(file) }.object().expect_err("empty");
        assert!(empty.msg.contains("EOF while parsing"), "{}", empty.msg);
    }
}
