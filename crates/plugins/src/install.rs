// SPDX-License-Identifier: Apache-2.0
//! What `podwire-cni` does under its own name: put itself into a plugin directory under every
//! plugin's name, list the plugins, tell its version.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::registry::PLUGINS;

const PROGRAM: &str = "podwire-cni";

/// Where the DaemonSet of `deploy/kubernetes` installs the command-line tool.
pub const TOOL: &str = "/opt/podwire/bin/podwire";

const HELP: &str = "\
podwire-cni: CNI plugins in one program. It is the plugin whose name it is started under.

Usage:
  podwire-cni --install DIR   put the program and a link for every plugin into DIR
  podwire-cni --list          the plugins it holds
  podwire-cni --version       its version and the CNI versions it speaks
  podwire-cni --help          this text

Examples:
  podwire-cni --install /opt/cni/bin
  echo '{\"cniVersion\":\"1.1.0\",\"name\":\"lo\",\"type\":\"loopback\"}' |
    CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/c1 CNI_IFNAME=lo \\
    CNI_PATH=/opt/cni/bin /opt/cni/bin/loopback
";

/// Runs the command line without the program's own name.
pub fn command_line(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.collect();
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let outcome = match words[..] {
        ["--install", directory] => install(Path::new(directory)),
        ["--install"] => Err(format!("podwire-cni --install: the directory is missing\n\n{HELP}")),
        ["--list"] => Ok(list()),
        ["--version" | "-V"] => Ok(version()),
        [] | ["--help" | "-h"] => Ok(HELP.to_owned()),
        _ => Err(format!("podwire-cni does not know {:?}\n\n{HELP}", words.join(" "))),
    };
    let (text, code) = match outcome {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(text) => {
            // With standard error closed the exit status still tells.
            let _ = write!(io::stderr(), "error: {text}");
            return ExitCode::FAILURE;
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The answer to a person who starts the plugin `podwire` with the words of the command-line tool.
pub fn refuse_tool_words(program: Option<OsString>) -> ExitCode {
    let program = program.unwrap_or_default();
    let text = format!(
        "error: {} is the CNI plugin \"podwire\", not the command-line tool of this name\n\
         hint: start the tool; on nodes of Kubernetes it is {TOOL}\n",
        Path::new(&program).display()
    );
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::from(2)
}

fn list() -> String {
    PLUGINS.iter().fold(String::new(), |mut text, plugin| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:12} {}", plugin.name, plugin.about);
        text
    })
}

fn version() -> String {
    let versions: Vec<&str> = cni::Version::ALL.iter().map(|version| version.as_str()).collect();
    format!("podwire-cni {}\nCNI {}\n", env!("CARGO_PKG_VERSION"), versions.join(", "))
}

/// Copies the program into the directory and makes a hard link to it for every plugin. Each name
/// appears by rename, so a runtime finds the old plugin or the new one, never a part.
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

/// Creates the directory itself, but not its parents: a path whose parent is missing is more likely misspelled.
pub fn make_directory(directory: &Path) -> Result<(), String> {
    let failed =
        |cause: &dyn std::fmt::Display| format!("create {}: {cause}\n", directory.display());
    match std::fs::create_dir(directory) {
        Err(_) if directory.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = directory.parent().unwrap_or(directory).display();
            Err(failed(&format_args!("its parent {parent} does not exist, create that first")))
        }
        created => created.map_err(|cause| failed(&cause)),
    }
}

/// Copies the running program into the directory under this name, by rename.
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
    // A file system without hard links gets symbolic ones, which work as well.
    std::fs::hard_link(program, fresh).or_else(|_| std::os::unix::fs::symlink(PROGRAM, fresh))?;
    rename(fresh, name)
}

fn rename(fresh: &Path, name: &Path) -> io::Result<()> {
    std::fs::rename(fresh, name)?;
    // rename() of two links to one file does nothing and leaves both.
    match std::fs::remove_file(fresh) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
