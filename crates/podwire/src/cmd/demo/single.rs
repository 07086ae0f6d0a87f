// SPDX-License-Identifier: Apache-2.0
//! A single node: a dual-stack bridge network with pods, without an agent.

mod show;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use cni::runtime::{NetworkList, conf_dir};
use serde_json::{Value, json};

use super::Ending;
use super::lab::{Lab, Pod};
use super::probe::{self, Echo, Fetched};
use super::progress::Progress;
use super::run::Run;
use crate::output::{self, Format};
use crate::signals::StopSignal;

const NETWORK: &str = "podwire-demo";
/// Name of the bridge in the node's namespace.
const BRIDGE: &str = "podwire0";

/// Builds the node, tests the network, and prints the result.
pub(crate) fn build_and_show(
    pods: u16,
    keep: bool,
    run: &Run,
    stop: &StopSignal,
    progress: &mut Progress,
) -> Result<Ending> {
    let lab = build(pods, run, stop, progress)?;
    let echoes = ping(&lab, stop, progress)?;
    let fetched = fetch(&lab, stop, progress)?;
    if progress.format == Format::Json {
        output::print_json(&show::json(&lab, &echoes, &fetched))?;
    }
    let picture = format!("\n{}\n{}\n", show::picture(&lab), show::pods(&lab));
    progress.text(&picture)?;
    progress.text(&show::round_trips(&lab.pods, &echoes))?;
    progress.text("\n")?;
    stop.check()?;
    if keep {
        progress.text(&show::how_to_inspect(&lab))?;
        return Ok(Ending::Keep);
    }
    let started = Instant::now();
    progress.step("detached", &probe::detached(&lab.detach_pods()?))?;
    Ok(Ending::Remove(started))
}

fn build(pods: u16, run: &Run, stop: &StopSignal, progress: &mut Progress) -> Result<Lab> {
    stop.check()?;
    let list = write_network(run.dir())?;
    let (node, netns) = run.namespace("node").context("create the node")?;
    let mut lab = Lab::new(list, run.dir().join("cache"), node, netns);
    progress.begin(usize::from(pods) + 1)?;
    progress.built("node", &format!("in namespace {}", lab.node.display()))?;
    for number in 1..=pods {
        stop.check()?;
        let pod = lab.add_pod(run, &format!("pod{number}"))?;
        progress.built(&pod.name, &pod.describe_add())?;
        lab.pods.push(pod);
    }
    progress.end()?;
    Ok(lab)
}

fn ping(lab: &Lab, stop: &StopSignal, progress: &mut Progress) -> Result<Vec<Echo>> {
    let pods: Vec<&Pod> = lab.pods.iter().collect();
    let echoes = probe::ping_all(&pods, stop)?;
    for is_v6 in [false, true] {
        progress.step("ping", &show::summary(&echoes, is_v6))?;
    }
    Ok(echoes)
}

fn fetch(lab: &Lab, stop: &StopSignal, progress: &mut Progress) -> Result<Vec<Fetched>> {
    let [client, .., server] = lab.pods.as_slice() else { return Ok(Vec::new()) };
    let fetched = probe::fetch_page(client, server, stop)?;
    for page in &fetched {
        progress.step("page", &page.describe(&client.name))?;
    }
    Ok(fetched)
}

fn write_network(dir: &Path) -> Result<NetworkList> {
    let folder = dir.join("net.d");
    let text = gojson::to_pretty(&network(&dir.join("addresses")));
    fs::create_dir(&folder)
        .and_then(|()| fs::write(folder.join("10-demo.conflist"), text))
        .context("write the network's configuration")?;
    Ok(conf_dir::load(&folder, NETWORK)?)
}

fn network(addresses: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": NETWORK,
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": addresses,
                "ranges": [[{ "subnet": "10.77.0.0/24" }], [{ "subnet": "fd77::/64" }]],
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            },
        }],
    })
}
