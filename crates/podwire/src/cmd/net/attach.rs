// SPDX-License-Identifier: Apache-2.0
//! `podwire net`: what cnitool does, with tables for people.

mod convert;
mod gc;
mod keys;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cni::runtime::cache::Entry;
use cni::runtime::conf_dir::Found;
use cni::runtime::{Container, NetworkList, Runtime};
use cni::{CniResult, Code, Command};
use serde_json::{Value, json};

use crate::cli::{Attach, NetCommand, NetStatus, Places};
use crate::output::{self, Format};
use crate::report::{self, Hint};
use crate::{config, id, place};

/// What the runtime says of an ADD that failed because of an earlier one.
const LEFT_AS_IT_IS: &str = "an attachment made before is left as it is";

/// Does what the command line asks.
pub fn run(command: &NetCommand, format: Format) -> Result<()> {
    match command {
        NetCommand::Convert(asked) => convert::run(asked),
        NetCommand::List(places) => list(places, format),
        NetCommand::Add(attach) => add(attach, format),
        NetCommand::Check(attach) => check(attach, format),
        NetCommand::Del(attach) => del(attach, format),
        NetCommand::Gc(collect) => gc::run(collect, format),
        NetCommand::Status(status) => self::status(status, format),
    }
}

fn list(places: &Places, format: Format) -> Result<()> {
    let found = config::scan(&places.conf_dir)?;
    if format == Format::Json {
        return output::print_json(&list_json(&found));
    }
    if found.is_empty() {
        let dir = &places.conf_dir;
        let advice = config::how_to_begin(dir);
        return output::print(&format!("no network in {}\nhint: {advice}\n", dir.display()));
    }
    let rows = found.iter().filter_map(|found| {
        let list = found.list.as_ref().ok()?;
        let version = list.version.to_string();
        Some([list.name.clone(), version, kinds(list).join(" "), found.file.display().to_string()])
    });
    if found.iter().any(|found| found.list.is_ok()) {
        output::print(&output::table(["NETWORK", "VERSION", "PLUGINS", "FILE"], rows))?;
    }
    found.iter().filter_map(config::fault).for_each(|fault| report::warn(&fault));
    config::hidden(&found).iter().for_each(|hidden| report::warn(hidden));
    found.iter().filter_map(|found| found.list.as_ref().ok()).for_each(warn_of_keys);
    Ok(())
}

fn warn_of_keys(list: &NetworkList) {
    keys::misspelt(list).iter().for_each(|line| report::warn(line));
}

fn kinds(list: &NetworkList) -> Vec<&str> {
    list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect()
}

fn list_json(found: &[Found]) -> Value {
    let (mut networks, mut broken) = (Vec::new(), Vec::new());
    for found in found {
        match &found.list {
            Ok(list) => networks.push(json!({
                "name": list.name,
                "cniVersion": list.version.as_str(),
                "plugins": kinds(list),
                "file": found.file,
            })),
            Err(error) => broken.push(json!({
                "file": found.file,
                "error": error.to_json(cni::Version::LATEST),
            })),
        }
    }
    json!({ "networks": networks, "broken": broken })
}

/// Whom a command is about, and how it is to be done.
struct Asked {
    host: cni::Host,
    list: NetworkList,
    container: Container,
}

impl Asked {
    fn read(attach: &Attach) -> Result<Asked> {
        let list = config::load(&attach.places.conf_dir, &attach.network)?;
        let container = container(attach)?;
        Ok(Asked { host: place::host(&attach.places), list, container })
    }

    /// The same for an attachment that may have outlived its network's file; none where the cache has
    /// forgotten it, too.
    fn read_or_recall(attach: &Attach) -> Result<Option<Asked>> {
        let Attach { network, places, .. } = attach;
        let container = container(attach)?;
        let host = place::host(places);
        let mut found = config::find(&places.conf_dir, network);
        if !matches!(found, Ok(Some(_))) {
            let entry = place::runtime(&host, places).cached(network, &container);
            let recalled = recall(network, places, entry.as_slice());
            found = recalled.map_or(found, |list| Ok(Some(list)));
        }
        let list = found.with_context(|| unknown(&container, network))?;
        Ok(list.map(|list| Asked { host, list, container }))
    }

