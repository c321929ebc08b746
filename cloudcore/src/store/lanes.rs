//! Which waiting requests share the next commit: the more urgent lanes first, and a share for each of the others.

use std::collections::VecDeque;

/// How urgent a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// What the cloud core needs to go on: controllers, enrolment, sessions.
    Control,
    /// What a person or a client waits for.
    Api,
    /// What nodes report.
    Status,
}

const LANES: [Lane; 3] = [Lane::Control, Lane::Api, Lane::Status];

/// What the requests of one group may cost together; a request costs one, and one more for each KiB it carries.
///
/// It bounds how long an urgent request waits for a group of others: some ten milliseconds.
pub(super) const GROUP_COST_MAX: u32 = 1024;

/// The part of a group that a lane gets before any lane gets more.
fn share(lane: Lane) -> u32 {
    match lane {
        Lane::Control => GROUP_COST_MAX / 2,
        Lane::Api | Lane::Status => GROUP_COST_MAX / 4,
    }
}

/// The requests that wait, in order of arrival within each lane.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    queues: [VecDeque<(u32, T)>; LANES.len()],
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { queues: LANES.map(|_| VecDeque::new()) }
    }
}

impl<T> Lanes<T> {
    pub(super) fn push(&mut self, lane: Lane, cost: u32, request: T) {
        self.queues[lane as usize].push_back((cost, request));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(VecDeque::is_empty)
    }

    /// The next group. Every lane that waits is in it; what the shares leave over goes by urgency.
    pub(super) fn take(&mut self) -> Vec<T> {
        let mut taken = LANES.map(|_| Vec::new());
        let mut left = GROUP_COST_MAX;
        for lane in LANES {
            let mut share = share(lane);
            let group = &mut taken[lane as usize];
            // The first of a lane goes whatever it costs, or it would wait for ever.
            while let Some((cost, request)) =
                self.queues[lane as usize].pop_front_if(|(cost, _)| *cost <= share || group.is_empty())
            {
                share = share.saturating_sub(cost);
                left = left.saturating_sub(cost);
                group.push(request);
            }
        }
        for lane in LANES {
            while let Some((cost, request)) = self.queues[lane as usize].pop_front_if(|(cost, _)| *cost <= left) {
                left -= cost;
                taken[lane as usize].push(request);
            }
        }
        taken.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_first_and_none_starves() {
        let mut lanes = Lanes::default();
        for at in 0..10_000 {
            for lane in LANES {
                lanes.push(lane, 1, (lane, at));
            }
        }
        let group = lanes.take();
        assert_eq!(group.len(), 1024);
        assert!(group.is_sorted());
        let count = |lane| group.iter().filter(|(of, _)| *of == lane).count();
        assert_eq!(
            (count(Lane::Control), count(Lane::Api), count(Lane::Status)),
            (512, 256, 256)
        );
    }

    #[test]
    fn a_lane_alone_gets_everything_in_order() {
        let mut lanes = Lanes::default();
        for at in 0..1500 {
            lanes.push(Lane::Status, 1, at);
        }
        assert_eq!(lanes.take(), (0..1024).collect::<Vec<_>>());
        assert_eq!(lanes.take(), (1024..1500).collect::<Vec<_>>());
        assert!(lanes.is_empty());
        assert!(lanes.take().is_empty());
    }

    #[test]
    fn what_is_larger_than_a_share_still_goes() {
        let mut lanes = Lanes::default();
        lanes.push(Lane::Api, GROUP_COST_MAX * 2, "huge");
        lanes.push(Lane::Api, 1, "small");
        lanes.push(Lane::Status, 1, "status");
        assert_eq!(lanes.take(), ["huge", "status"]);
        assert_eq!(lanes.take(), ["small"]);
    }
}
