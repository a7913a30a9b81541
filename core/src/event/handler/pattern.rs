//! Patterns of event names: words separated by dots, `*` for exactly one word, `#` for any number of words.

use std::fmt;

use super::names;
use crate::operation::payload::{field_reader::nearest, validation::truncated};

/// Maximum length of a pattern.
const MAX_PATTERN_BYTES: usize = 200;

/// A pattern of event names: `member.join`, `interaction.command.*`, `message.#`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPattern {
    text: String,
    words: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// Exactly this word.
    Word(String),
    /// `*`: any one word.
    One,
    /// `#`: any number of words, including none.
    Any,
}

impl EventPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// When it is not a pattern, or no event can match it; the message says what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            return Err(format!(
                "must be a pattern of 1 to {MAX_PATTERN_BYTES} bytes, such as `member.join` or `message.*`"
            ));
        }
        let words = text.split('.').map(Segment::parse).collect::<Result<Vec<_>, _>>()?;
        let pattern = Self { text: text.to_owned(), words };
        match pattern.find_error() {
            Some(flaw) => Err(flaw),
            None => Ok(pattern),
        }
    }

    /// The text of the pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the name of an event matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let names: Vec<&str> = name.split('.').collect();
        let (mut at, mut word) = (0, 0);
        // The last `#`, and the position at which the words after it were tried.
        let mut any: Option<(usize, usize)> = None;
        while at < names.len() {
            match self.words.get(word) {
                Some(Segment::Any) => {
                    any = Some((word, at));
                    word += 1;
                    continue;
                }
                Some(Segment::One) => {
                    at += 1;
                    word += 1;
                    continue;
                }
                Some(Segment::Word(is)) if is == names[at] => {
                    at += 1;
                    word += 1;
                    continue;
                }
                Some(Segment::Word(_)) | None => {}
            }
            // The `#` takes one more word.
            let Some((hash, tried)) = any else { return false };
            any = Some((hash, tried + 1));
            (word, at) = (hash + 1, tried + 1);
        }
        self.words[word..].iter().all(|word| *word == Segment::Any)
    }

    /// Whether it can match interactions.
    #[must_use]
    pub fn can_match_interactions(&self) -> bool {
        match self.words.first() {
            Some(Segment::Word(first)) => first == "interaction",
            Some(Segment::One | Segment::Any) | None => true,
        }
    }

    /// Why no event can match, if that is known.
    fn find_error(&self) -> Option<String> {
        let Some(Segment::Word(first)) = self.words.first() else { return None };
        let starts = || {
            names::KNOWN_EVENTS
                .iter()
                .copied()
                .map(|name| name.split('.').next().unwrap_or(name))
                .chain(["interaction"])
        };
        let known_start = starts().any(|start| start == first);
        let plain = self.words.iter().all(|word| matches!(word, Segment::Word(_)));
        if !plain {
            let meant = if known_start { None } else { nearest(first, starts()) };
            return meant.map(|meant| {
                let rest = self.text.strip_prefix(first.as_str()).unwrap_or_default();
                format!("has an unknown first word; did you mean `{meant}{}`?", truncated(rest))
            });
        }
        if first == "interaction" {
            return self.interaction_error();
        }
        if names::KNOWN_EVENTS.iter().copied().any(|name| name == self.text) {
            return None;
        }
        let hint = match nearest(&self.text, names::KNOWN_EVENTS.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "docs/handlers.md lists the names".to_owned(),
        };
        Some(format!(
            "is not the name of an event; {hint} (For an event that is newer than this version, use `*` for one of its \
             words.)"
        ))
    }

    fn interaction_error(&self) -> Option<String> {
        let Some(Segment::Word(kind)) = self.words.get(1) else {
            return Some("is not the name of an event; for all interactions use `interaction.#`".to_owned());
        };
        if !names::INTERACTIONS.contains(&kind.as_str()) {
            let all = names::INTERACTIONS.map(|kind| format!("`interaction.{kind}.*`")).join(", ");
            return Some(format!("is not the name of an event; interactions are {all}"));
        }
        match self.words.len() {
            3 => None,
            _ => Some(format!(
                "is not the name of an event; use `interaction.{kind}.` and one name, or `interaction.{kind}.*` for \
                 all"
            )),
        }
    }
}

impl Segment {
    fn parse(word: &str) -> Result<Self, String> {
        match word {
            "" => Err("must not contain an empty word: put exactly one dot between words".to_owned()),
            "*" => Ok(Self::One),
            "#" => Ok(Self::Any),
            word if word.contains(['*', '#']) => {
                Err("must contain `*` and `#` only as separate words: `message.*`, not `message*`".to_owned())
            }
            word if word.chars().any(|c| c.is_whitespace() || c.is_control()) => {
                Err("must not contain white space".to_owned())
            }
            word => Ok(Self::Word(word.to_owned())),
        }
    }
}

impl fmt::Display for EventPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> EventPattern {
        EventPattern::parse(text).unwrap()
    }

    #[test]
    fn a_star_is_exactly_one_word_and_a_hash_any_number_of_them() {
        for (given, name, matches) in [
            ("member.join", "member.join", true),
            ("member.join", "member.leave", false),
            ("member.*", "member.join", true),
            ("message.*", "message", false),
            ("message.*", "message.delete.bulk", false),
            ("message.#", "message.delete.bulk", true),
            ("message.#", "message", true),
            ("#", "anything.at.all", true),
            ("*.create", "role.create", true),
            ("#.create", "create", true),
            ("#.a.#.b", "a.x.a.y.b", true),
            ("#.a.#.b", "a.x.a.y.c", false),
            ("interaction.command.hello", "interaction.command.hello", true),
            ("interaction.command.hello", "interaction.command.hello2", false),
        ] {
            assert_eq!(pattern(given).matches(name), matches, "{given} {name}");
        }
    }

    #[test]
    fn a_pattern_that_no_event_could_match_gets_a_hint() {
        for (given, hint) in [
            ("members.join", "did you mean `member.join`?"),
            ("members.*", "did you mean `member.*`?"),
            ("member.joined", "did you mean `member.join`?"),
            ("interaction.comand.hello", "`interaction.command.*`"),
            ("interaction.command", "`interaction.command.*` for all"),
            ("interaction.command.a.b", "one name"),
            ("qqq", "docs/handlers.md"),
            ("", "1 to 200"),
            ("member..join", "empty word"),
            ("member*", "separate words"),
            ("member. join", "white space"),
        ] {
            let message = EventPattern::parse(given).unwrap_err();
            assert!(message.contains(hint), "{given}: {message}");
        }
        for given in ["#", "*.join", "some.new.*", "interaction.#", "interaction.button.*", "interaction.modal.a-b_c"] {
            pattern(given);
        }
    }

    /// Direct implementation of RabbitMQ's topic semantics.
    fn naive(pattern: &[&str], name: &[&str]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (["#", rest @ ..], _) => (0..=name.len()).any(|taken| naive(rest, &name[taken..])),
            (["*", rest @ ..], [_, left @ ..]) => naive(rest, left),
            ([word, rest @ ..], [first, left @ ..]) => word == first && naive(rest, left),
            ([_, ..], []) | ([], [_, ..]) => false,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_naive_implementation(
            words in prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just("*"), Just("#")], 1..7),
            name in prop::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 1..7),
        ) {
            let read = words.iter().map(|word| Segment::parse(word).unwrap()).collect();
            let pattern = EventPattern { text: words.join("."), words: read };
            prop_assert_eq!(pattern.matches(&name.join(".")), naive(&words, &name));
        }
    }
}
