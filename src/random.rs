//! Cryptographically secure random bytes from the system.

use rustls::crypto::ring;

/// The system could not provide random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomError;

/// Returns `COUNT` random bytes.
pub(crate) fn bytes<const COUNT: usize>() -> Result<[u8; COUNT], RandomError> {
    let mut bytes = [0; COUNT];
    ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| RandomError)?;
    Ok(bytes)
}
