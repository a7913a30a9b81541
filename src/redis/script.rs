//! Lua that runs inside Redis.

/// A script: its text, and the hash by which a server that has seen it knows it.
#[derive(Clone, Debug)]
pub struct Script {
    name: &'static str,
    text: &'static str,
    sha: String,
}

impl Script {
    /// Takes the text as it is. `name` is what metrics call it.
    #[must_use]
    pub fn new(name: &'static str, text: &'static str) -> Self {
        let sha = ::redis::Script::new(text).get_hash().to_owned();
        Self { name, text, sha }
    }

    /// What metrics call it.
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
