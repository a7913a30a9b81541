//! What events are called: `member.join`, `interaction.command.hello`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The name of an event, which is also its routing key: words with dots between them.
#[derive(Clone, Debug)]
pub enum EventName {
    /// One of those that everybody knows.
    Known(&'static str),
    /// One with a part that somebody chose: a command's name, a button's id, a type that is newer than this program.
    Other(Arc<str>),
}

impl EventName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(name) => name,
            Self::Other(name) => name,
        }
    }
}

impl PartialEq for EventName {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for EventName {}

impl Hash for EventName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
