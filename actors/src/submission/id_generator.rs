//! Generates ids of operations.

use guildhall_core::operation::OperationId;
use guildhall_core::time::UnixMs;

/// Bits of a version 7 UUID without its time, version and variant.
const TAIL_BITS: u32 = 74;
/// Maximum distance of two ids of one millisecond: large enough that one does not reveal the next.
const STEP_BITS: u32 = 48;

/// Generates ids that sort after all earlier ones of this process, also within a millisecond and when the clock was set
/// back.
#[derive(Debug, Default)]
pub(super) struct IdGenerator {
    millis: u64,
    tail: u128,
}

impl IdGenerator {
    /// The next id. `random` must be uniformly distributed.
    pub(super) fn next(&mut self, now: UnixMs, random: u128) -> OperationId {
        if now.millis() > self.millis {
            self.millis = now.millis();
            // The upper half stays free for the ids that follow within the same millisecond.
            self.tail = random & mask(TAIL_BITS - 1);
        } else {
            self.tail += 1 + (random & mask(STEP_BITS));
            if self.tail > mask(TAIL_BITS) {
                self.millis += 1;
                self.tail &= mask(STEP_BITS);
            }
        }
        OperationId::new(self.millis, tail_bytes(self.tail))
    }
}

const fn mask(bits: u32) -> u128 {
    (1 << bits) - 1
}

/// The bytes that a UUID takes its tail from, without the bits of its version and variant.
fn tail_bytes(tail: u128) -> [u8; 10] {
    let low = (tail & mask(56)) as u64;
    let mut bytes = [0; 10];
    bytes[0] = (tail >> 70) as u8 & 0x0f;
    bytes[1] = (tail >> 62) as u8;
    bytes[2] = (tail >> 56) as u8 & 0x3f;
    bytes[3..].copy_from_slice(&low.to_be_bytes()[1..]);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_ascend_whatever_the_clock_does(
            steps in proptest::collection::vec((0..4_u64, prop_oneof![any::<u128>(), Just(u128::MAX), Just(0)]), 2..200),
        ) {
            let mut names = IdGenerator::default();
            let given: Vec<_> = steps.iter().map(|(at, random)| names.next(UnixMs::new(1_000 + at), *random)).collect();
            prop_assert!(given.windows(2).all(|pair| pair[0] < pair[1]), "{given:?}");
        }
    }

    #[test]
    fn full_millisecond_overflows_into_the_next() {
        let mut ids = IdGenerator { millis: 5, tail: mask(TAIL_BITS) };
        let (overflowed, next) = (ids.next(UnixMs::new(5), u128::MAX), ids.next(UnixMs::new(5), 0));
        assert_eq!(ids.millis, 6);
        assert!(OperationId::new(5, [255; 10]) < overflowed && overflowed < next);
    }

    #[test]
    fn id_contains_its_time() {
        let id = IdGenerator::default().next(UnixMs::new(1_700_000_000_123), 7);
        assert_eq!(id.uuid().as_u128() >> 80, 1_700_000_000_123);
        assert_eq!(id.uuid().get_version_num(), 7);
    }
}
