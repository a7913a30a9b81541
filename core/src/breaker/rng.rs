//! Random numbers that tests can reproduce.

/// A small generator (splitmix64), seeded by the creator of the breakers.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number in `[0, 1)`.
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        // A double represents 53 bits exactly.
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_range_and_reach_both_halves() {
        let mut rng = Rng::new(7);
        let drawn: Vec<f64> = (0..1_000).map(|_| rng.next()).collect();
        assert!(drawn.iter().all(|value| (0.0..1.0).contains(value)));
        let low = drawn.iter().filter(|value| **value < 0.5).count();
        assert!((400..600).contains(&low), "{low}");
    }
}
