// SPDX-License-Identifier: Apache-2.0
//! Decides when a network is published to the other controllers, and with which MTU. Pure.

/// Progress of a network that the node has joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Publication {
    /// The kernel is being programmed. `pod_mtu` is known after the first outcome.
    Programming { pod_mtu: Option<u32> },
    /// The kernel is programmed, and the command after the start of the backend `extension` runs.
    Starting { pod_mtu: Option<u32> },
    /// The other controllers know of the network.
    Published { pod_mtu: Option<u32> },
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// An outcome of the routes dataplane has this MTU; `None` if it has no network.
    Outcome { pod_mtu: Option<u32> },
    /// Devices and routes to all peers are programmed.
    Programmed { has_started: bool },
    /// The command after the start has ended.
    Started,
}

impl Publication {
    pub(super) fn new() -> Publication {
        Publication::Programming { pod_mtu: None }
    }

    pub(super) fn pod_mtu(self) -> Option<u32> {
        match self {
            Publication::Programming { pod_mtu }
            | Publication::Starting { pod_mtu }
            | Publication::Published { pod_mtu } => pod_mtu,
        }
    }

    /// Returns the next state, and whether the network is to be published.
    pub(super) fn step(self, event: Event) -> (Publication, bool) {
        use Publication::{Programming, Published, Starting};
        match (self, event) {
            (_, Event::Outcome { pod_mtu: None }) => (self, false),
            (Programming { .. }, Event::Outcome { pod_mtu }) => (Programming { pod_mtu }, false),
            (Starting { .. }, Event::Outcome { pod_mtu }) => (Starting { pod_mtu }, false),
            (Published { pod_mtu: before }, Event::Outcome { pod_mtu }) => {
                (Published { pod_mtu }, before != pod_mtu)
            }
            (_, Event::Programmed { has_started: false }) => {
                (Starting { pod_mtu: self.pod_mtu() }, false)
            }
            (_, Event::Programmed { has_started: true }) | (Starting { .. }, Event::Started) => {
                (Published { pod_mtu: self.pod_mtu() }, true)
            }
            (Programming { .. } | Published { .. }, Event::Started) => (self, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: Option<u32> = Some(1450);

    /// Checks after which events the network is published, and the MTU at the end.
    fn check(events: &[(Event, bool)], mtu: Option<u32>) {
        let mut publication = Publication::new();
        for (event, expected) in events {
            let tells;
            (publication, tells) = publication.step(*event);
            assert_eq!(tells, *expected, "{event:?} of {events:?}");
        }
        assert_eq!(publication.pod_mtu(), mtu);
    }

    #[test]
    fn network_is_published_once_it_is_programmed() {
        let programmed = Event::Programmed { has_started: true };
        let outcome = |pod_mtu| Event::Outcome { pod_mtu };
        check(
            &[
                (outcome(MTU), false),
                (programmed, true),
                (outcome(MTU), false),
                (outcome(None), false),
                (outcome(Some(1400)), true),
                (Event::Started, false),
            ],
            Some(1400),
        );
    }

    #[test]
    fn network_is_published_after_the_start_command() {
        let programmed = Event::Programmed { has_started: false };
        let outcome = |pod_mtu| Event::Outcome { pod_mtu };
        check(
            &[
                (Event::Started, false),
                (outcome(MTU), false),
                (programmed, false),
                (outcome(Some(1400)), false),
                (Event::Started, true),
                (Event::Started, false),
            ],
            Some(1400),
        );
    }
}
