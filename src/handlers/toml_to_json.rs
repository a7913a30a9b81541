//! Converts TOML to JSON.

use guildhall_core::event::handler::HandlerFieldError;
use serde_json::{Map, Number, Value};
use toml::de::{DeTable, DeValue};

/// Converts a TOML text to JSON.
///
/// # Errors
///
/// Returns every TOML syntax error by its line, or every value that JSON cannot represent by its field. No text of the
/// file is quoted, since it may contain secrets.
pub(super) fn to_json(text: &str) -> Result<Value, Vec<HandlerFieldError>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let mut found: Vec<(usize, &str)> =
            errors.iter().map(|error| (error.span().map_or(0, |span| span.start), error.message())).collect();
        found.sort_unstable();
        let wrong = |(at, message)| HandlerFieldError {
            field: format!("line {}", line(at)),
            message: format!("is not valid TOML: {message}"),
        };
        return Err(found.into_iter().map(wrong).collect());
    }
    let mut wrong = Vec::new();
    let value = convert_table(table.get_ref(), "", &mut wrong);
    if wrong.is_empty() { Ok(value) } else { Err(wrong) }
}

fn convert_table(table: &DeTable<'_>, path: &str, errors: &mut Vec<HandlerFieldError>) -> Value {
    let between = if path.is_empty() { "" } else { "." };
    let fields = table.iter().map(|(name, value)| {
        let name = name.get_ref();
        (name.clone().into_owned(), convert_value(value.get_ref(), &format!("{path}{between}{name}"), errors))
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

fn convert_value(value: &DeValue<'_>, path: &str, errors: &mut Vec<HandlerFieldError>) -> Value {
    let message = match value {
        DeValue::String(text) => return Value::String(text.clone().into_owned()),
        DeValue::Boolean(truth) => return Value::Bool(*truth),
        DeValue::Array(items) => {
            let items = items.iter().enumerate();
            return items.map(|(n, item)| convert_value(item.get_ref(), &format!("{path}[{n}]"), errors)).collect();
        }
        DeValue::Table(table) => return convert_table(table, path, errors),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => return Value::from(number),
            Err(_) => "is out of range; write the number in quotes",
        },
        DeValue::Float(number) => match number.as_str().parse().ok().and_then(Number::from_f64) {
            Some(number) => return Value::Number(number),
            None => "is a number that JSON does not support; write it in quotes",
        },
        DeValue::Datetime(_) => "is a date, which JSON does not support; write it in quotes",
    };
    errors.push(HandlerFieldError { field: path.to_owned(), message: message.to_owned() });
    Value::Null
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_value_converts_or_is_reported() {
        let read = to_json("a = 0x10\nb = -1_000\nc = 1.5\nd = [true, 'x', {e = 'y'}]\n[f.g]\nh = 2\n").unwrap();
        assert_eq!(read, json!({"a": 16, "b": -1000, "c": 1.5, "d": [true, "x", {"e": "y"}], "f": {"g": {"h": 2}}}));
        let errors = to_json("a = [1979-05-27]\n[[b]]\nc = nan\nd = 99999999999999999999\n").unwrap_err();
        let fields: Vec<&str> = errors.iter().map(|errors| errors.field.as_str()).collect();
        assert_eq!(fields, ["a[0]", "b[0].c", "b[0].d"]);
    }

    #[test]
    fn syntax_errors_are_reported_by_line_without_text() {
        let errors = to_json("a = 1\nsecret = whsec_abc\nb = [\n").unwrap_err();
        assert_eq!(errors[0].field, "line 2");
        assert!(!format!("{errors:?}").contains("whsec_abc"), "{errors:?}");
    }
}
