//! The unit of budgets.

use std::fmt;

use serde::{Serialize, Serializer};

/// An amount of an upstream's points, or points per second. Never negative; counted in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Points(u64);

const MICROS: u64 = 1_000_000;

impl Points {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// The smallest amount above 0.
    pub const SMALLEST: Self = Self(1);

    /// The maximum, far above what any upstream has.
    pub const MAX: Self = Self(1_000_000_000_000 * MICROS);

    /// Whole points, at most [`Points::MAX`].
    #[must_use]
    pub const fn whole(points: u64) -> Self {
        let micros = points.saturating_mul(MICROS);
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// Points; `None` if the value is not a number, negative or above [`Points::MAX`].
    #[must_use]
    pub fn new(points: f64) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "the bound need not be exact")]
        let micros = (points * MICROS as f64).round();
        #[expect(clippy::cast_precision_loss, reason = "the bound need not be exact")]
        let fits = (0.0..=Self::MAX.0 as f64).contains(&micros);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked on the line above")]
        fits.then_some(Self(micros as u64))
    }

    /// As a decimal number.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display and JSON")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / MICROS as f64
    }

    /// Millionths of a point; `None` above [`Points::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Option<Self> {
        if micros > Self::MAX.0 { None } else { Some(Self(micros)) }
    }

    /// In millionths, exactly.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// An even share if divided by `of`, rounded down; the remainder is not assigned.
    #[must_use]
    pub fn share(self, of: u32) -> Self {
        Self(self.0 / u64::from(of.max(1)))
    }

    /// The sum, at most [`Points::MAX`].
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0)).min(Self::MAX)
    }

    /// The difference, at least 0.
    #[must_use]
    pub fn minus(self, less: Self) -> Self {
        Self(self.0.saturating_sub(less.0))
    }

    /// In millionths, as a signed number that allows debt.
    pub(super) const fn signed(self) -> i128 {
        self.0 as i128
    }

    /// The points left in a balance that may be negative.
    pub(super) fn from_balance(balance: i128) -> Self {
        Self(u64::try_from(balance.max(0)).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}

impl Serialize for Points {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_amounts_are_rejected() {
        assert_eq!(Points::new(1.5), Some(Points(1_500_000)));
        assert_eq!(Points::new(0.0), Some(Points::ZERO));
        for invalid in [f64::NAN, f64::INFINITY, -0.1, 1e30] {
            assert_eq!(Points::new(invalid), None, "{invalid}");
        }
        assert_eq!(Points::whole(u64::MAX), Points::MAX);
        assert_eq!(Points::new(Points::MAX.as_f64()), Some(Points::MAX));
        assert_eq!(Points::whole(40).to_string(), "40");
        assert_eq!(Points::from_micros(Points::MAX.micros()), Some(Points::MAX));
        assert_eq!(Points::from_micros(Points::MAX.micros() + 1), None);
    }

    #[test]
    fn shares_together_are_never_more_than_the_whole() {
        assert_eq!(Points::whole(10).share(4), Points(2_500_000));
        assert_eq!(Points::whole(1).share(3), Points(333_333));
        assert_eq!(Points::whole(1).share(0), Points::whole(1));
        assert_eq!(Points::MAX.plus(Points(1)), Points::MAX);
    }
}
