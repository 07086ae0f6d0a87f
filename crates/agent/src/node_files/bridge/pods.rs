// SPDX-License-Identifier: Apache-2.0
//! Names the pods on a bridge's ports, from the result cache of container runtimes.

use std::path::Path;

use cni::runtime::cache::{Entry, attachments};
use serde_json::Value;

/// Returns the sorted names of the ports' pods, such as `default/web (10.5.1.2)`. A port without a result is named itself.
pub(super) fn on_ports(ports: &[&str], cache_dir: &Path) -> Vec<String> {
    let entries = if ports.is_empty() { Vec::new() } else { attachments(cache_dir) };
    let named = |port: &&str| match entries.iter().find(|entry| has_interface(entry, port)) {
        Some(entry) => name(entry),
        None => format!("interface {port}"),
    };
    let mut pods: Vec<String> = ports.iter().map(named).collect();
    pods.sort_unstable();
    pods
}

fn has_interface(entry: &Entry, name: &str) -> bool {
    let is_it = |interface: &Value| {
        let text = |key: &str| interface.get(key).and_then(Value::as_str).unwrap_or_default();
        text("name") == name && text("sandbox").is_empty()
    };
    list(entry, "interfaces").iter().any(is_it)
}

/// Returns the pod's name if kubelet provided one, else the container ID, with the addresses.
fn name(entry: &Entry) -> String {
    let args = &entry.container.args;
    let arg = |key: &str| args.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let name = match (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) {
        (Some(namespace), Some(pod)) => format!("{namespace}/{pod}"),
        _ => format!("container {}", entry.container.id),
    };
    let address = |ip: &Value| {
        let text = ip.get("address")?.as_str()?;
        Some(text.split('/').next().unwrap_or(text).to_owned())
    };
    let addresses: Vec<String> = list(entry, "ips").iter().filter_map(address).collect();
    match addresses.is_empty() {
        true => name,
        false => format!("{name} ({})", addresses.join(", ")),
    }
}

fn list<'a>(entry: &'a Entry, key: &str) -> &'a [Value] {
    let found = entry.result.as_ref().and_then(|result| result.get(key)?.as_array());
    found.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_named_by_their_host_interface() {
        let root = tempfile::tempdir().unwrap();
        let write = |id: &str, port: &str, args: Value| {
            let file = root.path().join("results").join(format!("cbr0-{id}-eth0"));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let entry = json!({
                "kind": "cniCacheV1", "containerId": id, "config": "", "ifName": "eth0",
                "networkName": "cbr0", "cniArgs": args,
                "result": {
                    "cniVersion": "1.1.0",
                    "interfaces": [
                        {"name": "cni0"}, {"name": port}, {"name": "eth0", "sandbox": "/run/netns/a"},
                    ],
                    "ips": [{"address": "10.5.1.2/24"}],
                },
            });
            std::fs::write(file, entry.to_string()).unwrap();
        };
        let pod = json!([["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "web"]]);
        write("c1", "veth1", pod);
        write("c2", "veth2", json!([]));
        let pods = on_ports(&["veth1", "veth3", "veth2", "eth0"], root.path());
        let expected = [
            "container c2 (10.5.1.2)",
            "default/web (10.5.1.2)",
            "interface eth0",
            "interface veth3",
        ];
        assert_eq!(pods, expected);
        assert_eq!(on_ports(&["veth1"], Path::new("/nowhere")), ["interface veth1"]);
    }
}
