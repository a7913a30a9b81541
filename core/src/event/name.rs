//! Names of events: `member.join`, `interaction.command.hello`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The name of an event, which is also its routing key: words separated by dots.
#[derive(Clone, Debug)]
pub enum EventName {
    /// A fixed name.
    Known(&'static str),
    /// A name with a variable part: a command name, a button id, or an event type that this version does not know.
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

    /// Name of a type that this version does not know: `SOME_NEW_EVENT` becomes `some.new.event`.
    pub(super) fn from_unknown_type(t: &str) -> Self {
        let parts = truncated(t).split('_').filter(|part| !part.is_empty());
        let words = parts.map(|part| sanitized_word(&part.to_ascii_lowercase())).collect::<Vec<_>>();
        Self::Other(if words.is_empty() { Arc::from("_") } else { words.join(".").into() })
    }

    /// Name of a command or an autocomplete: command names consist of letters of any script.
    pub(super) fn for_command(kind: &str, name: &str) -> Self {
        Self::Other(format!("interaction.{kind}.{}", sanitized_word(name)).into())
    }

    /// Name of something with a custom id. Only the part before the first character that is not a letter, digit, `_` or
    /// `-` counts; the rest is the bot author's: `vote:7` is a `vote`.
    pub(super) fn for_custom_id(kind: &str, custom_id: &str) -> Self {
        let end = custom_id.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        Self::Other(
            format!("interaction.{kind}.{}", sanitized_word(&custom_id[..end.unwrap_or(custom_id.len())])).into(),
        )
    }
}

/// Maximum length of the variable part of a name in bytes. It fits into a broker's routing key.
const MAX_PART_BYTES: usize = 100;

/// One word of a name: replaces separators and wildcards, and is never empty.
fn sanitized_word(chosen: &str) -> String {
    let sanitize = |c: char| match c {
        '_' | '-' => c,
        // Some scripts combine several characters into a letter, and not all of them are letters.
        _ if c.is_alphanumeric() || !(c.is_ascii() || c.is_whitespace() || c.is_control()) => c,
        _ => '_',
    };
    if chosen.is_empty() { "_".to_owned() } else { truncated(chosen).chars().map(sanitize).collect() }
}

fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_PART_BYTES)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_type_is_named_by_the_same_rule() {
        for (t, name) in [
            ("SOME_NEW_EVENT", "some.new.event"),
            ("ONE", "one"),
            ("TWICE__DIVIDED_", "twice.divided"),
            ("STRANGE.*#_THING 7", "strange___.thing_7"),
            ("", "_"),
            ("___", "_"),
        ] {
            assert_eq!(EventName::from_unknown_type(t).as_str(), name, "{t}");
        }
    }

    #[test]
    fn command_name_keeps_letters_of_any_script() {
        for (chosen, name) in [
            ("hello", "interaction.command.hello"),
            ("grüße-ミ_7", "interaction.command.grüße-ミ_7"),
            ("नमस्ते", "interaction.command.नमस्ते"),
            ("Report message", "interaction.command.Report_message"),
            ("a.b*c#d", "interaction.command.a_b_c_d"),
            ("a\u{3000}b\u{85}c", "interaction.command.a_b_c"),
            ("", "interaction.command._"),
        ] {
            assert_eq!(EventName::for_command("command", chosen).as_str(), name);
        }
    }

    #[test]
    fn custom_id_counts_up_to_its_first_separator() {
        for (chosen, name) in [
            ("vote:7", "interaction.button.vote"),
            ("Vote_a-1", "interaction.button.Vote_a-1"),
            ("vote.7", "interaction.button.vote"),
            ("über", "interaction.button._"),
            ("", "interaction.button._"),
        ] {
            assert_eq!(EventName::for_custom_id("button", chosen).as_str(), name);
        }
    }

    #[test]
    fn variable_part_is_truncated_at_a_character() {
        let long = "ü".repeat(100);
        assert_eq!(
            EventName::for_command("command", &long).as_str(),
            format!("interaction.command.{}", "ü".repeat(50))
        );
        let odd = format!("a{long}");
        assert_eq!(
            EventName::for_command("command", &odd).as_str(),
            format!("interaction.command.a{}", "ü".repeat(49))
        );
        assert_eq!(EventName::from_unknown_type(&"A_".repeat(100)).as_str().len(), 99);
    }
}
