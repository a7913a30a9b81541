//! Compares objects in Discord with requested ones. Discord normalizes what it stores: names of text channels are in
//! lowercase, texts are trimmed, embeds and components have more fields than were sent.

use guildhall_core::operation::payload::{ChannelType, MessageBody};
use serde_json::Value;

use super::model::DiscordMessage;

/// How similar a message is to the requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Similarity {
    /// Same content.
    Same,
    /// Same text and same number of embeds and components, but these differ, perhaps only because Discord normalizes
    /// them.
    Alike,
    /// A different message.
    Other,
}

/// Compares a message with this body.
pub(crate) fn compare_message(body: &MessageBody, seen: &DiscordMessage) -> Similarity {
    if !same_content(body.content.as_deref(), &seen.content) {
        return Similarity::Other;
    }
    let (embeds, components) = (or_empty(body.embeds.as_deref()), or_empty(body.components.as_deref()));
    // Discord adds embeds for links in the text, after those that were sent.
    if embeds.len() > seen.embeds.len() || components.len() != seen.components.len() {
        return Similarity::Other;
    }
    if same_embeds(embeds, &seen.embeds) && same_list(components, &seen.components) {
        Similarity::Same
    } else {
        Similarity::Alike
    }
}

/// Compares a message with an edit of it. Fields that the edit does not set are ignored.
pub(crate) fn compare_edit(body: &MessageBody, seen: &DiscordMessage) -> Similarity {
    if body.content.is_some() && !same_content(body.content.as_deref(), &seen.content) {
        return Similarity::Other;
    }
    let mut similarity = Similarity::Same;
    if let Some(desired) = &body.embeds {
        // Embeds that Discord adds for links have other types.
        let own: Vec<&Value> = seen.embeds.iter().filter(|embed| is_sent(embed)).collect();
        if own.len() != desired.len() || desired.iter().zip(&own).any(|(desired, seen)| texts_differ(desired, seen)) {
            return Similarity::Other;
        }
        if !desired.iter().zip(own).all(|(desired, seen)| is_contained(desired, seen)) {
            similarity = Similarity::Alike;
        }
    }
    if let Some(desired) = &body.components {
        if desired.len() != seen.components.len() {
            return Similarity::Other;
        }
        if !same_list(desired, &seen.components) {
            similarity = Similarity::Alike;
        }
    }
    similarity
}

fn is_sent(embed: &Value) -> bool {
    embed["type"].as_str().is_none_or(|kind| kind == "rich")
}

/// Whether the texts of two embeds differ. Discord stores titles and descriptions unchanged except for white space.
fn texts_differ(desired: &Value, seen: &Value) -> bool {
    let text = |embed: &Value, field: &str| embed[field].as_str().unwrap_or_default().trim().to_owned();
    ["title", "description"].iter().any(|field| text(desired, field) != text(seen, field))
}

fn or_empty(list: Option<&[Value]>) -> &[Value] {
    list.unwrap_or_default()
}

/// Whether the text of a message equals this one.
pub(crate) fn same_content(desired: Option<&str>, seen: &str) -> bool {
    desired.unwrap_or_default().trim() == seen.trim()
}

/// Whether a message has these embeds. Those that Discord added for links are ignored.
pub(crate) fn same_embeds(desired: &[Value], seen: &[Value]) -> bool {
    seen.len() >= desired.len() && same_list(desired, &seen[..desired.len()])
}

/// Whether each item of a list is contained in its counterpart.
pub(crate) fn same_list(desired: &[Value], seen: &[Value]) -> bool {
    desired.len() == seen.len() && desired.iter().zip(seen).all(|(desired, seen)| is_contained(desired, seen))
}

