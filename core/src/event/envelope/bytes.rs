//! Byte scanning, eight bytes at a time.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Sets the highest bit of each byte that is less than `least`, which is at most 128. Only the first set bit is
/// reliable; later ones may be wrong.
#[inline]
const fn below(eight: u64, least: u8) -> u64 {
    eight.wrapping_sub(ONES * least as u64) & !eight & HIGH
}

/// Sets the highest bit of each byte that equals `byte`; only the first is reliable, as in [`below`].
#[inline]
const fn equal(eight: u64, byte: u8) -> u64 {
    below(eight ^ (ONES * byte as u64), 1)
}

/// Sets the highest bit of each byte that is a quote, a backslash or a control character; only the first is reliable,
/// as in [`below`].
#[inline(always)]
const fn special_bytes(eight: u64) -> u64 {
    // Flipping this bit moves the quote to where the space was: next to the control characters, which map to each
    // other.
    below(eight ^ (ONES * 2), b' ' + 1) | equal(eight, b'\\')
}

/// Position of the first quote, backslash or control character from `at` on; the end if there is none.
#[inline(always)]
pub(super) fn find_special_byte(bytes: &[u8], at: usize) -> usize {
    let mut rest = bytes.get(at..).unwrap_or_default();
    while let Some((chunk, behind)) = rest.split_first_chunk::<8>() {
        let eight = u64::from_le_bytes(*chunk);
        let found = special_bytes(eight);
        if found != 0 {
            return bytes.len() - rest.len() + found.trailing_zeros() as usize / 8;
        }
        rest = behind;
    }
    while let Some((byte, behind)) = rest.split_first()
        && !matches!(byte, b'"' | b'\\' | 0..b' ')
    {
        rest = behind;
    }
    bytes.len() - rest.len()
}

/// Parses digits; `None` if not all are digits, there are none, or the number does not fit.
#[inline]
pub(super) fn parse_number(digits: &[u8]) -> Option<u64> {
    let (chunks, rest) = digits.as_chunks::<8>();
    let mut number = 0_u64;
    for chunk in chunks {
        number = number.checked_mul(100_000_000)?.checked_add(parse_eight_digits(u64::from_le_bytes(*chunk))?)?;
    }
    for &byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(number)
}

/// Parses eight digits, the first in the lowest byte: combines neighbours into pairs, fours, and all eight.
#[inline]
const fn parse_eight_digits(eight: u64) -> Option<u64> {
    // A digit is 0x30 to 0x39: the upper half is 3, and stays 3 when 6 is added.
    let upper = HIGH | HIGH >> 1 | HIGH >> 2 | HIGH >> 3;
    if eight & upper != ONES * 0x30 || eight.wrapping_add(ONES * 6) & upper != ONES * 0x30 {
        return None;
    }
    let ones = eight & !upper;
    let twos = (ones * 10 + (ones >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (twos * 100 + (twos >> 16)) & 0x0000_FFFF_0000_FFFF;
    Some((fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn special_bytes_are_found_at_every_position() {
        for byte in 0..=u8::MAX {
            let ends = byte < 0x20 || byte == b'"' || byte == b'\\';
            for place in 0..20 {
                let mut bytes = [b'!'; 20];
                bytes[place] = byte;
                for from in 0..=20 {
                    let expected = if ends && from <= place { place } else { 20 };
                    assert_eq!(find_special_byte(&bytes, from), expected, "{byte} at {place} from {from}");
                }
            }
        }
    }

    #[test]
    fn only_digits_parse_at_every_position() {
        for byte in 0..=u8::MAX {
            for place in 0..19 {
                let mut bytes = *b"1234567890123456789";
                bytes[place] = byte;
                let expected = str::from_utf8(&bytes).ok().filter(|_| byte != b'+').and_then(|text| text.parse().ok());
                assert_eq!(parse_number(&bytes), expected, "{byte} at {place}");
            }
        }
    }

    proptest! {
        #[test]
        fn first_special_byte_is_found(bytes: Vec<u8>, more in "[ !\"\\\\\u{1f}\u{7f}é]{0,40}") {
            for bytes in [bytes.as_slice(), more.as_bytes()] {
                let first = bytes.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
                prop_assert_eq!(find_special_byte(bytes, 0), first.unwrap_or(bytes.len()));
            }
        }

        #[test]
        fn digits_parse_to_their_number(digits in "[0-9]{0,24}", number_itself: u64) {
            prop_assert_eq!(parse_number(digits.as_bytes()), digits.parse().ok());
            prop_assert_eq!(parse_number(number_itself.to_string().as_bytes()), Some(number_itself));
        }
    }
}
