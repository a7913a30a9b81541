//! Verifies that Discord sent a request: an Ed25519 signature of the time and the raw body.

use std::time::Duration;

use actix_web::http::header::HeaderMap;
use ed25519_dalek::Signature;
use guildhall_core::time::UnixMs;

use crate::settings::{PublicKey, from_hex};

const SIGNATURE: &str = "x-signature-ed25519";
const TIMESTAMP: &str = "x-signature-timestamp";

/// Maximum number of digits of a time in seconds, which reaches the year 5138.
const MAX_DIGITS: usize = 11;

/// Why a request is not accepted as one from Discord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureRejection {
    /// A header is missing or malformed.
    Headers,
    /// The time of the signature is outside the window.
    Time,
    /// The signature was made with another key, or for other content.
    Signature,
}

impl SignatureRejection {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Time => "time",
            Self::Signature => "signature",
        }
    }
}

/// The signature of a request, before its body is read.
#[derive(Clone, Debug)]
pub(crate) struct InteractionSignature {
    signature: Signature,
    timestamp: String,
}

impl InteractionSignature {
    /// Reads the headers; the time must be the current one, give or take the window.
    pub(crate) fn read(headers: &HeaderMap, now: UnixMs, window: Duration) -> Result<Self, SignatureRejection> {
        let one = |name| {
            let mut all = headers.get_all(name);
            all.next()
                .filter(|_| all.next().is_none())
                .and_then(|value| value.to_str().ok())
                .ok_or(SignatureRejection::Headers)
        };
        let signature = Signature::from_bytes(&from_hex(one(SIGNATURE)?).ok_or(SignatureRejection::Headers)?);
        let timestamp = one(TIMESTAMP)?;
        let plain = (1..=MAX_DIGITS).contains(&timestamp.len()) && timestamp.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: u64 = timestamp.parse().ok().filter(|_| plain).ok_or(SignatureRejection::Headers)?;
        let apart = Duration::from_millis(now.millis().abs_diff(seconds * 1_000));
        if apart > window {
            return Err(SignatureRejection::Time);
        }
        Ok(Self { signature, timestamp: timestamp.to_owned() })
    }

    /// Verifies that this body was signed with this key.
    pub(crate) fn verify(&self, key: &PublicKey, body: &[u8]) -> Result<(), SignatureRejection> {
        let mut signed = Vec::with_capacity(self.timestamp.len() + body.len());
        signed.extend_from_slice(self.timestamp.as_bytes());
        signed.extend_from_slice(body);
        key.verifying_key().verify_strict(&signed, &self.signature).map_err(|_| SignatureRejection::Signature)
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};
    use ed25519_dalek::{Signer as _, SigningKey};
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }

    fn public() -> PublicKey {
        hex(key().verifying_key().as_bytes()).parse().unwrap()
    }

    fn headers(signature: &str, timestamp: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(SIGNATURE), HeaderValue::from_str(signature).unwrap());
        headers.insert(HeaderName::from_static(TIMESTAMP), HeaderValue::from_str(timestamp).unwrap());
        headers
    }

    fn check(headers: &HeaderMap, now: u64, body: &[u8]) -> Result<(), SignatureRejection> {
        InteractionSignature::read(headers, UnixMs::new(now), WINDOW)?.verify(&public(), body)
    }

    #[test]
    fn signature_is_accepted_only_within_the_window() {
        let signature = hex(&key().sign(b"1000{}").to_bytes());
        let headers = headers(&signature, "1000");
        for now in [700_000, 1_000_000, 1_300_000] {
            assert_eq!(check(&headers, now, b"{}"), Ok(()), "{now}");
        }
        for now in [0, 699_999, 1_300_001, u64::MAX] {
            assert_eq!(check(&headers, now, b"{}"), Err(SignatureRejection::Time), "{now}");
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        let good = hex(&key().sign(b"1000{}").to_bytes());
        for (signature, timestamp) in [
            ("", "1000"),
            (&good[2..], "1000"),
            (&good.replace(&good[..1], "x"), "1000"),
            (&good, ""),
            (&good, "+1000"),
            (&good, "1000.0"),
            (&good, "-1000"),
            (&good, "99999999999999999999"),
        ] {
            assert_eq!(
                check(&headers(signature, timestamp), 1_000_000, b"{}"),
                Err(SignatureRejection::Headers),
                "{timestamp}"
            );
        }
        let mut twice = headers(&good, "1000");
        twice.append(HeaderName::from_static(TIMESTAMP), HeaderValue::from_static("1000"));
        assert_eq!(check(&twice, 1_000_000, b"{}"), Err(SignatureRejection::Headers));
        assert_eq!(check(&HeaderMap::new(), 1_000_000, b"{}"), Err(SignatureRejection::Headers));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn flipped_bit_invalidates_the_signature(body in prop::collection::vec(any::<u8>(), 1..200), bit: usize, part in 0..3) {
            let mut signed = b"1000".to_vec();
            signed.extend(&body);
            let mut signature = key().sign(&signed).to_bytes();
            let (mut body, mut time) = (body, "1000");
            prop_assert_eq!(check(&headers(&hex(&signature), time), 1_000_000, &body), Ok(()));
            match part {
                0 => signature[bit / 8 % 64] ^= 1 << (bit % 8),
                1 => { let at = bit / 8 % body.len(); body[at] ^= 1 << (bit % 8); }
                _ => time = "1001",
            }
            prop_assert_eq!(check(&headers(&hex(&signature), time), 1_000_000, &body), Err(SignatureRejection::Signature));
        }
    }
}
