//! How a request says who sent it: Standard Webhooks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guildhall_core::time::UnixMs;

use super::Secret;

/// What stands in `webhook-timestamp` and `webhook-signature`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Signed {
    /// Seconds since 1970.
    pub(super) timestamp: String,
    /// One signature a secret: whoever knows any of them can check it, so that a secret can be changed without a pause.
    pub(super) signatures: String,
}

/// Signs `id.timestamp.body` with each of the secrets.
pub(super) fn sign(secrets: &[Secret], id: &str, body: &[u8], now: UnixMs) -> Signed {
    let timestamp = (now.millis() / 1_000).to_string();
    let signed: Vec<String> = secrets
        .iter()
        .map(|secret| {
            let tag = secret.sign(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
            format!("v1,{}", STANDARD.encode(tag))
        })
        .collect();
    Signed { signatures: signed.join(" "), timestamp }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 4231 whose keys are long enough to be a secret's.
    #[test]
    fn tags_are_those_of_the_standard() {
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
    fn each_secret_has_its_own_signature_and_each_part_counts() {
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