/// Whether `seen` contains everything in `desired`. Discord may add more.
fn is_contained(desired: &Value, seen: &Value) -> bool {
    match (desired, seen) {
        (Value::Object(desired), Value::Object(seen)) => desired.iter().all(|(name, desired)| match seen.get(name) {
            Some(seen) if name == "timestamp" => same_instant(desired, seen),
            Some(seen) => is_contained(desired, seen),
            // A default equals an absent field.
            None => is_default(desired),
        }),
        (Value::Array(desired), Value::Array(seen)) => same_list(desired, seen),
        (Value::String(desired), Value::String(seen)) => desired.trim() == seen.trim(),
        (desired, Value::Null) => is_default(desired),
        (desired, seen) => desired == seen,
    }
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.trim().is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Discord returns `2024-05-01T12:00:00Z` as `2024-05-01T12:00:00+00:00`, or with a fraction. Compared to the second;
/// zones other than UTC count as different.
fn same_instant(desired: &Value, seen: &Value) -> bool {
    let second = |value: &Value| {
        let text = value.as_str()?;
        let (second, zone) = text.split_at_checked(19)?;
        let zone = zone.trim_start_matches(|letter: char| letter == '.' || letter.is_ascii_digit());
        matches!(zone, "Z" | "+00:00").then(|| second.to_owned())
    };
    desired == seen || (second(desired).is_some() && second(desired) == second(seen))
}

/// Whether a channel of this type, whose name in Discord is `seen`, was given the name `desired`. Names of text
/// channels are in lowercase and have dashes for spaces; repeated dashes and ASCII punctuation may be removed. Only
/// `desired` is normalized, so that two names that Discord distinguishes are not confused.
pub(crate) fn same_name(kind: ChannelType, desired: &str, seen: Option<&str>) -> bool {
    let (Some(seen), desired) = (seen, desired.trim()) else { return false };
    match kind {
        ChannelType::Voice | ChannelType::Category | ChannelType::Stage => seen == desired,
        ChannelType::Text | ChannelType::Announcement | ChannelType::Forum => {
            let small = desired.split_whitespace().collect::<Vec<_>>().join("-").to_lowercase();
            let bare: String = small.chars().filter(|letter| !is_dropped(*letter)).collect();
            let shapes = [single_dashes(&small), single_dashes(&bare), small, bare];
            seen == desired || shapes.iter().any(|shape| shape == seen)
        }
    }
}

/// Punctuation that is removed from the name of a text channel.
fn is_dropped(letter: char) -> bool {
    letter.is_ascii_punctuation() && !matches!(letter, '-' | '_')
}

fn single_dashes(name: &str) -> String {
    let mut single = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter != '-' || !single.ends_with('-') {
            single.push(letter);
        }
    }
    single
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(content: &str, embeds: &Value, components: &Value) -> DiscordMessage {
        let message = json!({ "id": "1", "author": { "id": "2" }, "content": content, "embeds": embeds, "components": components });
        serde_json::from_value(message).unwrap()
    }

    fn body(content: Option<&str>, embeds: &Value) -> MessageBody {
        MessageBody {
            content: content.map(str::to_owned),
            embeds: embeds.as_array().cloned(),
            ..MessageBody::default()
        }
    }

    #[test]
    fn message_equals_its_normalized_form() {
        let stored = json!([{ "type": "rich", "title": "Hi", "timestamp": "2024-05-01T12:00:00.500000+00:00",
            "fields": [{ "name": "a", "value": "b", "inline": false }] }, { "type": "link", "url": "https://x.example" }]);
        let sent = json!([{ "title": "Hi ", "timestamp": "2024-05-01T12:00:00.5Z", "color": 0,
            "fields": [{ "name": "a", "value": "b" }] }]);
        assert_eq!(compare_message(&body(Some(" x "), &sent), &seen("x", &stored, &json!([]))), Similarity::Same);
        let link = seen("https://x.example", &json!([{ "type": "link" }]), &json!([]));
        assert_eq!(compare_message(&body(Some("https://x.example"), &json!(null)), &link), Similarity::Same);
    }

    #[test]
    fn different_embeds_are_alike_and_a_different_text_is_other() {
        let stored = seen("x", &json!([{ "title": "Hi" }]), &json!([]));
        assert_eq!(compare_message(&body(Some("x"), &json!([{ "title": "Ho" }])), &stored), Similarity::Alike);
        assert_eq!(compare_message(&body(Some("y"), &json!([{ "title": "Hi" }])), &stored), Similarity::Other);
        assert_eq!(compare_message(&body(None, &json!([{ "title": "Hi" }])), &stored), Similarity::Other);
        assert_eq!(compare_message(&body(Some("x"), &json!([{}, {}])), &stored), Similarity::Other);
        let buttons = seen("x", &json!([]), &json!([{ "type": 1, "id": 1 }]));
        assert_eq!(compare_message(&body(Some("x"), &json!([])), &buttons), Similarity::Other);
    }

    #[test]
    fn edit_is_compared_by_the_fields_it_sets() {
        let stored = seen("x", &json!([{ "type": "rich", "title": "Hi", "color": 5 }, { "type": "link" }]), &json!([]));
        assert_eq!(compare_edit(&body(Some("x"), &json!(null)), &stored), Similarity::Same);
        assert_eq!(compare_edit(&body(None, &json!([{ "title": "Hi", "color": 5 }])), &stored), Similarity::Same);
        assert_eq!(compare_edit(&body(None, &json!([{ "title": "Hi", "color": 6 }])), &stored), Similarity::Alike);
        assert_eq!(compare_edit(&body(None, &json!([{ "title": "Ho", "color": 5 }])), &stored), Similarity::Other);
        assert_eq!(compare_edit(&body(None, &json!([])), &stored), Similarity::Other, "expected no embeds of its own");
        assert_eq!(compare_edit(&body(Some("y"), &json!(null)), &stored), Similarity::Other);
        let buttons = MessageBody { components: Some(vec![json!({ "type": 1 })]), ..MessageBody::default() };
        assert_eq!(compare_edit(&buttons, &stored), Similarity::Other);
    }

    #[test]
    fn name_equals_its_normalized_form() {
        for (desired, seen) in [
            ("Match Day", "match-day"),
            ("match-day", "match-day"),
            ("Ää  b!", "ää-b"),
            ("Ää  b!", "ää-b!"),
            ("a - b", "a---b"),
            ("a - b", "a-b"),
            ("a_b", "a_b"),
        ] {
            assert!(same_name(ChannelType::Text, desired, Some(seen)), "{desired} {seen}");
        }
        assert!(!same_name(ChannelType::Text, "a-b", Some("ab")));
        assert!(!same_name(ChannelType::Text, "a b", Some("a--b")));
        assert!(!same_name(ChannelType::Text, "a b", Some("a-b!")));
        assert!(!same_name(ChannelType::Voice, "Match Day", Some("match-day")));
        assert!(same_name(ChannelType::Voice, " Match Day", Some("Match Day")));
        assert!(!same_name(ChannelType::Text, "x", None));
    }
}
