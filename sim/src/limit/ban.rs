//! Counts invalid requests by address, and bans addresses that send too many.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::table::InvalidLimit;
use crate::time::At;

/// Maximum number of addresses; the one whose last invalid request is oldest is removed first.
const MAX_ADDRESSES: usize = 1_024;

/// Invalid requests and bans by address.
#[derive(Debug, Default)]
pub(crate) struct BanLedger {
    addresses: HashMap<IpAddr, Record>,
    max_in_window: u32,
}

#[derive(Debug, Default)]
struct Record {
    invalid: VecDeque<At>,
    banned_until: Option<At>,
}

impl BanLedger {
    /// Remaining time of an address's ban; `None` if it is not banned.
    pub(crate) fn remaining_ban(&self, address: IpAddr, now: At) -> Option<Duration> {
        let until = self.addresses.get(&address)?.banned_until?;
        (now < until).then(|| until.since(now))
    }

    /// Counts an invalid request; true if it causes a ban.
    pub(crate) fn record(&mut self, address: IpAddr, limit: &InvalidLimit, now: At) -> bool {
        if self.addresses.len() >= MAX_ADDRESSES && !self.addresses.contains_key(&address) {
            let stale =
                self.addresses.iter().min_by_key(|(_, record)| record.invalid.back()).map(|(address, _)| *address);
            if let Some(stale) = stale {
                self.addresses.remove(&stale);
            }
        }
        let record = self.addresses.entry(address).or_default();
        while record.invalid.front().is_some_and(|at| now >= at.after(limit.per())) {
            record.invalid.pop_front();
        }
        record.invalid.push_back(now);
        let count = u32::try_from(record.invalid.len()).unwrap_or(u32::MAX);
        self.max_in_window = self.max_in_window.max(count);
        if count < limit.limit {
            return false;
        }
        record.invalid.clear();
        record.banned_until = Some(now.after(limit.ban()));
        true
    }

    /// Resets the maximum; counts and bans stay.
    pub(crate) fn reset_max(&mut self) {
        self.max_in_window = 0;
    }

    /// Maximum number of invalid requests that one address had in any window.
    pub(crate) fn max_in_window(&self) -> u32 {
        self.max_in_window
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMIT: InvalidLimit = InvalidLimit { limit: 3, per_ms: 1_000, ban_ms: 5_000 };

    fn at(ms: u64) -> At {
        At::from_micros(ms * 1_000)
    }

    #[test]
    fn third_invalid_request_in_the_window_bans_only_its_address() {
        let mut ledger = BanLedger::default();
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
        assert!(!ledger.record(one, &LIMIT, at(0)));
        assert!(!ledger.record(one, &LIMIT, at(1)));
        assert!(ledger.record(one, &LIMIT, at(2)));
        assert_eq!(ledger.remaining_ban(one, at(5_001)), Some(Duration::from_millis(1)));
        assert_eq!(ledger.remaining_ban(one, at(5_002)), None);
        assert_eq!(ledger.remaining_ban(other, at(3)), None);
    }

    #[test]
    fn expired_invalid_requests_do_not_count() {
        let mut ledger = BanLedger::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        for step in 0..10 {
            assert!(!ledger.record(address, &LIMIT, at(step * 500)), "at most two a second");
        }
        assert_eq!(ledger.max_in_window(), 2);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let mut ledger = BanLedger::default();
        for low in 0..5_000u32 {
            ledger.record(IpAddr::V4(Ipv4Addr::from(0x7f00_0000 + low)), &LIMIT, at(u64::from(low)));
        }
        assert_eq!(ledger.addresses.len(), MAX_ADDRESSES);
    }
}
