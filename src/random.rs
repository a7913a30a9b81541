//! Randomness that nobody can guess, from the system.

use rustls::crypto::ring;

/// The system has no random bytes to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomError;

/// So many random bytes.
pub(crate) fn bytes<const COUNT: usize>() -> Result<[u8; COUNT], RandomError> {
    let mut bytes = [0; COUNT];
    ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| RandomError)?;
    Ok(bytes)
}
