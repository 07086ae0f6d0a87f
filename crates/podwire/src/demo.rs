// SPDX-License-Identifier: Apache-2.0
//! `podwire demo`: a dual-stack bridge network with pods on this one machine, in namespaces of its
//! own, through the real plugins. Whatever happens, nothing is left unless asked for.

mod drawing;
mod http;
mod icmp;
mod lab;
mod probe;
mod run;
mod show;

use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use serde_json::json;

use self::lab::Lab;
use self::probe::{Echo, Fetched};
use self::run::{Cleaned, Run};
use crate::cli::Demo;
use crate::interrupt::Stop;
use crate::output::{self, Format};
use crate::report::{self, Hint};

/// Does what the command line asks.
pub fn run(asked: Demo, format: Format) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(anyhow!("making network namespaces needs root"))
            .hint(|| "try: sudo podwire demo".to_owned());
    }
    if asked.clean {
        return clean(format);
    }
    let stop = Stop::catch()?;
    let run = Run::claim()?;
    let mut progress = Progress { format };
    let shown = build_and_show(asked, &run, &stop, &mut progress);
    match shown {
        Ok(Ending::Keep) => run.keep(),
        Ok(Ending::Remove(started)) => {
            run.remove()?;
            progress
                .step("removed", &format!("everything, in {}", output::duration(started.elapsed())))
        }
        Err(error) => {
            match run.remove() {
                Ok(()) if stop.is_asked() => bail!("interrupted; everything is removed again"),
                Ok(()) => {}
                // The demo's own error is the one to tell.
                Err(error) => report::warn(&format!("{error:#}; try: podwire demo --clean")),
            }
            Err(error)
        }
    }
}

/// What is left to do when all has been shown.
enum Ending {
    Keep,
    /// Removal began at this moment.
    Remove(Instant),
}

/// Lines that tell people what is going on.
struct Progress {
    format: Format,
}

impl Progress {
    fn step(&mut self, what: &str, text: &str) -> Result<()> {
        self.text(&format!("{what:<9} {text}\n"))
    }

    fn text(&mut self, text: &str) -> Result<()> {
        if self.format == Format::Text { output::print(text) } else { Ok(()) }
    }
}

fn build_and_show(asked: Demo, run: &Run, stop: &Stop, progress: &mut Progress) -> Result<Ending> {
    let lab = build(asked.pods, run, stop, progress)?;
    let echoes = ping(&lab, stop, progress)?;
    let fetched = fetch(&lab, stop, progress)?;
    if progress.format == Format::Json {
        output::print_json(&show::json(&lab, &echoes, &fetched))?;
    }
    let drawn = format!("\n{}\n{}\n", show::picture(&lab), show::pods(&lab));
    progress.text(&drawn)?;
    progress.text(&show::round_trips(&lab.pods, &echoes))?;
    progress.text("\n")?;
    stop.check()?;
    if asked.keep {
        progress.text(&show::how_to_look(&lab))?;
        return Ok(Ending::Keep);
    }
    let started = Instant::now();
    let mut times = lab.detach_pods()?;
    times.sort_unstable();
    if let Some(median) = times.get(times.len() / 2) {
        let text = format!("{} pods, median {}", times.len(), output::duration(*median));
        progress.step("detached", &text)?;
    }
    Ok(Ending::Remove(started))
}

fn build(pods: u16, run: &Run, stop: &Stop, progress: &mut Progress) -> Result<Lab> {
    stop.check()?;
    let mut lab = Lab::new(run)?;
    progress.step("node", &format!("in namespace {}", lab.node.display()))?;
    for number in 1..=pods {
        stop.check()?;
        let pod = lab.add_pod(run, &format!("pod{number}"))?;
        let ips: Vec<String> = pod.ips().map(|ip| ip.to_string()).collect();
        let took = output::duration(pod.took);
        progress.step(&pod.name, &format!("{} attached in {took}", ips.join(" and ")))?;
        lab.pods.push(pod);
    }
    Ok(lab)
}

fn ping(lab: &Lab, stop: &Stop, progress: &mut Progress) -> Result<Vec<Echo>> {
    let mut echoes = Vec::new();
    for from in 0..lab.pods.len() {
        echoes.extend(probe::ping_others(&lab.pods, from, stop)?);
    }
    for is_v6 in [false, true] {
        progress.step("ping", &show::summary(&echoes, is_v6))?;
    }
    Ok(echoes)
}

fn fetch(lab: &Lab, stop: &Stop, progress: &mut Progress) -> Result<Vec<Fetched>> {
    let [client, .., server] = lab.pods.as_slice() else { return Ok(Vec::new()) };
    let fetched = probe::fetch_page(client, server, stop)?;
    for page in &fetched {
        let (url, took) = (&page.url, output::duration(page.time));
        let text = format!("{} fetched {url} in {took}: {:?}", client.name, page.page);
        progress.step("page", &text)?;
    }
    Ok(fetched)
}

fn clean(format: Format) -> Result<()> {
    let cleaned = run::clean()?;
    if format == Format::Json {
        let shown = cleaned.iter().map(|one| match one {
            Cleaned::Removed { id, namespaces } => json!({"demo": id, "namespaces": namespaces}),
            Cleaned::StillRunning { id } => json!({"demo": id, "running": true}),
        });
        return output::print_json(&shown.collect());
    }
    if cleaned.is_empty() {
        return output::print("nothing to remove\n");
    }
    for one in cleaned {
        output::print(&match one {
            Cleaned::Removed { id, namespaces } => {
                format!("demo {id}: removed with {namespaces} namespaces\n")
            }
            Cleaned::StillRunning { id } => format!("demo {id}: is running, left alone\n"),
        })?;
    }
    Ok(())
}
