//! The handlers of an event.

use std::sync::Arc;

/// Numbers of handlers, in order.
///
/// Each event has one, and it moves between threads. When the last number is less than 64 above the first, it is a
/// mask, so threads do not contend for a reference count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandlerSet {
    Few { first: usize, mask: u64 },
    Many(Arc<[usize]>),
}

impl HandlerSet {
    /// Whether there are no handlers.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Few { mask, .. } => *mask == 0,
            Self::Many(numbers) => numbers.is_empty(),
        }
    }

    /// The numbers, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let (first, mut mask, numbers) = match self {
            Self::Few { first, mask } => (*first, *mask, [].as_slice()),
            Self::Many(numbers) => (0, 0, &**numbers),
        };
        let few = std::iter::from_fn(move || {
            let lowest = (mask != 0).then(|| first + mask.trailing_zeros() as usize);
            mask &= mask.wrapping_sub(1);
            lowest
        });
        few.chain(numbers.iter().copied())
    }

    /// Removes a handler.
    pub(crate) fn remove(&mut self, handler: usize) {
        match self {
            Self::Few { first, mask } => *mask &= !bit(*first, handler).unwrap_or(0),
            Self::Many(numbers) => *numbers = numbers.iter().copied().filter(|number| *number != handler).collect(),
        }
    }
}

impl From<Vec<usize>> for HandlerSet {
    fn from(numbers: Vec<usize>) -> Self {
        let first = numbers.first().copied().unwrap_or(0);
        let mask = numbers.iter().try_fold(0, |mask, number| Some(mask | bit(first, *number)?));
        mask.map_or_else(|| Self::Many(numbers.into()), |mask| Self::Few { first, mask })
    }
}

/// The bit for a number in a mask that starts at `first`, if it has one.
fn bit(first: usize, number: usize) -> Option<u64> {
    u32::try_from(number.checked_sub(first)?).ok().and_then(|number| 1_u64.checked_shl(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_are_in_order_and_can_be_removed() {
        for numbers in [vec![], vec![0], vec![3, 17, 63], vec![0, 64], vec![900, 963], vec![5, 63, 64, 1_000]] {
            let mut set = HandlerSet::from(numbers.clone());
            assert_eq!(set.iter().collect::<Vec<_>>(), numbers);
            assert_eq!(set.is_empty(), numbers.is_empty());
            set.remove(7);
            set.remove(2_000);
            assert_eq!(set.iter().collect::<Vec<_>>(), numbers, "unknown handlers are ignored");
            for (index, number) in numbers.iter().enumerate() {
                set.remove(*number);
                assert_eq!(set.iter().collect::<Vec<_>>(), numbers[index + 1..]);
            }
            assert!(set.is_empty());
        }
    }
}
