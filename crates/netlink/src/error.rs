// SPDX-License-Identifier: Apache-2.0
//! Errors of the kernel: the error number and, if the kernel sent one, its explanation.

use std::fmt;

use rustix::io::Errno;

/// An error number with the kernel's extended acknowledgement text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Error number.
    pub errno: Errno,
    /// Explanation by the kernel (`NLMSGERR_ATTR_MSG`) or by this crate.
    pub ext: Option<String>,
}

impl Error {
    /// Creates an error with an explanation.
    pub fn explained(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, ext: Some(text.into()) }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self { errno, ext: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from(self.errno).to_string();
        let suffix = format!(" (os error {})", self.errno.raw_os_error());
        f.write_str(text.strip_suffix(&suffix).unwrap_or(&text))?;
        match &self.ext {
            Some(ext) => write!(f, " ({ext})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_has_error_name_and_explanation() {
        assert_eq!(Error::from(Errno::EXIST).to_string(), "File exists");
        assert_eq!(
            Error::explained(Errno::INVAL, "Invalid prefix").to_string(),
            "Invalid argument (Invalid prefix)"
        );
    }
}
