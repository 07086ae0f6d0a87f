// SPDX-License-Identifier: Apache-2.0
//! `podwire-cni` under its own name: installs itself under the names of all plugins, lists the
//! plugins, and prints its version.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::registry::PLUGINS;

const PROGRAM: &str = "podwire-cni";

/// The path where the DaemonSet of `deploy/kubernetes` installs the command-line tool.
pub const TOOL: &str = "/opt/podwire/bin/podwire";

const HELP: &str = "\
podwire-cni: all CNI plugins in one program. The name under which it is started selects the plugin.

Usage:
  podwire-cni --install DIR   install the program and a link for each plugin in DIR
  podwire-cni --list          list the plugins
  podwire-cni --version       print the version and the supported CNI versions
  podwire-cni --help          print this help

Examples:
  podwire-cni --install /opt/cni/bin
  echo '{\"cniVersion\":\"1.1.0\",\"name\":\"lo\",\"type\":\"loopback\"}' |
    CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/c1 CNI_IFNAME=lo \\
    CNI_PATH=/opt/cni/bin /opt/cni/bin/loopback
";

/// Runs the command line, without the program name.
pub fn command_line(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let args: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let outcome = match args[..] {
        ["--install", directory] => install(Path::new(directory)),
        ["--install"] => Err(format!("podwire-cni --install: the directory is missing\n\n{HELP}")),
        ["--list"] => Ok(list()),
        ["--version" | "-V"] => Ok(version()),
        [] | ["--help" | "-h"] => Ok(HELP.to_owned()),
        _ => Err(format!("unknown arguments: {}\n\n{HELP}", args.join(" "))),
    };
    let (text, code) = match outcome {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(text) => {
            // If standard error is closed, the exit status still shows the failure.
            let _ = write!(io::stderr(), "error: {text}");
            return ExitCode::FAILURE;
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Answers a user who starts the plugin `podwire` with arguments for the command-line tool.
pub fn refuse_tool_args(program: Option<OsString>) -> ExitCode {
    let program = program.unwrap_or_default();
    let text = format!(
        "error: {} is the CNI plugin \"podwire\", not the command-line tool of this name\n\
         hint: start the command-line tool; on Kubernetes nodes it is {TOOL}\n",
        Path::new(&program).display()
    );
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::from(2)
}

fn list() -> String {
    PLUGINS.iter().fold(String::new(), |mut text, plugin| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:12} {}", plugin.name, plugin.about);
        text
    })
}

fn version() -> String {
    let versions: Vec<&str> = cni::Version::ALL.iter().map(|version| version.as_str()).collect();
    format!("podwire-cni {}\nCNI {}\n", env!("CARGO_PKG_VERSION"), versions.join(", "))
}

/// Copies the program into the directory and creates a hard link for each plugin. Each name is
/// replaced by rename, so that a runtime finds either the old or the new plugin.
fn install(directory: &Path) -> Result<String, String> {
    let failed = |doing: &str, path: &Path, cause: io::Error| {
        format!("{doing} {}: {cause}\n", path.display())
    };
    let program = copy_to(directory, PROGRAM)?;
    for plugin in PLUGINS {
        let (fresh, name) = (temporary(directory, plugin.name), directory.join(plugin.name));
        link(&program, &fresh, &name).map_err(|cause| failed("install", &name, cause))?;
    }
    let (count, shown) = (PLUGINS.len(), directory.display());
    Ok(format!("installed {PROGRAM} and {count} plugins in {shown}\n"))
}

/// Creates the directory, but not its parents: if the parent is missing, the path is probably
/// misspelled.
pub fn make_directory(directory: &Path) -> Result<(), String> {
    let failed =
        |cause: &dyn std::fmt::Display| format!("create {}: {cause}\n", directory.display());
    match std::fs::create_dir(directory) {
        Err(_) if directory.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = directory.parent().unwrap_or(directory).display();
            Err(failed(&format_args!("its parent {parent} does not exist, create it first")))
        }
        created => created.map_err(|cause| failed(&cause)),
    }
}

/// Copies the running program into the directory under this name, atomically.
pub fn copy_to(directory: &Path, name: &str) -> Result<PathBuf, String> {
    let failed = |doing: &str, path: &Path, cause: io::Error| {
        format!("{doing} {}: {cause}\n", path.display())
    };
    make_directory(directory)?;
    let (program, fresh) = (directory.join(name), temporary(directory, name));
    copy_program(&fresh).map_err(|cause| failed("write", &fresh, cause))?;
    rename(&fresh, &program).map_err(|cause| failed("install", &program, cause))?;
    Ok(program)
}

fn temporary(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!(".{name}.{}", std::process::id()))
}

fn copy_program(fresh: &Path) -> io::Result<()> {
    let mut from = std::fs::File::open("/proc/self/exe")?;
    let mut to = std::fs::File::create(fresh)?;
    io::copy(&mut from, &mut to)?;
    to.set_permissions(std::fs::Permissions::from_mode(0o755))?;
    to.sync_all()
}

fn link(program: &Path, fresh: &Path, name: &Path) -> io::Result<()> {
    match std::fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // On a file system without hard links, symbolic links work as well.
    std::fs::hard_link(program, fresh).or_else(|_| std::os::unix::fs::symlink(PROGRAM, fresh))?;
    rename(fresh, name)
}

fn rename(fresh: &Path, name: &Path) -> io::Result<()> {
    std::fs::rename(fresh, name)?;
    // rename() of two links to the same file does nothing and leaves both.
    match std::fs::remove_file(fresh) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
