//! Markers, by which the effect of an operation is found again in Discord.

use std::fmt;

use super::OperationId;

/// Crockford's alphabet: it has no characters that look alike.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 100 bits. A message's nonce holds 25 characters.
const LENGTH: u32 = 20;

/// Marker of an operation. It is sent with every call that creates something, in the audit log reason or as the message
/// nonce, and is the same for every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marker(OperationId);

impl Marker {
    /// The marker of this operation.
    #[must_use]
    pub const fn of(id: OperationId) -> Self {
        Self(id)
    }

    /// An audit log reason with the marker, within Discord's maximum length.
    #[must_use]
    pub fn reason(self, reason: Option<&str>) -> String {
        let tag = self.tag();
        match reason {
            None | Some("") => tag,
            Some(reason) => {
                let room = 512 - 1 - tag.chars().count();
                let truncated: String = reason.chars().take(room).collect();
                format!("{truncated} {tag}")
            }
        }
    }

    /// The marker as written in a reason.
    #[must_use]
    pub fn tag(self) -> String {
        format!("[gh:{self}]")
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.uuid().as_u128();
        for position in (0..LENGTH).rev() {
            let letter = (bits >> (position * 5)) as usize & 31;
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
