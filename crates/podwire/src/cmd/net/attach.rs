// SPDX-License-Identifier: Apache-2.0
//! `podwire net add`, `check` and `del`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use cni::CniResult;
use cni::runtime::cache::Entry;
use cni::runtime::{Container, NetworkList, Runtime};
use serde_json::{Map, Value, json};

use super::{from_cache, warn_of_misspelled_keys};
use crate::errors::{self, Hint};
use crate::output::{self, Format};
use crate::runtime::{self, RuntimeArgs};
use crate::{container_id, network_lookup};

/// Part of the runtime's error for a second ADD of the same container.
const LEFT_AS_IT_IS: &str = "an attachment made before is left as it is";

#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Name of the network
    network: String,
    /// Network namespace: a path, or a name in /run/netns
    netns: String,
    #[command(flatten)]
    container: ContainerArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

/// Values about the container that the plugins receive.
#[derive(Clone, Debug, Args)]
struct ContainerArgs {
    /// Name of the interface in the namespace
    #[arg(
        long,
        short = 'i',
        env = "CNI_IFNAME",
        default_value = "eth0",
        value_name = "NAME",
        hide_env_values = true
    )]
    ifname: String,
    /// Arguments for the plugins: KEY=VALUE, separated by ';'
    #[arg(
        long,
        env = "CNI_ARGS",
        default_value = "",
        value_name = "ARGS",
        hide_env_values = true,
        hide_default_value = true
    )]
    args: String,
    /// Values for the capabilities that the network's plugins enable, as a JSON object
    #[arg(long, env = "CAP_ARGS", default_value = "", value_name = "JSON",
          value_parser = json_object, hide_env_values = true, hide_default_value = true)]
    cap_args: Map<String, Value>,
}

fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|cause| format!("expected a JSON object: {cause}"))
}

/// A container and the network it is attached to.
struct Attachment {
    host: cni::Host,
    list: NetworkList,
    container: Container,
}

impl Attachment {
    fn load(args: &Attach) -> Result<Attachment> {
        let list = network_lookup::load(&args.runtime.conf_dir, &args.network)?;
        Ok(Attachment { host: args.runtime.host(), list, container: container(args)? })
    }

    /// Also accepts an attachment whose network is no longer configured but cached. `None` if the
    /// cache has no entry either.
    fn load_or_from_cache(args: &Attach) -> Result<Option<Attachment>> {
        let Attach { network, runtime, .. } = args;
        let container = container(args)?;
        let host = runtime.host();
        let mut list = network_lookup::find(&runtime.conf_dir, network);
        if !matches!(list, Ok(Some(_))) {
            let entry = runtime.runtime(&host).cached(network, &container);
            let cached = from_cache(network, runtime, entry.as_slice());
            list = cached.map_or(list, |cached| Ok(Some(cached)));
        }
        let list = list.with_context(|| unknown(&container, network))?;
        Ok(list.map(|list| Attachment { host, list, container }))
    }

    /// Context for errors of an operation.
    fn describe(&self, operation: &str) -> String {
        format!("{operation} {}", describe(&self.container, &self.list.name))
    }

    fn print_done(&self, done: &str, started: Instant, format: Format) -> Result<()> {
        print_done(&self.list.name, &self.container, done, started, format)
    }
}

fn print_done(
    network: &str,
    container: &Container,
    done: &str,
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
            "tookMicros": u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }));
    }
    output::print(&done_line(network, container, done, took))
}

fn done_line(network: &str, container: &Container, done: &str, took: Duration) -> String {
    let Container { ifname, netns, .. } = container;
    format!("{network}: {ifname} of {netns} {done} in {}\n", output::duration(took))
}

/// Fills arguments that are not on the command line from the cache. Returns whether the cache knows
/// the attachment.
fn complete_from_cache(container: &mut Container, network: &str, runtime: &Runtime) -> bool {
    let Some(Entry { container: cached, .. }) = runtime.cached(network, container) else {
        return false;
    };
    if container.args.is_empty() {
        container.args = cached.args;
    }
    if container.capability_args.is_empty() {
        container.capability_args = cached.capability_args;
    }
    true
}

fn describe(Container { ifname, netns, .. }: &Container, network: &str) -> String {
    format!("{ifname} of {netns} on network {network:?}")
}

fn unknown(container: &Container, network: &str) -> String {
    format!("unknown attachment: {}", describe(container, network))
}

fn container(args: &Attach) -> Result<Container> {
    let netns = runtime::netns_path(&args.netns)?;
    Ok(Container {
        id: container_id::of_netns(&netns),
        netns: runtime::as_text(&netns)?.to_owned(),
        ifname: args.container.ifname.clone(),
        args: parse_cni_args(&args.container.args)?,
        capability_args: args.container.cap_args.clone(),
    })
}