    /// What the errors of a verb are about.
    fn about(&self, verb: &str) -> String {
        format!("{verb} {}", about(&self.container, &self.list.name))
    }

    fn done(&self, what: &str, started: Instant, format: Format) -> Result<()> {
        done(&self.list.name, &self.container, what, started, format)
    }
}

fn done(
    network: &str,
    container: &Container,
    what: &str,
    started: Instant,
    format: Format,
) -> Result<()> {
    let took = started.elapsed();
    let Container { id, ifname, .. } = container;
    if format == Format::Json {
        return output::print_json(&json!({
            "network": network,
            "containerID": id,
            "ifname": ifname,
            "tookMicros": micros(took),
        }));
    }
    output::print(&done_text(network, container, what, took))
}

fn done_text(network: &str, container: &Container, what: &str, took: Duration) -> String {
    let Container { ifname, netns, .. } = container;
    format!("{network}: {ifname} of {netns} {what} in {}\n", output::duration(took))
}

/// Takes from the cache what the command line does not say of a container, and tells whether the cache
/// knows the attachment.
fn complete(container: &mut Container, network: &str, runtime: &Runtime) -> bool {
    let Some(Entry { container: known, .. }) = runtime.cached(network, container) else {
        return false;
    };
    if container.args.is_empty() {
        container.args = known.args;
    }
    if container.capability_args.is_empty() {
        container.capability_args = known.capability_args;
    }
    true
}

fn about(Container { ifname, netns, .. }: &Container, network: &str) -> String {
    format!("{ifname} of {netns} on network {network:?}")
}

fn unknown(container: &Container, network: &str) -> String {
    format!("nothing is known of {}", about(container, network))
}

/// The network as it was at the time of the first ADD of these.
fn recall(network: &str, places: &Places, entries: &[Entry]) -> Option<NetworkList> {
    let entry = entries.first()?;
    // Plugins in the network's folder are no part of what is remembered.
    let beside = places.conf_dir.join(format!("{network}.conflist"));
    let list = NetworkList::parse(&entry.config, Some(&beside)).ok()?;
    let dir = places.conf_dir.display();
    let is_it = list.name == network;
    if is_it {
        report::note(&format!(
            "network {network:?} is missing or broken in {dir}: the cache's copy is used"
        ));
    }
    is_it.then_some(list)
}

fn container(attach: &Attach) -> Result<Container> {
    let (netns, wishes) = (place::netns_path(&attach.netns)?, &attach.wishes);
    Ok(Container {
        id: id::of_netns(&netns),
        netns: place::as_text(&netns)?.to_owned(),
        ifname: wishes.ifname.clone(),
        args: pairs(&wishes.args)?,
        capability_args: wishes.cap_args.clone(),
    })
}

/// CNI_ARGS by cnitool's rule: both sides of each pair say something.
fn pairs(text: &str) -> Result<Vec<(String, String)>> {
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => bail!("CNI_ARGS: invalid pair {pair:?}: expected KEY=VALUE with ';' between pairs"),
    };
    if text.is_empty() { Ok(Vec::new()) } else { text.split(';').map(pair).collect() }
}

fn add(attach: &Attach, format: Format) -> Result<()> {
    let asked = Asked::read(attach)?;
    place::require_netns(Path::new(&asked.container.netns))?;
    warn_of_keys(&asked.list);
    let enabled = asked.list.capabilities();
    for capability in asked.container.capability_args.keys().filter(|key| !enabled.contains(*key)) {
        let name = &asked.list.name;
        report::warn(&format!("no plugin of network {name:?} has capability {capability:?}"));
    }
    let runtime = place::runtime(&asked.host, &attach.places);
    let started = Instant::now();
    let added = match runtime.add_raw(&asked.list, &asked.container) {
        Err(error) if error.details.contains(LEFT_AS_IT_IS) => {
            Err(error).hint(|| format!("{} comes first", del_command(attach)))
        }
        other => other.map_err(Into::into),
    };
    let raw = added.with_context(|| asked.about("attach"))?;
    show_attached(&asked, raw, started, format).or_else(|error| {
        // A caller that did not get the result takes the container for not attached.
        runtime.del(&asked.list, &asked.container).with_context(|| asked.about("detach"))?;
        Err(error.context(format!("{} and detached again", asked.about("attached"))))
    })
}

