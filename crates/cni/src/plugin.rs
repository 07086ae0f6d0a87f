// SPDX-License-Identifier: Apache-2.0
//! The plugin side: from environment and standard input to what is printed and the exit status.

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

/// Maximum size of a configuration. A GC of 100 000 attachments is smaller.
const INPUT_LIMIT: u64 = 16 << 20;

/// A plugin: its name and one function for each verb.
#[derive(Debug)]
pub struct Plugin {
    /// The name that configurations call it by.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The versions that it speaks.
    pub versions: &'static [Version],
    /// Makes the attachment, or fails and leaves nothing.
    pub add: fn(&Request) -> Result<CniResult, Error>,
    /// Removes the attachment; what is gone is fine.
    pub del: fn(&Request) -> Result<(), Error>,
    /// Says what is wrong with the attachment.
    pub check: fn(&Request) -> Result<(), Error>,
    /// Says why an ADD could not be served now.
    pub status: fn(&Request) -> Result<(), Error>,
    /// Removes every attachment that is not in the list of valid ones.
    pub gc: fn(&Request) -> Result<(), Error>,
}

/// The program that plugins run in: what it holds, and how it finds others.
#[derive(Debug)]
pub struct Host {
    /// The plugins that this program holds.
    pub plugins: &'static [&'static Plugin],
    /// Device and inode of this program's file; a plugin found there is called as a function.
    pub program: Option<(u64, u64)>,
    /// Start a process even for plugins that this program holds.
    pub always_exec: bool,
    /// Use a plugin that this program holds when none is found in CNI_PATH.
    pub builtin_fallback: bool,
    /// Directory of the locks that let ADD and DEL of one attachment run one after the other; `None`
    /// leaves their order to the runtime.
    pub locks: Option<PathBuf>,
}

impl Host {
    /// This very program, with these plugins.
    pub fn of_this_program(plugins: &'static [&'static Plugin]) -> Host {
        let program = identity(&started_as()).or_else(|| identity(Path::new("/proc/self/exe")));
        Host { plugins, program, always_exec: false, builtin_fallback: false, locks: None }
    }

    /// One of its plugins.
    pub fn plugin(&self, name: &str) -> Option<&'static Plugin> {
        self.plugins.iter().copied().find(|plugin| plugin.name == name)
    }
}

/// The path that this program was started by. It is asked of the kernel once; a walk through /proc
/// takes longer than all else that happens before the configuration is read.
fn started_as() -> PathBuf {
    PathBuf::from(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()))
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(file).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// The variables that the specification passes; empty where one is not set.
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
    /// [`crate::delegate::DEPTH_VARIABLE`]: how many plugins have delegated to this one.
    pub depth: u32,
}

impl Env {
    /// Reads them with a function such as `|name| std::env::var(name).ok()`.
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

/// What the process prints and returns.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// For standard output.
    pub stdout: Vec<u8>,
    /// For standard error.
    pub stderr: Vec<u8>,
    /// Whether the exit status is 0.
    pub success: bool,
}

impl Reply {
    fn success(stdout: Vec<u8>) -> Reply {
        Reply { stdout, stderr: Vec::new(), success: true }
    }

    /// An error object on standard output.
    pub fn failure(error: &Error, version: Version) -> Reply {
        let stdout = gojson::to_pretty(&error.to_json(version));
        Reply { stdout, stderr: Vec::new(), success: false }
    }
}

/// Answers one invocation of a plugin. Standard input is read only where the verb has one.
///
/// The caller prints the reply. If that fails, a container stays attached that the runtime does not
/// know of: use [`answer_to`] to have it detached.
pub fn answer(plugin: &Plugin, env: &Env, stdin: &mut dyn Read, host: &Host) -> Reply {
    let mut printed = Vec::new();
    let mut reply = answer_to(plugin, env, stdin, &mut printed, host);
    printed.append(&mut reply.stdout);
    Reply { stdout: printed, ..reply }
}

/// The same, with the result of an ADD written to `stdout`. If it cannot be written, the attachment is
/// removed again. The reply holds what remains to be printed.
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
            // Until the configuration is read, the caller's version is not known.
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

/// A configuration, and the text that it was read from, which is empty if a runtime in this process built it.
pub(crate) struct Config {
    pub object: Map<String, Value>,
    pub text: Vec<u8>,
}