/// Parses CNI_ARGS like cnitool: neither keys nor values may be empty.
fn parse_cni_args(text: &str) -> Result<Vec<(String, String)>> {
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => bail!("CNI_ARGS: invalid pair {pair:?}: expected KEY=VALUE, separated by ';'"),
    };
    if text.is_empty() { Ok(Vec::new()) } else { text.split(';').map(pair).collect() }
}

pub(crate) fn add(args: &Attach, format: Format) -> Result<()> {
    let attachment = Attachment::load(args)?;
    runtime::require_netns(Path::new(&attachment.container.netns))?;
    warn_of_misspelled_keys(&attachment.list);
    let enabled = attachment.list.capabilities();
    let given = attachment.container.capability_args.keys();
    for capability in given.filter(|capability| !enabled.contains(*capability)) {
        let name = &attachment.list.name;
        errors::warn(&format!("no plugin of network {name:?} has capability {capability:?}"));
    }
    let runtime = args.runtime.runtime(&attachment.host);
    let started = Instant::now();
    let added = match runtime.add_raw(&attachment.list, &attachment.container) {
        Err(error) if error.details.contains(LEFT_AS_IT_IS) => {
            Err(error).hint(|| format!("run `{}` first", del_command(args)))
        }
        other => other.map_err(Into::into),
    };
    let raw = added.with_context(|| attachment.describe("attach"))?;
    print_attached(&attachment, raw, started, format).or_else(|error| {
        // A caller that did not receive the result assumes that the container is not attached.
        runtime
            .del(&attachment.list, &attachment.container)
            .with_context(|| attachment.describe("detach"))?;
        Err(error.context(format!("{} and detached again", attachment.describe("attached"))))
    })
}

/// Prints everything in one write, so that a reader that stops after the first line gets all of it.
fn print_attached(
    attachment: &Attachment,
    raw: Value,
    started: Instant,
    format: Format,
) -> Result<()> {
    if format == Format::Json {
        return output::print_json(&raw);
    }
    let result = CniResult::parse(raw, attachment.list.version)?;
    let Attachment { list, container, .. } = attachment;
    let done = done_line(&list.name, container, "attached", started.elapsed());
    output::print(&format!("{done}\n{}", output::result(&result)))
}

/// The command that removes the attachment.
fn del_command(args: &Attach) -> String {
    let Attach { network, netns, container, .. } = args;
    match container.ifname.as_str() {
        "eth0" => format!("podwire net del {network} {netns}"),
        other => format!("podwire net del {network} {netns} --ifname {other}"),
    }
}

pub(crate) fn check(args: &Attach, format: Format) -> Result<()> {
    let Some(mut attachment) = Attachment::load_or_from_cache(args)? else {
        let unknown = unknown(&container(args)?, &args.network);
        return network_lookup::missing(&args.runtime.conf_dir, &args.network).context(unknown);
    };
    runtime::require_netns(Path::new(&attachment.container.netns))?;
    let runtime = args.runtime.runtime(&attachment.host);
    let name = attachment.list.name.clone();
    let is_cached = complete_from_cache(&mut attachment.container, &name, &runtime);
    let started = Instant::now();
    let checked = runtime.check(&attachment.list, &attachment.container);
    checked.with_context(|| match is_cached {
        true => attachment.describe("check"),
        false => format!("{} is not attached", describe(&attachment.container, &name)),
    })?;
    let done = match attachment.list.disable_check {
        true => "not checked (disableCheck)",
        false => "checked",
    };
    attachment.print_done(done, started, format)
}

pub(crate) fn del(args: &Attach, format: Format) -> Result<()> {
    let started = Instant::now();
    let Some(mut attachment) = Attachment::load_or_from_cache(args)? else {
        // A repeated DEL after the network was removed from the configuration succeeds.
        let (container, dir) = (container(args)?, args.runtime.conf_dir.display());
        let unknown = unknown(&container, &args.network);
        errors::warn(&format!("{unknown}: no such network in {dir}"));
        return print_done(&args.network, &container, "was not attached", started, format);
    };
    let runtime = args.runtime.runtime(&attachment.host);
    let name = attachment.list.name.clone();
    let was_cached = complete_from_cache(&mut attachment.container, &name, &runtime);
    let started = Instant::now();
    runtime
        .del(&attachment.list, &attachment.container)
        .with_context(|| attachment.describe("detach"))?;
    let done = match was_cached {
        true => "detached",
        false => "was not attached; plugins were called anyway",
    };
    attachment.print_done(done, started, format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cni_args_are_pairs() {
        assert_eq!(parse_cni_args("").unwrap(), []);
        let expected = [("A".to_owned(), "b".to_owned()), ("C".to_owned(), "d".to_owned())];
        assert_eq!(parse_cni_args("A=b;C=d").unwrap(), expected);
        for invalid in ["A", "=b", "A=", "A=b;", "A=b=c"] {
            assert!(parse_cni_args(invalid).is_err(), "{invalid}");
        }
    }
}
