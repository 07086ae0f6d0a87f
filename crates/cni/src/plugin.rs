// SPDX-License-Identifier: Apache-2.0
//! The plugin side: turns environment and standard input into output and exit status.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use text::shorten_value;

use crate::attachment_lock;
use crate::delegate::DEPTH_VARIABLE;
use crate::error::{Code, Error};
use crate::request::{Command, Delegation, Request};
use crate::result::CniResult;
use crate::validate;
use crate::version::Version;

/// Maximum size of a configuration. A GC with 100,000 attachments is smaller.
const INPUT_LIMIT: u64 = 16 << 20;

/// A plugin: its name and one function for each command.
#[derive(Debug)]
pub struct Plugin {
    /// The `type` in configurations.
    pub name: &'static str,
    /// Description of one line.
    pub about: &'static str,
    /// Supported versions of the specification.
    pub versions: &'static [Version],
    /// Creates the attachment. Leaves nothing behind on failure.
    pub add: fn(&Request) -> Result<CniResult, Error>,
    /// Removes the attachment. Succeeds if it is gone already.
    pub del: fn(&Request) -> Result<(), Error>,
    /// Returns an error if the attachment is not as ADD created it.
    pub check: fn(&Request) -> Result<(), Error>,
    /// Returns an error if the plugin cannot handle an ADD now.
    pub status: fn(&Request) -> Result<(), Error>,
    /// Removes every attachment that is not in the list of valid ones.
    pub gc: fn(&Request) -> Result<(), Error>,
}

/// The program that plugins run in: its built-in plugins, and how it finds others.
#[derive(Debug)]
pub struct Host {
    /// Built-in plugins.
    pub plugins: &'static [&'static Plugin],
    /// Device and inode of this program's file. A plugin with the same file is called as a function.
    pub program: Option<(u64, u64)>,
    /// Start a process even for a built-in plugin.
    pub always_exec: bool,
    /// Use a built-in plugin if CNI_PATH has no file of its name.
    pub builtin_fallback: bool,
    /// Directory of the locks that serialize ADD and DEL of one attachment. With `None` only the runtime orders
    /// them.
    pub locks: Option<PathBuf>,
}

impl Host {
    /// Describes this program with the given built-in plugins.
    pub fn of_this_program(plugins: &'static [&'static Plugin]) -> Host {
        let program = identity(&started_as()).or_else(|| identity(Path::new("/proc/self/exe")));
        Host { plugins, program, always_exec: false, builtin_fallback: false, locks: None }
    }

    /// Returns a built-in plugin by name.
    pub fn plugin(&self, name: &str) -> Option<&'static Plugin> {
        self.plugins.iter().copied().find(|plugin| plugin.name == name)
    }
}

/// Returns the path that this program was started with, from the auxiliary vector. Reading `/proc/self/exe` takes
/// longer than everything else that happens before the configuration is read.
fn started_as() -> PathBuf {
    PathBuf::from(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()))
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(file).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// The environment variables of the specification. A variable that is not set is empty.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "named after the variables")]
pub struct Env {
    pub command: String,
    pub container_id: String,
    pub netns: String,
    pub ifname: String,
    pub args: String,
    pub path: String,
    pub netns_override: String,
    /// Number of delegations that led to this call, from PODWIRE_DELEGATION_DEPTH.
    pub depth: u32,
}

impl Env {
    /// Reads the variables with a function such as `|name| std::env::var(name).ok()`.
    pub fn read(var: impl Fn(&str) -> Option<String>) -> Env {
        let read = |name| var(name).unwrap_or_default();
        Env {
            command: read("CNI_COMMAND"),
            container_id: read("CNI_CONTAINERID"),
            netns: read("CNI_NETNS"),
            ifname: read("CNI_IFNAME"),
            args: read("CNI_ARGS"),
            path: read("CNI_PATH"),
            netns_override: read("CNI_NETNS_OVERRIDE"),
            depth: read(DEPTH_VARIABLE).parse().unwrap_or_default(),
        }
    }
}

/// Output and exit status of the process.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Whether the exit status is 0.
    pub success: bool,
}

impl Reply {
    fn success(stdout: Vec<u8>) -> Reply {
        Reply { stdout, stderr: Vec::new(), success: true }
    }

    /// Puts an error object on standard output.
    pub fn failure(error: &Error, version: Version) -> Reply {
        let stdout = gojson::to_pretty(&error.to_json(version));
        Reply { stdout, stderr: Vec::new(), success: false }
    }
}

