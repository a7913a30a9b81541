//! Which application a token belongs to.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

use crate::settings::SecretValue;

/// The application's id, which is the token's first part in base64. `None` for a token of another form, as simulators
/// give them out.
#[must_use]
pub fn application_of(token: &SecretValue) -> Option<u64> {
    let first = token.expose().split('.').next()?.trim_end_matches('=');
    let id = STANDARD_NO_PAD.decode(first).ok()?;
    std::str::from_utf8(&id).ok()?.parse().ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_of_a_token_names_its_application() {
        assert_eq!(
            application_of(&SecretValue::new("MTIzNDU2Nzg5MDEyMzQ1Njc4.abc.def")),
            Some(123_456_789_012_345_678)
        );
        assert_eq!(application_of(&SecretValue::new("sim-bot-token")), None);
        assert_eq!(application_of(&SecretValue::new("")), None);
    }
}
