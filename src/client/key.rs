//! The API key of a client, and its origin.

use std::{fs, io, path::Path};

use http::HeaderValue;

use crate::settings::SecretValue;

/// Maximum size of a key file, in bytes. A larger file is something else.
const MAX_FILE_BYTES: u64 = 4 * 1024;

/// An API key and its origin, so that a user can find the invalid one.
#[derive(Clone, Debug)]
pub struct ClientKey {
    header: HeaderValue,
    origin: String,
}

/// A source contains no usable key.
#[derive(Debug, thiserror::Error)]
pub enum ClientKeyError {
    /// A file cannot be read.
    #[error("cannot read the key in {file}: {error}")]
    Read {
        /// Path of the file.
        file: String,
        /// Cause of the failure.
        error: io::Error,
    },
    /// The text is not a key.
    #[error("{0} contains no valid key: a key is a single line of printable characters without spaces, such as gh_…")]
    Form(
        /// Origin of the text.
        String,
    ),
}

impl ClientKey {
    /// Creates a key that came from `origin`.
    ///
    /// # Errors
    ///
    /// If the text cannot be a key.
    pub fn new(key: &SecretValue, origin: impl Into<String>) -> Result<Self, ClientKeyError> {
        let (origin, key) = (origin.into(), key.expose().trim());
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ClientKeyError::Form(origin));
        }
        let Ok(mut header) = HeaderValue::from_str(&format!("Bearer {key}")) else {
            return Err(ClientKeyError::Form(origin));
        };
        header.set_sensitive(true);
        Ok(Self { header, origin })
    }

    /// Reads the key in a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or contains no key.
    pub fn from_file(file: &Path) -> Result<Self, ClientKeyError> {
        let displayed = file.display().to_string();
        let read = |error| ClientKeyError::Read { file: displayed.clone(), error };
        if fs::metadata(file).map_err(read)?.len() > MAX_FILE_BYTES {
            return Err(ClientKeyError::Form(displayed));
        }
        match fs::read_to_string(file) {
            Ok(text) => Self::new(&SecretValue::new(text), displayed),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(ClientKeyError::Form(displayed)),
            Err(error) => Err(read(error)),
        }
    }

    /// Origin of the key: an option, a variable or a file.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_one_word_and_never_displayed() {
        let key = ClientKey::new(&SecretValue::new("gh_a_b\n"), "--key").unwrap();
        assert_eq!(key.header().to_str().unwrap(), "Bearer gh_a_b");
        assert!(!format!("{key:?}").contains("gh_a_b"), "{key:?}");
        for invalid in ["", " ", "two words", "a\nb", "ü"] {
            assert!(
                matches!(ClientKey::new(&SecretValue::new(invalid), "--key"), Err(ClientKeyError::Form(_))),
                "{invalid}"
            );
        }
    }

    #[test]
    fn file_without_a_key_is_named_but_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        assert!(matches!(ClientKey::from_file(&file), Err(ClientKeyError::Read { .. })));
        for invalid in [&b"a b"[..], b"\xff\xfe", &[b'a'; 5_000]] {
            fs::write(&file, invalid).unwrap();
            let message = ClientKey::from_file(&file).unwrap_err().to_string();
            assert!(message.contains("contains no valid key") && message.contains(file.to_str().unwrap()), "{message}");
        }
        fs::write(&file, "gh_1_2\r\n").unwrap();
        assert_eq!(ClientKey::from_file(&file).unwrap().origin(), file.to_str().unwrap());
    }
}
