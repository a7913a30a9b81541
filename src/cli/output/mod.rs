//! Prints results: tables for people, or JSON or YAML for programs.

mod paint;
mod table;

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::anyhow;
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::dto::Time;

pub(super) use self::{
    paint::{Color, Painter},
    table::{TableCell, TextTable, fields},
};

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Tables for people
    Table,
    /// JSON as returned by the API
    Json,
    /// The same data as YAML
    Yaml,
}

/// Prints results to standard output, and notes to standard error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    format: Format,
    paint: Painter,
}

impl Output {
    pub(super) fn new(format: Format) -> Self {
        Self { format, paint: Painter::for_terminal(io::stdout().is_terminal()) }
    }

    /// Whether the output is for people.
    pub(super) fn is_table(&self) -> bool {
        self.format == Format::Table
    }

    /// Prints a result. `table` formats it for people.
    pub(super) fn show(&self, value: &Value, table: impl FnOnce(Painter) -> String) -> anyhow::Result<()> {
        let text = match self.format {
            Format::Table => table(self.paint),
            Format::Json => format!("{value:#}\n"),
            Format::Yaml => yaml_serde::to_string(value)?,
        };
        Ok(print(&text)?)
    }

    /// Prints a response: as it is for programs, or read as its type and formatted by `table` for people.
    pub(super) fn show_response<T: DeserializeOwned>(
        &self,
        response: &Value,
        table: impl FnOnce(&T, Painter) -> String,
    ) -> anyhow::Result<()> {
        if !self.is_table() {
            return self.show(response, |_| String::new());
        }
        let typed = read(response)?;
        self.show(response, |paint| table(&typed, paint))
    }

    /// Prints responses about single things: one as it is, several as a list of this name.
    pub(super) fn show_each<T: DeserializeOwned>(
        &self,
        list: &str,
        mut responses: Vec<Value>,
        details: impl Fn(&T, Painter) -> String,
    ) -> anyhow::Result<()> {
        let typed: Vec<T> =
            if self.is_table() { responses.iter().map(read).collect::<anyhow::Result<_>>()? } else { Vec::new() };
        let value = if responses.len() == 1 { responses.remove(0) } else { json!({ list: responses }) };
        self.show(&value, |paint| typed.iter().map(|one| details(one, paint)).collect::<Vec<_>>().join("\n"))
    }

    /// Prints one of many results that arrive one by one: one line each, also for programs.
    pub(super) fn show_next(&self, value: &Value, line: impl FnOnce(Painter) -> String) -> anyhow::Result<()> {
        let text = match self.format {
            Format::Table => format!("{}\n", line(self.paint)),
            Format::Json => format!("{value}\n"),
            Format::Yaml => format!("---\n{}", yaml_serde::to_string(value)?),
        };
        Ok(print(&text)?)
    }

    /// Prints a screen that replaces the last one, on a terminal; otherwise one after the other.
    pub(super) fn redraw(&self, value: &Value, screen: impl FnOnce(Painter) -> String) -> anyhow::Result<()> {
        if self.format != Format::Table {
            return self.show_next(value, |_| String::new());
        }
        let screen = screen(self.paint);
        let text = if io::stdout().is_terminal() {
            // Each line overwrites the one before it, and the rest is cleared: less flicker than an empty screen between.
            let lines: String = screen.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            format!("\x1b[H{lines}\x1b[J")
        } else {
            format!("{screen}\n")
        };
        Ok(print(&text)?)
    }

    /// Prints a note that is not part of the result.
    pub(super) fn note(&self, text: &str) {
        if self.is_table() {
            eprintln!("{text}");
        }
    }
}

/// Reads a response as the type that the API declares for it.
pub(super) fn read<T: DeserializeOwned>(response: &Value) -> anyhow::Result<T> {
    T::deserialize(response).map_err(|error| {
        anyhow!("cannot read the response of the daemon: {error}. Use a `guildhall` of the daemon's version, or `--output json`")
    })
}

/// Prints and flushes: another program may wait for it.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Formats a value for people.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// Formats a value that may be absent.
pub(super) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Formats a time for people, without fractions of a second.
pub(super) fn format_time<'a>(time: impl Into<Option<&'a Time>>) -> String {
    without_fraction(time.into().and_then(Time::as_str).unwrap_or("-").to_owned())
}

/// Formats a time in a response for people.
pub(super) fn time(value: &Value) -> String {
    without_fraction(text(value))
}

fn without_fraction(text: String) -> String {
    match text.split_once('.') {
        Some((seconds, rest)) if rest.ends_with('Z') => format!("{seconds}Z"),
        _ => text,
    }
}

/// Shortens a long text.
pub(super) fn truncate(text: &str, max_chars: usize) -> String {
    if text.chars().count() <= max_chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_formatted_for_people() {
        assert_eq!(text(&json!(["a", 1, null, true])), "a, 1, -, yes");
        assert_eq!(time(&json!("2026-01-31T12:00:00.123Z")), "2026-01-31T12:00:00Z");
        assert_eq!(time(&json!(null)), "-");
        assert_eq!((truncate("abcdef", 6), truncate("abcdefg", 6)), ("abcdef".to_owned(), "abcde…".to_owned()));
    }
}
