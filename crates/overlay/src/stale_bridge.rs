// SPDX-License-Identifier: Apache-2.0
//! The hint for a bridge that has the gateway address of another subnet. Plugin and node agent print the same text, so
//! that the log, `podwire status` and the runtime's error agree.

/// Bridge of the agent's CNI configuration, and the plugin's default. The agent replaces a stale address on this
/// bridge as soon as the bridge has no ports.
pub const AGENT_BRIDGE: &str = "cni0";

/// Returns the instructions for making this bridge usable again.
pub fn hint(bridge: &str) -> String {
    match bridge == AGENT_BRIDGE {
        true => format!(
            "delete the pods that are attached to {bridge}: the podwire agent then replaces the address; if no agent runs on this node, run `ip link delete {bridge}` after that"
        ),
        false => {
            format!(
                "delete the pods that are attached to {bridge}, then run `ip link delete {bridge}`"
            )
        }
    }
}
