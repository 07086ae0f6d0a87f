// SPDX-License-Identifier: Apache-2.0
//! Programs, directories and repetitions of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Input of the measuring process inside the namespaces.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Directory of the Go plugins.
    pub go: PathBuf,
    /// podwire-cni.
    pub ours: PathBuf,
    /// The floor program.
    pub floor: PathBuf,
    /// The program that measures UDP tunnels.
    pub udp_path: PathBuf,
    /// podwire, for its agent.
    pub podwire: PathBuf,
    /// The program that measures the agent.
    pub node_path: PathBuf,
    /// Directory for the programs, on a disk as on a node: from tmpfs the kernel maps programs page by
    /// page, which costs each process 80 µs.
    pub programs: PathBuf,
    /// Directory for address files on a disk.
    pub disk: PathBuf,
    /// File for the results.
    pub results: PathBuf,
    pub effort: Effort,
}

/// Number of repetitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Effort {
    /// Calls of VERSION, loopback and bridge per program.
    pub calls: usize,
    /// Parallel attachments.
    pub pods: usize,
    /// Rounds of parallel attachments.
    pub rounds: usize,
    /// Rounds through all levels of reserved addresses.
    pub ipam: usize,
    pub levels: Vec<Level>,
    /// Also measure with files on a disk, at the lowest and the highest level.
    pub disk: bool,
    /// Rounds of the full chain, with several containers each.
    pub chain: usize,
    /// Parallel full chains of the Go plugins, which add only five per second.
    pub go_burst: usize,
    /// Rounds through all levels of port mappings.
    pub mappings: usize,
    /// Connections through each UDP tunnel.
    pub udp: usize,
    /// Starts of agents per store and order.
    pub starts: usize,
    /// Agents per number of peers.
    pub crowds: usize,
    /// Peers added to each of them.
    pub changes: usize,
    /// Idle seconds of each of them; a periodic task runs every four seconds.
    pub idle: usize,
    /// Pairs of connections per backend.
    pub tcp: usize,
}

/// Number of addresses reserved before the measured call.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Level {
    pub taken: usize,
    /// Calls of the Go plugin, which takes half a second per call at the highest level.
    pub go_calls: usize,
}

impl Effort {
    pub fn full() -> Effort {
        let levels = [(0, 150), (1_000, 100), (10_000, 25), (50_000, 12)];
        let levels = levels_of(&levels);
        Effort {
            calls: 150,
            pods: 200,
            rounds: 3,
            ipam: 150,
            levels,
            disk: true,
            chain: 6,
            go_burst: 64,
            mappings: 60,
            udp: 7,
            starts: 15,
            crowds: 3,
            changes: 50,
            idle: 20,
            tcp: 6,
        }
    }

    pub fn quick() -> Effort {
        let levels = [(0, 30), (1_000, 20), (10_000, 6), (50_000, 2)];
        let levels = levels_of(&levels);
        Effort {
            calls: 40,
            pods: 64,
            rounds: 1,
            ipam: 50,
            levels,
            disk: false,
            chain: 3,
            go_burst: 16,
            mappings: 20,
            udp: 2,
            starts: 3,
            crowds: 1,
            changes: 20,
            idle: 8,
            tcp: 2,
        }
    }
}

fn levels_of(levels: &[(usize, usize)]) -> Vec<Level> {
    levels.iter().map(|&(taken, go_calls)| Level { taken, go_calls }).collect()
}
