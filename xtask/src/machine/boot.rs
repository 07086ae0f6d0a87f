// SPDX-License-Identifier: Apache-2.0
//! Starting the machine and reading what it leaves.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use super::{Job, Kernel, initrd, job, text};
use crate::cmd;

/// Below the session's directory: where jobs may write files that are to come back. Inside, it lies on
/// the layer above the root directory, which all namespaces see and where files can be appended to.
pub const FILES: &str = "files";

/// Below the session's directory: those files, as they were at the end.
pub const BACK: &str = "back";

/// Runs after the script of [`initrd`], in the shared root directory.
const START: &str = include_str!("start.sh");

/// In seconds, for all jobs.
const DEADLINE: &str = "3000";

/// In mebibytes: what tests write is kept in memory.
const MEMORY: &str = "1536";

/// No more processors than tests can use.
const MAX_CPUS: usize = 4;

/// The kernel's command line: what saves time under emulation, and ends instead of starting again.
const APPEND: &str = "console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off tsc=reliable \
    no_timer_check random.trust_cpu=on rcupdate.rcu_expedited=1 net.ifnames=0 cryptomgr.notests";

/// See [`super::Session::run`].
pub fn run(kernel: &Kernel, session: &Path, jobs: &[Job], look: impl FnMut(&str)) -> Result<i32> {
    let files = session.join(FILES);
    for dir in [&files, &session.join(BACK)] {
        fs::create_dir_all(dir)?;
    }
    fs::write(session.join("initrd"), initrd::archive(kernel)?)?;
    fs::write(session.join("start"), START)?;
    let back = format!("/run/machine/{BACK}");
    fs::write(session.join("jobs"), job::script(jobs, text(&files)?, &back)?)?;
    eprintln!("starting a machine with Linux {}", kernel.release);
    let ended = cmd::watch(&mut command(kernel, session)?, look);
    let Ok(status) = fs::read_to_string(session.join("status")) else {
        eprintln!("{}", last_words(session));
        ended.context("the emulated machine ended without a result")?;
        bail!("the emulated machine ended without a result; its last words are above")
    };
    status.trim().parse().context("read the status of the jobs")
}

fn last_words(session: &Path) -> String {
    let said = fs::read(session.join("console")).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Emulated also where the processor could do more: `/dev/kvm` is often absent, and in a machine that
/// is virtual itself it may be there and not work.
fn command(kernel: &Kernel, session: &Path) -> Result<Command> {
    let cpus = thread::available_parallelism().map_or(1, usize::from).min(MAX_CPUS);
    let mut machine = cmd::command("timeout");
    machine.args(["-k", "5", DEADLINE, "qemu-system-x86_64"]);
    machine.args(["-M", "q35,usb=off,vmport=off,hpet=off", "-accel", "tcg,thread=multi"]);
    machine.args(["-cpu", "max,la57=off", "-smp", &cpus.to_string(), "-m", MEMORY]);
    machine.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    machine.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(session.join("initrd"));
    machine.args(["-append", APPEND]);
    machine.args(["-serial", &format!("file:{}", option(&session.join("console"))?)]);
    let share = "security_model=none,multidevs=remap";
    let root = format!("local,path=/,mount_tag=root,readonly=on,{share}");
    let own = format!("local,path={},mount_tag=session,{share}", option(session)?);
    machine.args(["-virtfs", &root, "-virtfs", &own]);
    // Not `stdio`, which closes at the end of an empty input. Our end of this is a pipe.
    machine.args(["-device", "virtio-serial-pci", "-chardev", "file,id=out,path=/proc/self/fd/1"]);
    machine.args(["-device", "virtserialport,chardev=out,name=out"]);
    machine.stdin(Stdio::null());
    Ok(machine)
}

/// A path within an option, where a comma would end it.
fn option(path: &Path) -> Result<String> {
    Ok(text(path)?.replace(',', ",,"))
}
