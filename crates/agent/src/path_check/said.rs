// SPDX-License-Identifier: Apache-2.0
//! What people were told of a path: each thing once, until it is another.

use tracing::{debug, info, warn};

use super::check::Standing;
use super::{Checksum, Verdict};

/// What there is to say of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    Dead,
    WrongSums,
    /// It carries so much.
    Narrow(u32),
    Good,
}

impl Said {
    fn of(verdict: &Verdict) -> Said {
        if !verdict.reachable {
            Said::Dead
        } else if verdict.checksum == Checksum::Wrong {
            Said::WrongSums
        } else {
            verdict.route_mtu().map_or(Said::Good, Said::Narrow)
        }
    }

    /// What is known of a peer of which this was said.
    pub(super) fn standing(before: Option<Said>) -> Standing {
        match before {
            None => Standing::Unknown,
            Some(Said::Dead) => Standing::Lost,
            Some(_) => Standing::Reachable,
        }
    }
}

/// Says what is new.
pub(super) fn say(before: Option<Said>, verdict: &Verdict) -> Said {
    let now = Said::of(verdict);
    if Some(now) == before {
        return now;
    }
    let Verdict { peer, address, full, round_trip, .. } = verdict;
    match now {
        Said::Dead => warn!(%peer, %address, "peer does not answer"),
        Said::WrongSums => {
            warn!(%peer, %address, "checksums arrive wrong: TCP and UDP do not get through");
        }
        Said::Narrow(mtu) => info!(%peer, %address, mtu, full, "path carries less than pods send"),
        Said::Good if before.is_some() => info!(%peer, %address, "path is good again"),
        Said::Good => debug!(%peer, %address, ?round_trip, "path is good"),
    }
    now
}
