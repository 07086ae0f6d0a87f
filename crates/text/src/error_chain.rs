// SPDX-License-Identifier: Apache-2.0
//! An error and its causes in one line.

use std::error::Error;
use std::fmt;

/// Displays an error followed by its causes, separated by ": ". A cause whose text is already part of the line is
/// left out, because many libraries repeat the cause in their own message.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !line.contains(&text) {
                line = format!("{line}: {text}");
            }
            source = error.source();
        }
        f.write_str(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Step(&'static str, Option<Box<Step>>);

    impl fmt::Display for Step {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Step {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|step| step as _)
        }
    }

    #[test]
    fn chain_prints_each_cause_once() {
        let chain = |texts: &[&'static str]| {
            let error =
                texts.iter().rev().fold(None, |cause, text| Some(Box::new(Step(text, cause))));
            ErrorChain(&*error.unwrap()).to_string()
        };
        assert_eq!(chain(&["open"]), "open");
        assert_eq!(chain(&["open", "connect", "refused"]), "open: connect: refused");
        assert_eq!(chain(&["open: connect", "connect", "refused"]), "open: connect: refused");
    }
}
