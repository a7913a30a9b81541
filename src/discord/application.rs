//! Reads the application id from a token.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

use crate::settings::SecretValue;

/// Returns the application id, which is the first part of the token in base64. `None` for a token of another format,
/// such as those of simulators.
#[must_use]
pub fn application_id(token: &SecretValue) -> Option<u64> {
    let first = token.expose().split('.').next()?.trim_end_matches('=');
    let id = STANDARD_NO_PAD.decode(first).ok()?;
    std::str::from_utf8(&id).ok()?.parse().ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_id_is_the_first_part_of_a_token() {
        assert_eq!(
            application_id(&SecretValue::new("MTIzNDU2Nzg5MDEyMzQ1Njc4.abc.def")),
            Some(123_456_789_012_345_678)
        );
        assert_eq!(application_id(&SecretValue::new("sim-bot-token")), None);
        assert_eq!(application_id(&SecretValue::new("")), None);
    }
}
