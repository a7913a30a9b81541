//! Signatures of requests and of responses to them: Standard Webhooks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guildhall_core::time::UnixMs;
use http::HeaderMap;

use super::Secret;

/// Maximum difference between the time of a response's signature and the current time, in seconds: as Standard Webhooks
/// recommends.
const TOLERANCE_SECONDS: u64 = 5 * 60;
/// Maximum number of signatures of one response that are compared.
const MAX_SIGNATURES: usize = 16;

/// Values of `webhook-timestamp` and `webhook-signature`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SignatureHeaders {
    /// Seconds since 1970.
    pub(super) timestamp: String,
    /// One signature for each secret: a receiver needs only one of the secrets, so that a secret can be changed without
    /// downtime.
    pub(super) signatures: String,
}

/// Signs `id.timestamp.body` with each of the secrets.
pub(super) fn sign(secrets: &[Secret], id: &str, body: &[u8], now: UnixMs) -> SignatureHeaders {
    let timestamp = (now.millis() / 1_000).to_string();
    let signed: Vec<String> = secrets
        .iter()
        .map(|secret| {
            let tag = secret.sign(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
            format!("v1,{}", STANDARD.encode(tag))
        })
        .collect();
    SignatureHeaders { signatures: signed.join(" "), timestamp }
}

/// Reason why a response does not count as signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignatureError {
    #[error("it is not signed: it has no `webhook-signature` header")]
    Missing,
    #[error("its `{0}` header is missing, repeated or malformed")]
    Header(&'static str),
    #[error("its `webhook-id` must be `{expected}`: that of the request, its `webhook-timestamp` and `answer`")]
    Id { expected: String },
    #[error("its `webhook-timestamp` is more than {TOLERANCE_SECONDS} s from the current time; check both clocks")]
    Timestamp,
    #[error(
        "its `webhook-signature` does not match; check the secret, and that the signature is of the exact body \
        that is sent"
    )]
    Mismatch,
}

/// Returns the `webhook-id` of the response to a request. It contains the request's id and time, so that a response to
/// another request does not match; no request has such an id, so that a request cannot be sent back as its own
/// response.
fn response_id(id: &str, timestamp: &str) -> String {
    format!("{id}:{timestamp}:answer")
}

