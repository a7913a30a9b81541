//! Keys of stored values: their length, and the prefixes that are reserved for the daemon.

/// Maximum length of a key in bytes.
pub const MAX_BYTES: usize = 255;

/// Keys of the REST gate's snapshots.
pub const GATE: &str = "gate:";

/// Keys of the cooldowns of handlers.
pub const COOLDOWN: &str = "cooldown:";

/// Keys of the positions of streams of published events.
pub const STREAM: &str = "guildhall:stream:";

/// Prefixes of keys that are reserved for the daemon. The API, rules and webhook responses can neither read nor write
/// them. `guildhall:` is reserved for later use.
pub const RESERVED_PREFIXES: [&str; 3] = [GATE, COOLDOWN, "guildhall:"];

/// A reserved key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must not start with `{prefix}`, which is reserved for the daemon")]
pub struct ReservedKey {
    /// The reserved prefix.
    pub prefix: &'static str,
}

/// Rejects reserved keys. Case, leading whitespace and leading control characters make no difference, so that no
/// spelling of a reserved key depends on how a store compares texts.
///
/// # Errors
///
/// When the key starts with a reserved prefix.
pub fn check_reserved(key: &str) -> Result<(), ReservedKey> {
    let key = key.trim_start_matches(|c: char| c.is_whitespace() || c.is_control()).as_bytes();
    let begins =
        |prefix: &&str| key.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()));
    match RESERVED_PREFIXES.into_iter().find(begins) {
        Some(prefix) => Err(ReservedKey { prefix }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_spelling_of_a_reserved_key_is_rejected() {
        for prefix in RESERVED_PREFIXES {
            let upper = prefix.to_uppercase();
            for key in [
                prefix.to_owned(),
                format!("{prefix}1"),
                format!("{upper}1"),
                format!("  {prefix}1"),
                format!("\t\n\0{prefix}1"),
                format!("\u{a0}{prefix}1"),
            ] {
                assert_eq!(check_reserved(&key), Err(ReservedKey { prefix }), "{key:?}");
            }
        }
    }

    #[test]
    fn other_keys_are_accepted() {
        for key in ["", "gate", "gates:1", "agate:1", "sess:gate:1", "cache:x", "cooldowns:1", "gäte:1", "ü"] {
            assert_eq!(check_reserved(key), Ok(()), "{key}");
        }
    }

    proptest! {
        #[test]
        fn only_the_beginning_counts(key in "\\PC{0,20}", prefix in 0..RESERVED_PREFIXES.len()) {
            let prefix = RESERVED_PREFIXES[prefix];
            prop_assert_eq!(check_reserved(&format!("{prefix}{key}")), Err(ReservedKey { prefix }));
            prop_assert_eq!(check_reserved(&format!("x{prefix}{key}")), Ok(()));
        }
    }
}