/// Handles one invocation of a plugin. Reads standard input only for commands that have a configuration.
///
/// The caller prints the reply. If printing fails, the container stays attached although the runtime does not know it.
/// Use [`answer_to`] to detach it in that case.
pub fn answer(plugin: &Plugin, env: &Env, stdin: &mut dyn Read, host: &Host) -> Reply {
    let mut printed = Vec::new();
    let mut reply = answer_to(plugin, env, stdin, &mut printed, host);
    printed.append(&mut reply.stdout);
    Reply { stdout: printed, ..reply }
}

/// Handles one invocation of a plugin and writes the result of an ADD to `stdout`. If the write fails, the attachment
/// is removed. The reply contains the output that is still to be printed.
pub fn answer_to(
    plugin: &Plugin,
    env: &Env,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    host: &Host,
) -> Reply {
    match env.command.as_str() {
        "" => introduce(plugin),
        "VERSION" => Reply::success(version_info(plugin)),
        _ => {
            // The version is not known before the configuration is read.
            let mut version = Version::LATEST;
            serve(plugin, env, stdin, stdout, host, &mut version)
                .unwrap_or_else(|error| Reply::failure(&error, version))
        }
    }
}

fn introduce(plugin: &Plugin) -> Reply {
    let versions: Vec<&str> = plugin.versions.iter().map(|version| version.as_str()).collect();
    let text = format!(
        "CNI {} plugin: {}\nCNI protocol versions supported: {}\n",
        plugin.name,
        plugin.about,
        versions.join(", ")
    );
    Reply { stdout: Vec::new(), stderr: text.into_bytes(), success: true }
}

fn version_info(plugin: &Plugin) -> Vec<u8> {
    let versions: Vec<&str> = plugin.versions.iter().map(|version| version.as_str()).collect();
    let info = json!({"cniVersion": Version::LATEST.as_str(), "supportedVersions": versions});
    format!("{info}\n").into_bytes()
}

fn serve(
    plugin: &Plugin,
    env: &Env,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    host: &Host,
    version: &mut Version,
) -> Result<Reply, Error> {
    let command = check_env(env)?;
    let config = read_config(stdin)?;
    let mut deliver = |result: &Value| {
        let written = stdout.write_all(&gojson::to_pretty(result)).and_then(|()| stdout.flush());
        written.map_err(|cause| {
            Error::because(Code::IO, "write the result to standard output", &cause)
        })
    };
    perform(plugin, command, env, config, host, &mut deliver, version)?;
    Ok(Reply::success(Vec::new()))
}

/// A configuration and the text it was parsed from. The text is empty if a runtime in this process built the object.
pub(crate) struct Config {
    pub object: Map<String, Value>,
    pub text: Vec<u8>,
}

/// Passes the result of an ADD to the caller.
pub(crate) type Deliver<'a> = &'a mut dyn FnMut(&Value) -> Result<(), Error>;

/// Runs one command, for a plugin process and for a runtime in the same program. Returns the result of an ADD in the
/// configuration's version. `version` is set to that version as soon as it is known, so that an error can use it.
pub(crate) fn perform(
    plugin: &Plugin,
    command: Command,
    env: &Env,
    config: Config,
    host: &Host,
    deliver: Deliver,
    version: &mut Version,
) -> Result<Option<Value>, Error> {
    let request = parse_request(plugin, command, env, config, host, version)?;
    if !is_true(&env.netns_override) && matches!(command, Command::Add | Command::Del) {
        reject_own_netns(&request.netns)?;
    }
    let _lock = attachment_lock::acquire(host, plugin, &request)?;
    call(plugin, &request, deliver).map_err(Error::bounded)
}

fn call(plugin: &Plugin, request: &Request, deliver: Deliver) -> Result<Option<Value>, Error> {
    match request.command {
        Command::Add => {
            let result = (plugin.add)(request)?;
            let printed = result.to_json(request.version);
            let delivered = printed.and_then(|printed| deliver(&printed).map(|()| printed));
            // The runtime does not know an attachment whose result it never got.
            delivered.map(Some).map_err(|error| roll_back(plugin, request, result, error))
        }
        Command::Del => (plugin.del)(request).map(|()| None),
        Command::Check => (plugin.check)(request).map(|()| None),
        Command::Gc => (plugin.gc)(request).map(|()| None),
        Command::Status => (plugin.status)(request).map(|()| None),
    }
}

/// Removes an attachment whose result could not be delivered: a failed ADD leaves nothing. The error
/// tells if the removal failed too.
fn roll_back(plugin: &Plugin, request: &Request, result: CniResult, error: Error) -> Error {
    let mut request = Request { command: Command::Del, ..request.clone() };
    request.delegation.prev_result = Some(result.into());
    let Err(undoing) = (plugin.del)(&request) else { return error };
    let outcome = format!("removing the attachment again failed as well: {undoing}");
    let details = match error.details.as_str() {
        "" => outcome,
        before => format!("{before}; {outcome}"),
    };
    error.with_details(details)
}

