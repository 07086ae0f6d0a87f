// SPDX-License-Identifier: Apache-2.0
//! One invocation of a plugin: environment, standard input and answer.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use kernel::Netns;
use serde_json::{Value, json};

/// A plugin invocation, built by `World::call`.
#[derive(Clone, Debug)]
pub struct Call {
    pub plugin: PathBuf,
    /// Network namespace to start the plugin in.
    pub host: PathBuf,
    pub container_id: String,
    pub netns: String,
    pub ifname: String,
    pub args: String,
    pub path: String,
    /// Starts delegates as processes even if podwire could call them in-process.
    pub always_exec: bool,
    /// Replaces PATH if set.
    pub search: Option<String>,
    /// Additional environment variables.
    pub env: Vec<(&'static str, String)>,
    pub config: Value,
}

impl Call {
    pub fn config(&self, config: &Value) -> Call {
        Call { config: config.clone(), ..self.clone() }
    }

    pub fn args(&self, args: &str) -> Call {
        Call { args: args.to_owned(), ..self.clone() }
    }

    pub fn netns(&self, netns: &str) -> Call {
        Call { netns: netns.to_owned(), ..self.clone() }
    }

    pub fn ifname(&self, ifname: &str) -> Call {
        Call { ifname: ifname.to_owned(), ..self.clone() }
    }

    pub fn container(&self, id: &str) -> Call {
        Call { container_id: id.to_owned(), ..self.clone() }
    }

    /// Sets the PATH in which the plugin searches for tools.
    pub fn search(&self, path: &str) -> Call {
        Call { search: Some(path.to_owned()), ..self.clone() }
    }

    /// Adds an environment variable.
    pub fn env(&self, name: &'static str, value: &str) -> Call {
        let mut call = self.clone();
        call.env.push((name, value.to_owned()));
        call
    }

    pub fn always_exec(&self) -> Call {
        Call { always_exec: true, ..self.clone() }
    }

    /// Sets CNI_PATH, the directories searched for delegates.
    pub fn path(&self, directories: &[&Path]) -> Call {
        let shown: Vec<String> = directories.iter().map(|dir| dir.display().to_string()).collect();
        Call { path: shown.join(":"), ..self.clone() }
    }

    pub fn add(&self) -> Answer {
        self.run("ADD")
    }

    /// Runs CHECK with the result of the ADD, like a runtime.
    pub fn check(&self, result: &Value) -> Answer {
        self.with_prev_result(result).run("CHECK")
    }

    /// Runs DEL with the result of the ADD, like a runtime.
    pub fn del(&self, result: &Value) -> Answer {
        self.with_prev_result(result).run("DEL")
    }

    pub fn status(&self) -> Answer {
        self.run("STATUS")
    }

    /// Runs GC with `valid` as the attachments to keep.
    pub fn gc(&self, valid: &[(&str, &str)]) -> Answer {
        let valid: Vec<Value> =
            valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
        let mut config = self.config.clone();
        config["cni.dev/valid-attachments"] = json!(valid);
        self.config(&config).run("GC")
    }

    pub fn with_prev_result(&self, result: &Value) -> Call {
        let mut config = self.config.clone();
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        self.config(&config)
    }

    /// Runs a verb with this call's configuration as standard input.
    pub fn run(&self, verb: &str) -> Answer {
        self.run_raw(verb, self.config.to_string().as_bytes())
    }

    /// Runs a verb with arbitrary standard input.
    pub fn run_raw(&self, verb: &str, stdin: &[u8]) -> Answer {
        let child = self.start_under(&[], verb, stdin);
        Answer::of(&child.wait_with_output().expect("read the plugin's output"))
    }

    /// Starts the plugin under `wrapper`, for example `strace`, without waiting for it.
    pub fn start_under(&self, wrapper: &[&str], verb: &str, stdin: &[u8]) -> Child {
        let mut child = self.start(wrapper, verb);
        let mut pipe = child.stdin.take().expect("stdin is piped");
        let stdin = stdin.to_vec();
        // A plugin that does not read its input must neither block nor fail the test.
        thread::spawn(move || drop(pipe.write_all(&stdin)));
        child
    }

    /// Starts the plugin under `wrapper`; the caller writes its standard input.
    pub fn start(&self, wrapper: &[&str], verb: &str) -> Child {
        let mut words = wrapper.iter().map(OsStr::new).chain([self.plugin.as_os_str()]);
        let mut command = command(words.next().expect("the command contains at least the plugin"));
        command.args(words);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        if let Some(path) = &self.search {
            command.env("PATH", path);
        }
        command.env("CNI_COMMAND", verb).env("CNI_PATH", &self.path);
        let cni_vars = [
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_NETNS", &self.netns),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_ARGS", &self.args),
        ];
        command.envs(cni_vars.into_iter().filter(|(_, value)| !value.is_empty()));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if self.always_exec {
            command.env("PODWIRE_ALWAYS_EXEC", "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Enter the namespace directly: starting nsenter takes 0.1 s on an emulated machine.
        let host = Netns::open(&self.host).expect("open the host's namespace");
        let child = host.enter(|| command.spawn()).expect("enter the host's namespace");
        child.expect("start the plugin")
    }
}

#[expect(clippy::disallowed_methods, reason = "tests start plugins like a container runtime")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// Exit status and output of a plugin.
#[derive(Clone, Debug)]
pub struct Answer {
    pub success: bool,
    /// JSON values on standard output; at most one is expected.
    pub values: Vec<Value>,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    pub fn of(output: &Output) -> Answer {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = serde_json::Deserializer::from_str(&stdout).into_iter();
        Answer {
            success: output.status.success(),
            values: values.map_while(Result::ok).collect(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            stdout,
        }
    }

    /// Returns the result of an ADD. Panics if the ADD failed.
    #[track_caller]
    pub fn result(&self) -> Value {
        self.ok();
        self.values.first().cloned().unwrap_or_default()
    }

    #[track_caller]
    pub fn ok(&self) {
        assert!(self.success, "failed: {}{}", self.stdout, self.stderr);
    }

    /// Panics unless the plugin failed as the CNI specification requires: with one error object
    /// that has this code, and `words` in its message or details.
    #[track_caller]
    pub fn fails_with(&self, code: u32, words: &str) {
        assert!(!self.success, "succeeded, expected error {code}: {}", self.stdout);
        let [error] = self.values.as_slice() else {
            panic!("expected one JSON value on stdout: {:?} {:?}", self.stdout, self.stderr);
        };
        let printed = error.to_string();
        assert_eq!(error["code"], code, "{printed}");
        assert!(error["cniVersion"].is_string(), "{printed}");
        let text = |key: &str| error[key].as_str().is_some_and(|text| text.contains(words));
        assert!(
            error["msg"].is_string() && (text("msg") || text("details")),
            "{words:?}: {printed}"
        );
    }
}
