// SPDX-License-Identifier: Apache-2.0
//! What the kernel said no with: the errno and, where it gave one, its own words.

use std::fmt;

use rustix::io::Errno;

/// An error number with the kernel's extended acknowledgement text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The error number.
    pub errno: Errno,
    /// The kernel's own words (`NLMSGERR_ATTR_MSG`), or ours where the kernel has none.
    pub ext: Option<String>,
}

impl Error {
    /// An error of our own making, explained.
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
    fn display_has_words_of_libc_and_kernel() {
        assert_eq!(Error::from(Errno::EXIST).to_string(), "File exists");
        assert_eq!(
            Error::explained(Errno::INVAL, "Invalid prefix").to_string(),
            "Invalid argument (Invalid prefix)"
        );
    }
}
