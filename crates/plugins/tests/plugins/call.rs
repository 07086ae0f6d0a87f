// SPDX-License-Identifier: Apache-2.0
//! One invocation of a plugin: environment, standard input, and what came back.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use kernel::Netns;
use serde_json::{Value, json};

/// What to run, and how. Made by `World::call`.
#[derive(Clone, Debug)]
pub struct Call {
    pub plugin: PathBuf,
    /// The namespace to start it in.
    pub host: PathBuf,
    pub container_id: String,
    pub netns: String,
    pub ifname: String,
    pub args: String,
    pub path: String,
    /// Start delegates as processes, even those that could be called as functions.
    pub always_exec: bool,
    /// In place of PATH.
    pub search: Option<String>,
    /// More variables of the environment.
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

    /// The same with another PATH to find tools in.
    pub fn search(&self, path: &str) -> Call {
        Call { search: Some(path.to_owned()), ..self.clone() }
    }

    /// The same with one more variable of the environment.
    pub fn env(&self, name: &'static str, value: &str) -> Call {
        let mut call = self.clone();
        call.env.push((name, value.to_owned()));
        call
    }

    pub fn always_exec(&self) -> Call {
        Call { always_exec: true, ..self.clone() }
    }

    /// The same with other directories to find delegates in.
    pub fn path(&self, directories: &[&Path]) -> Call {
        let shown: Vec<String> = directories.iter().map(|dir| dir.display().to_string()).collect();
        Call { path: shown.join(":"), ..self.clone() }
    }

    pub fn add(&self) -> Answer {
        self.run("ADD")
    }

    /// CHECK with the result of the ADD, as a runtime does it.
    pub fn check(&self, result: &Value) -> Answer {
        self.with_prev_result(result).run("CHECK")
    }

    /// DEL with the result of the ADD, as a runtime does it.
    pub fn del(&self, result: &Value) -> Answer {
        self.with_prev_result(result).run("DEL")
    }

    pub fn status(&self) -> Answer {
        self.run("STATUS")
    }

    /// GC that keeps these attachments.
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

    /// Any verb, with the configuration as it is.
    pub fn run(&self, verb: &str) -> Answer {
        self.run_raw(verb, self.config.to_string().as_bytes())
    }

    /// Any verb, with any standard input.
    pub fn run_raw(&self, verb: &str, stdin: &[u8]) -> Answer {
        let child = self.start_under(&[], verb, stdin);
        Answer::of(&child.wait_with_output().expect("the plugin's output can be read"))
    }

    /// Under another program, such as `strace`, and not waited for.
    pub fn start_under(&self, wrapper: &[&str], verb: &str, stdin: &[u8]) -> Child {
        let mut child = self.start(wrapper, verb);
        let mut pipe = child.stdin.take().expect("stdin is piped");
        let stdin = stdin.to_vec();
        // A plugin that does not read its input must not block the test, nor fail it.
        thread::spawn(move || drop(pipe.write_all(&stdin)));
        child
    }

    /// The same, and its standard input is for the caller to write.
    pub fn start(&self, wrapper: &[&str], verb: &str) -> Child {
        let mut words = wrapper.iter().map(OsStr::new).chain([self.plugin.as_os_str()]);
        let mut command = command(words.next().expect("there is the plugin at least"));
        command.args(words);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        if let Some(path) = &self.search {
            command.env("PATH", path);
        }
        command.env("CNI_COMMAND", verb).env("CNI_PATH", &self.path);
        let about = [
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_NETNS", &self.netns),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_ARGS", &self.args),
        ];
        command.envs(about.into_iter().filter(|(_, value)| !value.is_empty()));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if self.always_exec {
            command.env("PODWIRE_ALWAYS_EXEC", "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Not by nsenter: where the machine is emulated, to start it takes a tenth of a second.
        let host = Netns::open(&self.host).expect("the host's namespace can be opened");
        let child = host.enter(|| command.spawn()).expect("the host's namespace can be entered");
        child.expect("the plugin can be started")
    }
}

#[expect(clippy::disallowed_methods, reason = "plugins are started as a runtime would")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// What a plugin answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub success: bool,
    /// Each JSON value on standard output; there should be one at most.
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

    /// The result of an ADD; panics where it failed.
    #[track_caller]
    pub fn result(&self) -> Value {
        self.ok();
        self.values.first().cloned().unwrap_or_default()
    }

    #[track_caller]
    pub fn ok(&self) {
        assert!(self.success, "failed: {}{}", self.stdout, self.stderr);
    }

    /// Panics unless it failed in the specification's way, with this code and with these words in its
    /// message or its details.
    #[track_caller]
    pub fn fails_with(&self, code: u32, words: &str) {
        assert!(!self.success, "succeeded, but should have failed with {code}: {}", self.stdout);
        let [error] = self.values.as_slice() else {
            panic!("not one JSON value on stdout: {:?} {:?}", self.stdout, self.stderr);
        };
        let told = error.to_string();
        assert_eq!(error["code"], code, "{told}");
        assert!(error["cniVersion"].is_string(), "{told}");
        let text = |key: &str| error[key].as_str().is_some_and(|text| text.contains(words));
        assert!(error["msg"].is_string() && (text("msg") || text("details")), "{words:?}: {told}");
    }
}
