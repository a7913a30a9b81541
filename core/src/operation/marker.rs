//! The sign by which an operation's own work is known again in Discord.

use std::fmt;

use super::OperationId;

/// Crockford's alphabet: nothing in it is taken for something else.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 100 bits. A message's nonce holds 25 characters.
const LENGTH: u32 = 20;

/// An operation's sign: it goes out with every call that makes something, in the audit log's reason or as a message's
/// nonce, and is the same for every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marker(OperationId);

impl Marker {
    /// The sign of this operation.
    #[must_use]
    pub const fn of(id: OperationId) -> Self {
        Self(id)
    }

    /// A reason for the audit log that carries the sign, within the length that Discord keeps.
    #[must_use]
    pub fn reason(self, reason: Option<&str>) -> String {
        let tag = self.tag();
        match reason {
            None | Some("") => tag,
            Some(reason) => {
                let room = 512 - 1 - tag.chars().count();
                let kept: String = reason.chars().take(room).collect();
                format!("{kept} {tag}")
            }
        }
    }

    /// The sign as it stands in a reason.
    #[must_use]
    pub fn tag(self) -> String {
        format!("[gh:{self}]")
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.uuid().as_u128();
        for place in (0..LENGTH).rev() {
            let letter = (bits >> (place * 5)) as usize & 31;
            fmt::Write::write_char(f, char::from(ALPHABET[letter]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_fits_a_nonce_and_any_reason() {
        let marker = Marker::of(OperationId::new(1_700_000_000_000, [0xa5; 10]));
        assert_eq!(marker.to_string().len(), 20);
        assert_eq!(marker.reason(None), format!("[gh:{marker}]"));
        assert_eq!(marker.reason(Some("asked for")), format!("asked for [gh:{marker}]"));
        let long = marker.reason(Some(&"ü".repeat(600)));
        assert_eq!(long.chars().count(), 512);
        assert!(long.ends_with(&marker.tag()));
        assert_ne!(Marker::of(OperationId::new(1_700_000_000_000, [0xa6; 10])).to_string(), marker.to_string());
    }
}