/// Verifies the signature of the response to a request with this id and timestamp. Any secret of the handler is
/// accepted.
pub(super) fn verify(
    secrets: &[Secret],
    id: &str,
    timestamp: &str,
    headers: &HeaderMap,
    body: &[u8],
    now: UnixMs,
) -> Result<(), SignatureError> {
    if !headers.contains_key("webhook-signature") {
        return Err(SignatureError::Missing);
    }
    let single_header = |name| {
        let mut values = headers.get_all(name).iter();
        let one = values.next().filter(|_| values.next().is_none());
        one.and_then(|value| value.to_str().ok()).ok_or(SignatureError::Header(name))
    };
    let (signatures, given_id, signed_at) =
        (single_header("webhook-signature")?, single_header("webhook-id")?, single_header("webhook-timestamp")?);
    let expected = response_id(id, timestamp);
    if given_id != expected {
        return Err(SignatureError::Id { expected });
    }
    let is_number = !signed_at.is_empty() && signed_at.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: Option<u64> = signed_at.parse().ok().filter(|_| is_number);
    let seconds = seconds.ok_or(SignatureError::Header("webhook-timestamp"))?;
    if seconds.abs_diff(now.millis() / 1_000) > TOLERANCE_SECONDS {
        return Err(SignatureError::Timestamp);
    }
    let signed = [expected.as_bytes(), b".", signed_at.as_bytes(), b".", body].concat();
    let tags =
        signatures.split(' ').take(MAX_SIGNATURES).filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    let matches = |tag: Vec<u8>| secrets.iter().any(|secret| secret.verify(&signed, &tag));
    if tags.into_iter().any(matches) { Ok(()) } else { Err(SignatureError::Mismatch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        format!("whsec_{}", STANDARD.encode([byte; 24])).parse().unwrap()
    }

    /// Headers of a response.
    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

    fn signed_with(secrets: &[Secret], id: &str, at: u64, body: &[u8]) -> HeaderMap {
        let signed = sign(secrets, id, body, UnixMs::new(at * 1_000));
        headers(&[
            ("webhook-id", id),
            ("webhook-timestamp", &signed.timestamp),
            ("webhook-signature", &signed.signatures),
        ])
    }

    fn verified(secrets: &[Secret], headers: &HeaderMap) -> Result<(), SignatureError> {
        verify(secrets, "abc-7-greet", "1699999999", headers, b"{}", NOW)
    }

    const ID: &str = "abc-7-greet:1699999999:answer";

    #[test]
    fn response_signed_with_any_secret_is_verified() {
        let (old, new) = (secret(1), secret(2));
        let both = [old.clone(), new.clone()];
        for signer in [&both[..1], &both[1..], &both[..], &[secret(3), new.clone()]] {
            assert_eq!(verified(&both, &signed_with(signer, ID, 1_700_000_000, b"{}")), Ok(()));
        }
        assert_eq!(
            verified(&both[..1], &signed_with(&both[1..], ID, 1_700_000_000, b"{}")),
            Err(SignatureError::Mismatch)
        );
    }

    #[test]
    fn response_to_another_request_is_rejected() {
        let secrets = [secret(1)];
        for id in [
            // The request itself, sent back.
            "abc-7-greet",
            // An earlier response to the same event.
            "abc-7-greet:1699999998:answer",
            // Responses to another event and another handler.
            "abc-8-greet:1699999999:answer",
            "abc-7-other:1699999999:answer",
            "",
        ] {
            let error = verified(&secrets, &signed_with(&secrets, id, 1_700_000_000, b"{}")).unwrap_err();
            assert_eq!(error, SignatureError::Id { expected: ID.to_owned() }, "{id}");
        }
    }

    #[test]
    fn the_time_of_a_signature_may_be_five_minutes_off() {
        let secrets = [secret(1)];
        for (at, expected) in [
            (1_700_000_000 - 300, Ok(())),
            (1_700_000_000 + 300, Ok(())),
            (1_700_000_000 - 301, Err(SignatureError::Timestamp)),
            (1_700_000_000 + 301, Err(SignatureError::Timestamp)),
            (0, Err(SignatureError::Timestamp)),
        ] {
            assert_eq!(verified(&secrets, &signed_with(&secrets, ID, at, b"{}")), expected, "{at}");
        }
    }

    #[test]
    fn malformed_and_repeated_headers_are_refused() {
        let secrets = [secret(1)];
        let good = signed_with(&secrets, ID, 1_700_000_000, b"{}");
        assert_eq!(verified(&secrets, &HeaderMap::new()), Err(SignatureError::Missing));
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut twice = good.clone();
            let value = twice[name].clone();
            twice.append(name, value);
            assert_eq!(verified(&secrets, &twice), Err(SignatureError::Header(name)));
            let mut missing = good.clone();
            missing.remove(name);
            assert!(verified(&secrets, &missing).is_err(), "{name}");
        }
        let tag = good["webhook-signature"].to_str().unwrap().to_owned();
        for (name, value, expected) in [
            ("webhook-timestamp", "+1700000000", SignatureError::Header("webhook-timestamp")),
            ("webhook-timestamp", "99999999999999999999999", SignatureError::Header("webhook-timestamp")),
            ("webhook-timestamp", "1700000001", SignatureError::Mismatch),
            ("webhook-signature", "", SignatureError::Mismatch),
            ("webhook-signature", "v1,", SignatureError::Mismatch),
            ("webhook-signature", "v1,AAAA", SignatureError::Mismatch),
            ("webhook-signature", &tag.replace("v1,", "v1a,"), SignatureError::Mismatch),
            ("webhook-signature", &tag.replace("v1,", ""), SignatureError::Mismatch),
            ("webhook-signature", &format!("{}{tag}", "v1,AAAA ".repeat(16)), SignatureError::Mismatch),
        ] {
            let mut changed = good.clone();
            changed.insert(name, value.parse().unwrap());
            assert_eq!(verified(&secrets, &changed), Err(expected), "{name}: {value}");
        }
        let mut late = good.clone();
        late.insert("webhook-signature", format!("v2,x {}{tag}", "v1,AAAA ".repeat(14)).parse().unwrap());
        assert_eq!(verified(&secrets, &late), Ok(()), "one of them matches");
        let other_body = verify(&secrets, "abc-7-greet", "1699999999", &good, b"{ }", NOW);
        assert_eq!(other_body, Err(SignatureError::Mismatch));
    }

    /// The test vectors of RFC 4231 whose keys are long enough for a secret.
    #[test]
    fn tags_match_rfc_4231() {
        let hex = |text: &str| -> Vec<u8> {
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
        };
        let key: Vec<u8> = (0x01..=0x19).collect();
        let secret: Secret = format!("whsec_{}", STANDARD.encode(key)).parse().unwrap();
        let tag = secret.sign(&[&[0xcd; 20], &[0xcd; 30]]);
        let expected = "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b";
        assert_eq!(tag.as_ref(), hex(expected));
    }

    #[test]
    fn each_secret_signs_all_parts() {
        let secrets: Vec<Secret> = [[1; 24], [2; 24]]
            .iter()
            .map(|bytes| format!("whsec_{}", STANDARD.encode(bytes)).parse().unwrap())
            .collect();
        let at = UnixMs::new(1_700_000_000_999);
        let both = sign(&secrets, "id", b"{}", at);
        assert_eq!(both.timestamp, "1700000000");
        let (first, second) = (sign(&secrets[..1], "id", b"{}", at), sign(&secrets[1..], "id", b"{}", at));
        assert_eq!(both.signatures, format!("{} {}", first.signatures, second.signatures));
        assert_ne!(first.signatures, second.signatures);
        for other in [
            sign(&secrets[..1], "it", b"{}", at),
            sign(&secrets[..1], "id", b"[]", at),
            sign(&secrets[..1], "id", b"{}", UnixMs::new(1_700_000_001_000)),
        ] {
            assert_ne!(other.signatures, first.signatures);
        }
    }
}
