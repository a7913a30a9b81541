//! The calls in flight of a bucket. Most buckets have at most one at a time, and nothing is allocated for those.

use crate::time::Timestamp;

/// The numbers of calls without a response, including lost ones until they can no longer arrive.
#[derive(Clone, Debug, Default)]
pub(super) enum InFlight {
    #[default]
    None,
    One(u64),
    Many(Box<ManyInFlight>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct ManyInFlight {
    in_flight: Vec<u64>,
    /// When each lost call can no longer arrive, with its number.
    lost: Vec<(Timestamp, u64)>,
}

impl InFlight {
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(many) => u32::try_from(many.in_flight.len()).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn add(&mut self, number: u64) {
        match self {
            Self::None => *self = Self::One(number),
            Self::One(_) | Self::Many(_) => self.change_many(|many| many.in_flight.push(number)),
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        match self {
            Self::None => {}
            Self::One(other) if *other == number => *self = Self::None,
            Self::One(_) => {}
            Self::Many(many) => {
                many.in_flight.retain(|other| *other != number);
                if many.in_flight.is_empty() && many.lost.is_empty() {
                    *self = Self::None;
                }
            }
        }
    }

    /// A call gets no response. After `gone` it can no longer arrive.
    pub(super) fn mark_lost(&mut self, number: u64, gone: Timestamp) {
        self.change_many(|many| many.lost.push((gone, number)));
    }

    /// When the first of the lost calls can no longer arrive.
    pub(super) fn first_lost_expiry(&self) -> Option<Timestamp> {
        match self {
            Self::None | Self::One(_) => None,
            Self::Many(many) => many.lost.iter().map(|(gone, _)| *gone).min(),
        }
    }

    /// Takes the lost calls that can no longer arrive. Returns each call once.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> Vec<(Timestamp, u64)> {
        match self {
            Self::None | Self::One(_) => Vec::new(),
            Self::Many(many) => many.lost.extract_if(.., |(gone, _)| *gone <= now).collect(),
        }
    }

    fn change_many(&mut self, change: impl FnOnce(&mut ManyInFlight)) {
        let mut many = match std::mem::take(self) {
            Self::None => Box::default(),
            Self::One(number) => Box::new(ManyInFlight { in_flight: vec![number], lost: Vec::new() }),
            Self::Many(many) => many,
        };
        change(&mut many);
        *self = Self::Many(many);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_until_removed_and_leave_nothing_behind() {
        let mut calls = InFlight::default();
        for number in 1..=3 {
            calls.add(number);
        }
        calls.remove(2);
        calls.remove(7);
        assert_eq!(calls.len(), 2);
        calls.remove(1);
        calls.remove(3);
        assert!(matches!(calls, InFlight::None));
    }

    #[test]
    fn lost_call_is_returned_once_when_it_can_no_longer_arrive() {
        let at = Timestamp::from_millis;
        let mut calls = InFlight::default();
        calls.add(1);
        calls.mark_lost(1, at(20));
        calls.add(2);
        calls.mark_lost(2, at(10));
        assert_eq!(calls.first_lost_expiry(), Some(at(10)));
        assert_eq!(calls.take_expired(at(15)), [(at(10), 2)]);
        calls.remove(2);
        assert_eq!((calls.len(), calls.first_lost_expiry()), (1, Some(at(20))));
        assert_eq!(calls.take_expired(at(20)), [(at(20), 1)]);
        calls.remove(1);
        assert!(matches!(calls, InFlight::None));
    }
}