/// In one write, so that a reader that stops after the first line has got everything.
fn show_attached(asked: &Asked, raw: Value, started: Instant, format: Format) -> Result<()> {
    if format == Format::Json {
        return output::print_json(&raw);
    }
    let result = CniResult::parse(raw, asked.list.version)?;
    let done = done_text(&asked.list.name, &asked.container, "attached", started.elapsed());
    output::print(&format!("{done}\n{}", output::result(&result)))
}

/// The call that undoes this one.
fn del_command(attach: &Attach) -> String {
    let Attach { network, netns, wishes, .. } = attach;
    match wishes.ifname.as_str() {
        "eth0" => format!("podwire net del {network} {netns}"),
        other => format!("podwire net del {network} {netns} --ifname {other}"),
    }
}

fn check(attach: &Attach, format: Format) -> Result<()> {
    let Some(mut asked) = Asked::read_or_recall(attach)? else {
        let unknown = unknown(&container(attach)?, &attach.network);
        return config::missing(&attach.places.conf_dir, &attach.network).context(unknown);
    };
    place::require_netns(Path::new(&asked.container.netns))?;
    let runtime = place::runtime(&asked.host, &attach.places);
    let is_known = complete(&mut asked.container, &asked.list.name, &runtime);
    let started = Instant::now();
    let checked = runtime.check(&asked.list, &asked.container);
    checked.with_context(|| match is_known {
        true => asked.about("check"),
        false => format!("{} is not attached", about(&asked.container, &asked.list.name)),
    })?;
    let done = if asked.list.disable_check { "left unchecked (disableCheck)" } else { "checked" };
    asked.done(done, started, format)
}

fn del(attach: &Attach, format: Format) -> Result<()> {
    let started = Instant::now();
    let Some(mut asked) = Asked::read_or_recall(attach)? else {
        // As after an earlier DEL, and the end of its network.
        let (container, dir) = (container(attach)?, attach.places.conf_dir.display());
        let unknown = unknown(&container, &attach.network);
        report::warn(&format!("{unknown}, and there is no such network in {dir}"));
        return done(&attach.network, &container, "was not attached", started, format);
    };
    let runtime = place::runtime(&asked.host, &attach.places);
    let was_known = complete(&mut asked.container, &asked.list.name, &runtime);
    let started = Instant::now();
    runtime.del(&asked.list, &asked.container).with_context(|| asked.about("detach"))?;
    let done = match was_known {
        true => "detached",
        false => "was not attached; its plugins were asked to detach it all the same",
    };
    asked.done(done, started, format)
}

fn status(status: &NetStatus, format: Format) -> Result<()> {
    let list = config::load(&status.places.conf_dir, &status.network)?;
    warn_of_keys(&list);
    let host = place::host(&status.places);
    place::runtime(&host, &status.places).status(&list).map_err(|error| {
        let about = match error.code {
            Code::LIMITED => "has limited connectivity",
            _ => "cannot take containers",
        };
        anyhow::Error::new(error).context(format!("network {:?} {about}", list.name))
    })?;
    // Older versions have no STATUS; that every plugin is there is what can be said.
    place::runtime(&host, &status.places)
        .validate(&list)
        .with_context(|| format!("network {:?} cannot take containers", list.name))?;
    let is_asked = list.version >= Command::Status.since();
    match format {
        Format::Json => output::print_json(
            &json!({ "network": list.name, "ready": true, "pluginsAsked": is_asked }),
        ),
        Format::Text if is_asked => output::print(&format!("{}: ready\n", list.name)),
        Format::Text => output::print(&format!(
            "{}: ready as far as can be seen: its plugins are installed, but cannot be asked before \
             cniVersion {}, and this is {}\n",
            list.name,
            Command::Status.since(),
            list.version
        )),
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_pairs() {
        assert_eq!(pairs("").unwrap(), []);
        let expected = [("A".to_owned(), "b".to_owned()), ("C".to_owned(), "d".to_owned())];
        assert_eq!(pairs("A=b;C=d").unwrap(), expected);
        for bad in ["A", "=b", "A=", "A=b;", "A=b=c"] {
            assert!(pairs(bad).is_err(), "{bad}");
        }
    }
}
