// SPDX-License-Identifier: Apache-2.0
//! Commands for the emulated machine, and the script that runs them.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::text;

/// A command with its directory and environment.
#[derive(Debug)]
pub(crate) struct Job {
    dir: PathBuf,
    env: Vec<(&'static str, String)>,
    words: Vec<String>,
}

impl Job {
    /// Runs with an empty environment, apart from [`Job::env`].
    pub(crate) fn new(dir: impl Into<PathBuf>, words: Vec<String>) -> Job {
        Job { dir: dir.into(), env: Vec::new(), words }
    }

    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Job {
        self.env.push((name, value.to_owned()));
        self
    }

    pub(crate) fn env_path(self, name: &'static str, path: &Path) -> Result<Job> {
        text(path).map(|path| self.env(name, path))
    }
}

/// A script that runs all jobs and copies the directory `files` to `back`. Its status is that of the
/// last job that failed.
pub(crate) fn script(jobs: &[Job], files: &str, back: &str) -> Result<String> {
    let mut script = String::from("status=0\n");
    for job in jobs {
        let dir = quoted(text(&job.dir)?);
        let words: Vec<String> = job.words.iter().map(|word| quoted(word)).collect();
        let env: Vec<String> =
            job.env.iter().map(|(name, value)| quoted(&format!("{name}={value}"))).collect();
        let (env, words) = (env.join(" "), words.join(" "));
        script.push_str(&format!("(cd {dir} && exec env {env} {words}) || status=$?\n"));
    }
    let (files, back) = (quoted(files), quoted(back));
    script.push_str(&format!("test ! -d {files} || cp -r {files}/. {back}\nexit $status\n"));
    Ok(script)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd;

    #[test]
    fn words_reach_the_command_as_they_are() {
        let job = |dir: &str, words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned()).collect();
            Job::new(dir, words).env("x", "y z")
        };
        let jobs = [
            job("/", &["printf", "%s|", "a b", "it's", "$x", ""]),
            job("/usr", &["sh", "-c", "pwd; echo $x; exit 3"]),
            job("/", &["true"]),
        ];
        let script = script(&jobs, "/no/such/directory", "/").unwrap();
        let output = cmd::output(cmd::command("sh").args(["-c", &script])).unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|it's|$x||/usr\ny z\n");
        assert_eq!(output.status.code(), Some(3));
    }
}