/// Checks that all variables of the command are set and valid, and returns the command.
pub(crate) fn check_env(env: &Env) -> Result<Command, Error> {
    let command = Command::parse(&env.command).ok_or_else(|| {
        Error::new(
            Code::BAD_ENVIRONMENT,
            format!("unknown CNI_COMMAND: {}", shorten_value(&env.command)),
        )
        .with_details("expected ADD, DEL, CHECK, GC, STATUS, VERSION")
    })?;
    let about_container = command.is_about_container();
    let needs_netns = matches!(command, Command::Add | Command::Check);
    let needed = [
        ("CNI_CONTAINERID", &env.container_id, about_container),
        ("CNI_NETNS", &env.netns, needs_netns),
        ("CNI_IFNAME", &env.ifname, about_container),
        ("CNI_PATH", &env.path, true),
    ];
    if about_container && !env.container_id.is_empty() {
        validate::container_id(&env.container_id)?;
    }
    if about_container && !env.ifname.is_empty() {
        validate::interface_name(&env.ifname)?;
    }
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(_, value, is_needed)| *is_needed && value.is_empty())
        .map(|(name, _, _)| *name)
        .collect();
    if !missing.is_empty() {
        let msg = format!("required env variables [{}] missing", missing.join(","));
        return Err(Error::new(Code::BAD_ENVIRONMENT, msg));
    }
    Ok(command)
}

fn read_config(stdin: &mut dyn Read) -> Result<Config, Error> {
    let mut text = Vec::with_capacity(4096);
    stdin
        .take(INPUT_LIMIT + 1)
        .read_to_end(&mut text)
        .map_err(|cause| Error::because(Code::IO, "error reading from stdin", &cause))?;
    if text.len() as u64 > INPUT_LIMIT {
        let msg = format!("configuration on standard input is larger than {INPUT_LIMIT} bytes");
        return Err(Error::new(Code::DECODE, msg));
    }
    let object = serde_json::from_slice(&text).map_err(|cause| {
        Error::because(Code::DECODE, "error unmarshall network config: stdin", &cause)
    })?;
    Ok(Config { object, text })
}

fn parse_request<'host>(
    plugin: &Plugin,
    command: Command,
    env: &Env,
    config: Config,
    host: &'host Host,
    version: &mut Version,
) -> Result<Request<'host>, Error> {
    let text = |key: &str| match gojson::get(&config.object, key) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(Error::new(
            Code::DECODE,
            format!(
                "error unmarshall network config: key {key:?} is {}, expected a text",
                shorten_value(other)
            ),
        )),
    };
    let stated = text("cniVersion")?;
    let supported = Version::parse(&stated).filter(|version| plugin.versions.contains(version));
    if let Some(supported) = supported {
        *version = supported;
    }
    let network = text("name")?;
    validate::network_name(&network)?;
    let supported = supported.ok_or_else(|| incompatible(plugin, &stated))?;
    if supported < command.since() {
        let msg = format!("config version does not allow {command}");
        return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg));
    }
    Ok(Request {
        command,
        container_id: env.container_id.clone(),
        netns: env.netns.clone(),
        ifname: env.ifname.clone(),
        raw_args: env.args.clone(),
        path: env.path.clone(),
        version: supported,
        network,
        config: config.object.into(),
        config_text: config.text.into(),
        delegation: Delegation { depth: env.depth, ..Delegation::default() },
        host,
    })
}

fn incompatible(plugin: &Plugin, stated: &str) -> Error {
    let versions: Vec<&str> = plugin.versions.iter().map(|version| version.as_str()).collect();
    let details = format!("config is {:?}, plugin supports {versions:?}", shorten_value(stated));
    Error::new(Code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with_details(details)
}

/// Rejects the plugin's own namespace: the plugin would change the host's network.
fn reject_own_netns(netns: &str) -> Result<(), Error> {
    let container = identity(Path::new(netns));
    if container.is_none() || container != identity(Path::new("/proc/thread-self/ns/net")) {
        return Ok(());
    }
    let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
    Err(Error::new(Code::INVALID_NETNS, msg)
        .with_details(format!("CNI_NETNS is {netns:?}; CNI_NETNS_OVERRIDE=1 allows it")))
}

fn is_true(text: &str) -> bool {
    text == "1" || text.eq_ignore_ascii_case("true")
}
