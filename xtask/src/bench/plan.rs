// SPDX-License-Identifier: Apache-2.0
//! What a run measures with what, and how often.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Handed to the half of the bench that runs inside the namespaces.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The directory of the Go plugins.
    pub go: PathBuf,
    /// podwire-cni.
    pub ours: PathBuf,
    /// The floor program.
    pub floor: PathBuf,
    /// The program that measures UDP tunnels.
    pub udp_path: PathBuf,
    /// podwire, whose agent is measured.
    pub podwire: PathBuf,
    /// The program that measures it.
    pub node_path: PathBuf,
    /// A directory to be made on a disk, for the programs. They are mapped from there as on a node: from
    /// memory (tmpfs) the kernel maps them page by page, which takes each process 80 µs longer.
    pub programs: PathBuf,
    /// Another, for files of addresses.
    pub disk: PathBuf,
    /// Where the results go.
    pub results: PathBuf,
    pub effort: Effort,
}

/// How often each thing is repeated.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Effort {
    /// VERSION, loopback and bridge, each program.
    pub calls: usize,
    /// Attachments made at once.
    pub pods: usize,
    /// How often those are made and removed.
    pub rounds: usize,
    /// Rounds through all levels of addresses taken.
    pub ipam: usize,
    pub levels: Vec<Level>,
    /// Also with files on a disk, with the fewest and the most addresses taken.
    pub disk: bool,
    /// Rounds of the full chain, several containers each.
    pub chain: usize,
    /// Attachments of the Go plugins' full chain made at once; they take a second for five.
    pub go_burst: usize,
    /// Rounds through all levels of port mappings.
    pub mappings: usize,
    /// Connections through each UDP tunnel.
    pub udp: usize,
    /// Agents that start, in each of the ways.
    pub starts: usize,
    /// Agents with each number of peers.
    pub crowds: usize,
    /// Peers that come to each of those.
    pub changes: usize,
    /// Seconds that each of those is left alone; it does something every four.
    pub idle: usize,
    /// Pairs of connections between nodes of each backend.
    pub tcp: usize,
}

/// A number of addresses taken before the call that is measured.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Level {
    pub taken: usize,
    /// Calls of the Go plugin, which takes half a second at the highest level.
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