/// Takes the result of an ADD to the caller.
pub(crate) type Deliver<'a> = &'a mut dyn FnMut(&Value) -> Result<(), Error>;

/// Does what is asked, for a process and for a runtime in the same program alike. The result of
/// an ADD comes in the configuration's version, and this is told also where an error comes back.
pub(crate) fn perform(
    plugin: &Plugin,
    command: Command,
    env: &Env,
    config: Config,
    host: &Host,
    deliver: Deliver,
    version: &mut Version,
) -> Result<Option<Value>, Error> {
    let request = understand(plugin, command, env, config, host, version)?;
    if !is_true(&env.netns_override) && matches!(command, Command::Add | Command::Del) {
        refuse_own_netns(&request.netns)?;
    }
    let _turn = attachment_lock::acquire(host, plugin, &request)?;
    call(plugin, &request, deliver).map_err(Error::bounded)
}

fn call(plugin: &Plugin, request: &Request, deliver: Deliver) -> Result<Option<Value>, Error> {
    match request.command {
        Command::Add => {
            let result = (plugin.add)(request)?;
            let printed = result.to_json(request.version);
            let delivered = printed.and_then(|printed| deliver(&printed).map(|()| printed));
            // The runtime does not know of what it was not told: it must not stay.
            delivered.map(Some).map_err(|error| take_back(plugin, request, result, error))
        }
        Command::Del => (plugin.del)(request).map(|()| None),
        Command::Check => (plugin.check)(request).map(|()| None),
        Command::Gc => (plugin.gc)(request).map(|()| None),
        Command::Status => (plugin.status)(request).map(|()| None),
    }
}

/// Undoes an ADD whose result nobody has got, as a runtime would.
fn take_back(plugin: &Plugin, request: &Request, result: CniResult, error: Error) -> Error {
    let mut request = Request { command: Command::Del, ..request.clone() };
    request.delegation.prev_result = Some(result.into());
    let outcome = match (plugin.del)(&request) {
        Ok(()) => "the attachment was removed again".to_owned(),
        Err(undoing) => format!("removing the attachment again failed as well: {undoing}"),
    };
    let details = match error.details.as_str() {
        "" => outcome,
        before => format!("{before}; {outcome}"),
    };
    error.with_details(details)
}

/// Which verb is asked for, once all that it needs is there and looks as it must.
pub(crate) fn check_env(env: &Env) -> Result<Command, Error> {
    let command = Command::parse(&env.command).ok_or_else(|| {
        Error::new(
            Code::BAD_ENVIRONMENT,
            format!("unknown CNI_COMMAND: {}", shorten_value(&env.command)),
        )
        .with_details("known are ADD, DEL, CHECK, GC, STATUS, VERSION")
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

/// Turns environment and configuration into a request, or says what is wrong with them.
fn understand<'host>(
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
    let known = Version::parse(&stated).filter(|version| plugin.versions.contains(version));
    if let Some(known) = known {
        *version = known;
    }
    let network = text("name")?;
    validate::network_name(&network)?;
    let known = known.ok_or_else(|| incompatible(plugin, &stated))?;
    if known < command.since() {
        let msg = format!("config version does not allow {command}");
        let details = format!("config is {known}, {command} exists since {}", command.since());
        return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg).with_details(details));
    }
    Ok(Request {
        command,
        container_id: env.container_id.clone(),
        netns: env.netns.clone(),
        ifname: env.ifname.clone(),
        raw_args: env.args.clone(),
        path: env.path.clone(),
        version: known,
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

/// A container in the plugin's own namespace would mean changing the host's network.
fn refuse_own_netns(netns: &str) -> Result<(), Error> {
    let theirs = identity(Path::new(netns));
    if theirs.is_none() || theirs != identity(Path::new("/proc/thread-self/ns/net")) {
        return Ok(());
    }
    let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
    Err(Error::new(Code::INVALID_NETNS, msg)
        .with_details(format!("CNI_NETNS is {netns:?}; CNI_NETNS_OVERRIDE=1 allows it")))
}

fn is_true(text: &str) -> bool {
    text == "1" || text.eq_ignore_ascii_case("true")
}
