// SPDX-License-Identifier: Apache-2.0
//! Every plugin in one program: it is the plugin whose name it is started under.

use std::process::ExitCode;

use plugins::{install, multicall};

/// musl's own allocator gives pages back to the kernel and fetches them again some forty times in
/// one ADD; this one keeps them, which saves 7 % of it.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    match multicall::called_as(words.next().as_deref()) {
        Some(plugin) => multicall::run(plugin),
        None => install::command_line(words),
    }
}
