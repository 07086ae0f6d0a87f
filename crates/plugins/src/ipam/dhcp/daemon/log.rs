// SPDX-License-Identifier: Apache-2.0
//! Lines for whoever collects what daemons say.

use std::fmt::Display;
use std::io::{self, Write};

/// One line on standard error. If nobody listens, leases are kept all the same.
pub fn line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// One line about an attachment.
pub fn about(whose: &str, what: impl Display) {
    line(&format!("{whose}: {what}"));
}
