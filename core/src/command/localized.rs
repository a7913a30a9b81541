//! Names, localized texts, and names of Discord's numbers.

use serde_json::{Map, Value};

use crate::operation::payload::{
    field_reader::{nearest, quoted_list},
    validation::{FieldContext, truncated},
    value::text,
};

/// Maximum length of the name of a command or an option.
pub(super) const MAX_NAME_CHARS: usize = 32;
/// Maximum length of a description, or of the name of a choice.
pub(super) const MAX_TEXT_CHARS: usize = 100;

/// Discord's locales.
const LOCALES: [&str; 34] = [
    "ar", "bg", "cs", "da", "de", "el", "en-GB", "en-US", "es-419", "es-ES", "fi", "fr", "he", "hi", "hr", "hu", "id",
    "it", "ja", "ko", "lt", "nl", "no", "pl", "pt-BR", "ro", "ru", "sv-SE", "th", "tr", "uk", "vi", "zh-CN", "zh-TW",
];

/// Reads a name that users type: letters, digits, `-`, `_` and `'`, in lower case where the script has it.
pub(super) fn typed_name(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let name = text(1, MAX_NAME_CHARS)(value, at)?;
    if let Some(odd) = name.chars().find(|letter| !is_name_char(*letter)) {
        return at.invalid(format!("must contain only letters, digits, `-`, `_` and `'`; remove {odd:?}"));
    }
    let lower = name.to_lowercase();
    if lower != name {
        return at.invalid(format!("must be in lower case: write `{lower}`"));
    }
    Some(name)
}

fn is_name_char(letter: char) -> bool {
    // Devanagari and Thai write vowels as marks, which are not letters.
    let marks = matches!(letter, '\u{900}'..='\u{97f}' | '\u{a8e0}'..='\u{a8ff}' | '\u{e00}'..='\u{e7f}');
    letter.is_alphanumeric() || "-_'".contains(letter) || marks
}

/// Reads a name in a menu.
pub(super) fn menu_name(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    text(1, MAX_NAME_CHARS)(value, at)
}

/// Reads a description, or the name of a choice.
pub(super) fn short_text(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    text(1, MAX_TEXT_CHARS)(value, at)
}

/// Reads localized texts.
pub(super) fn localizations(
    read: impl Fn(&Value, &mut FieldContext<'_>) -> Option<String>,
) -> impl Fn(&Value, &mut FieldContext<'_>) -> Option<Map<String, Value>> {
    move |value, at| {
        let Some(texts) = value.as_object() else {
            return at.invalid("must be an object with a text for each locale, such as {\"de\": \"…\"}");
        };
        for (locale, text) in texts {
            let mut at = at.field(locale);
            if !LOCALES.contains(&locale.as_str()) {
                match nearest(locale, LOCALES.into_iter()) {
                    Some(meant) => at.invalid::<()>(format!("is not a locale of Discord; did you mean `{meant}`?")),
                    None => at.invalid("is not a locale of Discord; use for example `de`, `en-US` or `pt-BR`"),
                };
            }
            read(text, &mut at);
        }
        Some(texts.clone())
    }
}

/// Reads one of Discord's numbers, as a number or by its name.
pub(super) fn named_number(
    names: &'static [(&'static str, u8)],
) -> impl Fn(&Value, &mut FieldContext<'_>) -> Option<u8> {
    move |value, at| {
        let by_name = |text: &str| names.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        let found = match value {
            Value::String(text) => by_name(text),
            Value::Number(number) => {
                names.iter().find(|(_, name_value)| number.as_u64() == Some(u64::from(*name_value)))
            }
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        if let Some((_, number)) = found {
            return Some(*number);
        }
        let all = quoted_list(names.iter().map(|(name, _)| *name));
        match value.as_str().and_then(|text| nearest(text, names.iter().map(|(name, _)| *name))) {
            Some(meant) => at.invalid(format!("must be one of {all}, or its number; did you mean `{meant}`?")),
            None => {
                at.invalid(format!("must be one of {all}, or its number; found `{}`", truncated(&value.to_string())))
            }
        }
    }
}
