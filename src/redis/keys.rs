//! Names of keys and channels in Redis.

/// Builds the keys of one application: `guildhall:{<application>}:<rest>`.
///
/// The braces make the application's id the part that a cluster hashes. All keys of an application are therefore on one
/// node, and one script may use any of them.
#[derive(Clone, Debug)]
pub struct RedisKeys {
    prefix: String,
}

impl RedisKeys {
    /// Creates the keys of this application.
    #[must_use]
    pub fn new(application: u64) -> Self {
        Self { prefix: format!("guildhall:{{{application}}}:") }
    }

    /// Returns the key (or channel) with this name.
    #[must_use]
    pub fn of(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_an_application_share_a_hash_tag() {
        let keys = RedisKeys::new(42);
        assert_eq!(keys.of("breakers"), "guildhall:{42}:breakers");
        assert_eq!(keys.of("budget:{x}"), "guildhall:{42}:budget:{x}");
    }
}
