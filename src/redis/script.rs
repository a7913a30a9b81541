//! Lua scripts that run inside Redis.

/// A script: its text, and the hash by which a server that has loaded it finds it.
#[derive(Clone, Debug)]
pub struct Script {
    name: &'static str,
    text: &'static str,
    sha: String,
}

impl Script {
    /// Creates a script from its text. `name` is its name in metrics.
    #[must_use]
    pub fn new(name: &'static str, text: &'static str) -> Self {
        let sha = ::redis::Script::new(text).get_hash().to_owned();
        Self { name, text, sha }
    }

    /// Name in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    pub(super) fn sha(&self) -> &str {
        &self.sha
    }
}
