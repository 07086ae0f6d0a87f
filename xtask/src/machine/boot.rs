// SPDX-License-Identifier: Apache-2.0
//! Starts QEMU and reads the results.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use super::{Job, Kernel, initrd, job, text};
use crate::cmd;

/// Subdirectory of the session for files that jobs write. In the machine it is on the overlay, which
/// all namespaces see and which supports appending.
pub(crate) const FILES: &str = "files";

/// Subdirectory of the session for these files after the run.
pub(crate) const BACK: &str = "back";

/// Script that runs after the one of [`initrd`], in the shared root directory.
const START: &str = include_str!("start.sh");

/// Time limit for all jobs, in seconds.
const DEADLINE: &str = "3000";

/// Memory in MiB; files written by tests are kept in memory.
const MEMORY: &str = "1536";

/// Tests do not profit from more CPUs.
const MAX_CPUS: usize = 4;

/// Kernel command line: saves time under emulation, and exits instead of rebooting.
const APPEND: &str = "console=ttyS0 quiet panic=-1 reboot=t nokaslr mitigations=off tsc=reliable \
    no_timer_check random.trust_cpu=on rcupdate.rcu_expedited=1 net.ifnames=0 cryptomgr.notests";

/// See [`super::Session::run`].
pub(crate) fn run(
    kernel: &Kernel,
    session: &Path,
    jobs: &[Job],
    on_line: impl FnMut(&str),
) -> Result<i32> {
    let files = session.join(FILES);
    for dir in [&files, &session.join(BACK)] {
        fs::create_dir_all(dir)?;
    }
    fs::write(session.join("initrd"), initrd::archive(kernel)?)?;
    fs::write(session.join("start"), START)?;
    let back = format!("/run/machine/{BACK}");
    fs::write(session.join("jobs"), job::script(jobs, text(&files)?, &back)?)?;
    eprintln!("starting a machine with Linux {}", kernel.release);
    let ended = cmd::watch(&mut command(kernel, session)?, on_line);
    let Ok(status) = fs::read_to_string(session.join("status")) else {
        eprintln!("{}", console_tail(session));
        ended.context("the emulated machine ended without a result")?;
        bail!("the emulated machine ended without a result; its last console output is above")
    };
    status.trim().parse().context("read the status of the jobs")
}

fn console_tail(session: &Path) -> String {
    let console = fs::read(session.join("console")).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Always uses emulation: `/dev/kvm` is often absent, and in a virtual machine it may exist without
/// working.
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
    // Not `stdio`, which closes at the end of an empty input. Our end is a pipe.
    machine.args(["-device", "virtio-serial-pci", "-chardev", "file,id=out,path=/proc/self/fd/1"]);
    machine.args(["-device", "virtserialport,chardev=out,name=out"]);
    machine.stdin(Stdio::null());
    Ok(machine)
}

/// The path with doubled commas, because a comma separates QEMU options.
fn option(path: &Path) -> Result<String> {
    Ok(text(path)?.replace(',', ",,"))
}
