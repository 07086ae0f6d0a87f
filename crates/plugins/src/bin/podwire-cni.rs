// SPDX-License-Identifier: Apache-2.0
//! Every plugin in one program: it is the plugin whose name it is started under.

use std::process::ExitCode;

use plugins::ipam::dhcp;
use plugins::{install, multicall};

/// musl's own allocator gives pages back to the kernel and fetches them again some forty times in
/// one ADD; this one keeps them, which saves 7 % of it.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next();
    match multicall::called_as(name.as_deref()) {
        Some(plugin)
            if plugin.name == "dhcp" && words.next().is_some_and(|word| word == "daemon") =>
        {
            dhcp::daemon::command_line(words)
        }
        Some(plugin) if plugin.name == "podwire" && words.next().is_some() => {
            install::refuse_tool_words(name)
        }
        Some(plugin) => multicall::run(plugin),
        None => multicall::refuse(name.as_deref()).unwrap_or_else(|| install::command_line(words)),
    }
}
