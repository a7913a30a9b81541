//! Logging to standard error, through a writer that knows the secrets and lets none of them pass.
//!
//! Libraries may log what they send, a peer may send back what it was sent, and a panic may quote anything. No filter
//! on targets can rule that out; replacing the secret's own bytes in what is about to be written can.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    sync::Arc,
};

use tracing_subscriber::{
    EnvFilter,
    filter::{Directive, LevelFilter},
    fmt::MakeWriter,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::settings::{Log, LogFormat, Token};

const REDACTED: &[u8] = b"(redacted)";

/// Starts logging for this process. Panics are logged from then on, too.
///
/// # Errors
///
/// When the process already logs.
pub fn init(log: &Log, secrets: Vec<Token>) -> Result<(), tracing_subscriber::util::TryInitError> {
    let pretty = match log.format {
        LogFormat::Pretty => true,
        LogFormat::Json => false,
        LogFormat::Auto => io::stderr().is_terminal(),
    };
    let writer = Redacting { secrets: secrets.into(), inner: io::stderr };
    let filter = quietly(EnvFilter::builder().with_regex(false).parse_lossy(&log.filter), &log.filter);
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    if pretty {
        registry.with(layer.with_ansi(io::stderr().is_terminal())).try_init()?;
    } else {
        registry.with(layer.json().flatten_event(true)).try_init()?;
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, message = panic.payload_as_str().unwrap_or("no message"), "a thread panicked");
    }));
    Ok(())
}

/// What writes a line for every request that cannot be read as HTTP, of which anybody can send as many as they like.
const CHATTY: &str = "actix_http::h1::dispatcher";

/// The filter without what strangers can fill a log with, unless somebody wants to see it.
fn quietly(filter: EnvFilter, written: &str) -> EnvFilter {
    let is_wanted = written.contains("actix") || filter.max_level_hint() > Some(LevelFilter::INFO);
    match format!("{CHATTY}=off").parse::<Directive>() {
        Ok(off) if !is_wanted => filter.add_directive(off),
        Ok(_) | Err(_) => filter,
    }
}

/// Makes writers that replace every secret in what they are given.
struct Redacting<M> {
    secrets: Arc<[Token]>,
    inner: M,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Redacting<M> {
    type Writer = RedactingWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        RedactingWriter { secrets: Arc::clone(&self.secrets), inner: self.inner.make_writer() }
    }
}

/// The formatting layer hands over one whole line at a time, so a secret is never split over two writes.
struct RedactingWriter<W> {
    secrets: Arc<[Token]>,
    inner: W,
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.inner.write_all(&clean(&self.secrets, line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A text with every occurrence of every secret replaced.
fn clean<'t>(secrets: &[Token], text: &'t [u8]) -> Cow<'t, [u8]> {
    let mut clean = Cow::Borrowed(text);
    for secret in secrets {
        if let Some(replaced) = replace(&clean, secret.expose().as_bytes()) {
            clean = replaced.into();
        }
    }
    clean
}

/// A text for others to read, without these secrets.
#[cfg(feature = "otel")]
pub(crate) fn without(secrets: &[Token], text: Vec<u8>) -> Vec<u8> {
    match clean(secrets, &text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => clean,
    }
}

/// The line with each occurrence of the secret replaced; `None` when it holds none, which is nearly always.
fn replace(line: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
    let first = *secret.first()?;
    let mut clean = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(step) = line[at..].iter().position(|byte| *byte == first) {
        at += step;
        if line[at..].starts_with(secret) {
            clean.extend_from_slice(&line[copied..at]);
            clean.extend_from_slice(REDACTED);
            at += secret.len();
            copied = at;
        } else {
            at += 1;
        }
    }
    if copied == 0 {
        return None;
    }
    clean.extend_from_slice(&line[copied..]);
    Some(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(secrets: &[&str], line: &str) -> String {
        let mut writer =
            RedactingWriter { secrets: secrets.iter().copied().map(Token::new).collect(), inner: Vec::new() };
        writer.write_all(line.as_bytes()).unwrap();
        String::from_utf8(writer.inner).unwrap()
    }

    #[test]
    fn every_occurrence_of_every_secret_is_replaced() {
        assert_eq!(written(&["abab", "xyz"], "abab and ababab, xyz"), "(redacted) and (redacted)ab, (redacted)");
        assert_eq!(written(&["secret"], "secret"), "(redacted)");
    }

    #[test]
    fn strangers_cannot_fill_the_log_unless_somebody_wants_to_see_them() {
        for (written, quiet) in
            [("info", true), ("warn,guildhall=info", true), ("debug", false), ("info,actix_http=info", false)]
        {
            let filter = quietly(EnvFilter::builder().with_regex(false).parse_lossy(written), written);
            assert_eq!(filter.to_string().contains("actix_http::h1::dispatcher=off"), quiet, "{written}: {filter}");
        }
    }

    #[test]
    fn a_line_without_a_secret_is_left_alone() {
        assert_eq!(written(&["secret"], "secre t, s, sec"), "secre t, s, sec");
        assert_eq!(written(&[], "anything"), "anything");
    }
}
