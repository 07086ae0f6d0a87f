// SPDX-License-Identifier: Apache-2.0
//! Programs, directories and repetitions of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Input of the measuring process inside the namespaces.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Directory of the Go plugins.
    pub(crate) go: PathBuf,
    /// podwire-cni.
    pub(crate) ours: PathBuf,
    /// The floor program.
    pub(crate) floor: PathBuf,
    /// The program that measures UDP tunnels.
    pub(crate) udp_path: PathBuf,
    /// podwire, for its agent.
    pub(crate) podwire: PathBuf,
    /// The program that measures the agent.
    pub(crate) node_path: PathBuf,
    /// Directory for the programs, on a disk as on a node: from tmpfs the kernel maps programs page by
    /// page, which costs each process 80 µs.
    pub(crate) programs: PathBuf,
    /// Directory for address files on a disk.
    pub(crate) disk: PathBuf,
    /// File for the results.
    pub(crate) results: PathBuf,
    pub(crate) effort: Effort,
}

/// Number of repetitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Effort {
    /// Calls of VERSION, loopback and bridge per program.
    pub(crate) calls: usize,
    /// Parallel attachments.
    pub(crate) pods: usize,
    /// Rounds of parallel attachments.
    pub(crate) rounds: usize,
    /// Rounds through all levels of reserved addresses.
    pub(crate) ipam: usize,
    pub(crate) levels: Vec<Level>,
    /// Also measure with files on a disk, at the lowest and the highest level.
    pub(crate) disk: bool,
    /// Rounds of the full chain, with several containers each.
    pub(crate) chain: usize,
    /// Parallel full chains of the Go plugins, which add only five per second.
    pub(crate) go_burst: usize,
    /// Rounds through all levels of port mappings.
    pub(crate) mappings: usize,
    /// Connections through each UDP tunnel.
    pub(crate) udp: usize,
    /// Starts of agents per store and order.
    pub(crate) starts: usize,
    /// Agents per number of peers.
    pub(crate) crowds: usize,
    /// Peers added to each of them.
    pub(crate) changes: usize,
    /// Idle seconds of each of them; a periodic task runs every four seconds.
    pub(crate) idle: usize,
    /// Pairs of connections per backend.
    pub(crate) tcp: usize,
    /// Round trips between two pods per turn.
    pub(crate) trips: usize,
    /// Assignments with and without other assigned addresses.
    pub(crate) assignments: usize,
}

/// Number of addresses reserved before the measured call.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Level {
    pub(crate) taken: usize,
    /// Calls of the Go plugin, which takes half a second per call at the highest level.
    pub(crate) go_calls: usize,
}

impl Effort {
    pub(crate) fn full() -> Effort {
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
            trips: 2000,
            assignments: 300,
        }
    }

    pub(crate) fn quick() -> Effort {
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
            trips: 500,
            assignments: 50,
        }
    }
}

fn levels_of(levels: &[(usize, usize)]) -> Vec<Level> {
    levels.iter().map(|&(taken, go_calls)| Level { taken, go_calls }).collect()
}
