//! Logging to standard error, through a writer that replaces all known secrets.
//!
//! Libraries may log what they send, a peer may send back what it was sent, and a panic may quote anything. No filter
//! on targets can rule that out; replacing the bytes of the secret in each line before it is written can.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
    sync::{Arc, PoisonError, RwLock},
};

use tracing_subscriber::{
    EnvFilter, Registry,
    filter::{Directive, LevelFilter},
    fmt::MakeWriter,
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

use crate::{
    events::{ThreadPanicked, emit},
    settings::{LogFormat, LogSettings, SecretValue},
};

const REDACTED: &[u8] = b"(redacted)";

/// Secrets that no log line and no span may contain. A reload adds to the list. Clones share one list.
#[derive(Clone, Debug)]
pub struct Secrets(Arc<RwLock<Arc<[SecretValue]>>>);

impl Secrets {
    /// Creates a list of these secrets.
    #[must_use]
    pub fn new(secrets: Vec<SecretValue>) -> Self {
        Self(Arc::new(RwLock::new(secrets.into())))
    }

    fn all(&self) -> Arc<[SecretValue]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the secrets that are new. Earlier ones stay in the list: they may still be quoted.
    pub fn add(&self, more: Vec<SecretValue>) {
        let mut secrets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_listed = |one: &SecretValue| secrets.iter().any(|is_listed| is_listed.expose() == one.expose());
        let new: Vec<SecretValue> = more.into_iter().filter(|one| !is_listed(one)).collect();
        *secrets = secrets.iter().cloned().chain(new).collect();
    }

    /// Replaces the secrets in a text.
    #[cfg(feature = "otel")]
    pub(crate) fn remove_from(&self, text: Vec<u8>) -> Vec<u8> {
        match redact(&self.all(), &text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(clean) => clean,
        }
    }
}

/// Changes the log filter and the list of secrets while the process runs.
#[derive(Clone, Debug)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
    secrets: Secrets,
}

impl LogControl {
    /// Sets the filter directives.
    pub fn set_filter(&self, directives: &str) {
        // Fails only when logging has stopped.
        let _ = self.filter.reload(parse_filter(directives));
    }

    /// Adds secrets to replace in log lines. Earlier ones stay in effect.
    pub fn add_secrets(&self, more: Vec<SecretValue>) {
        self.secrets.add(more);
    }
}

fn parse_filter(directives: &str) -> EnvFilter {
    silence_noisy_targets(EnvFilter::builder().with_regex(false).parse_lossy(directives), directives)
}

/// Starts logging for this process. Panics are logged from then on, too.
///
/// # Errors
///
/// If logging has already been started in this process.
pub fn init(
    log: &LogSettings,
    secrets: Vec<SecretValue>,
) -> Result<LogControl, tracing_subscriber::util::TryInitError> {
    let pretty = match log.format {
        LogFormat::Pretty => true,
        LogFormat::Json => false,
        LogFormat::Auto => io::stderr().is_terminal(),
    };
    let secrets = Secrets::new(secrets);
    let writer = RedactingMakeWriter { secrets: secrets.clone(), inner: io::stderr };
    let (filter, handle) = reload::Layer::new(parse_filter(&log.filter));
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    if pretty {
        registry.with(layer.with_ansi(io::stderr().is_terminal())).try_init()?;
    } else {
        registry.with(layer.json().flatten_event(true)).try_init()?;
    }
    std::panic::set_hook(Box::new(|panic| {
        guildhall_actors::supervision::record_panic(panic);
        let location = panic.location().map(ToString::to_string);
        let message = panic.payload_as_str().unwrap_or("no message");
        emit(ThreadPanicked { location: location.as_deref(), message });
    }));
    Ok(LogControl { filter: handle, secrets })
}

/// Targets of libraries that are off unless the filter names their library.
const NOISY_TARGETS: [(&str, &str); 4] = [
    // One line for each request that is not valid HTTP. Any client can send any number of them.
    ("actix_http::h1::dispatcher", "actix"),
    // Lines for each lost connection and each rejected message. The broker reports both, without the message.
    ("lapin", "lapin"),
    // One line for each connection of a PostgreSQL that stops. The store reports the outage once.
    ("sqlx::postgres::notice", "sqlx"),
    ("sqlx_core::pool::connection", "sqlx"),
];

/// Turns off log lines of libraries that others can cause in any number, unless the filter names them.
fn silence_noisy_targets(mut filter: EnvFilter, directives: &str) -> EnvFilter {
    // It logs whole messages, and an interaction has a token.
    if let Ok(off) = "lapin::returned_messages=off".parse::<Directive>() {
        filter = filter.add_directive(off);
    }
    if filter.max_level_hint() > Some(LevelFilter::INFO) {
        return filter;
    }
    for (target, library) in NOISY_TARGETS {
        if let Ok(off) = format!("{target}=off").parse::<Directive>()
            && !directives.contains(library)
        {
            filter = filter.add_directive(off);
        }
    }
    filter
}

/// Creates writers that replace every secret in the written text.
struct RedactingMakeWriter<M> {
    secrets: Secrets,
    inner: M,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for RedactingMakeWriter<M> {
    type Writer = RedactingWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        RedactingWriter { secrets: self.secrets.all(), inner: self.inner.make_writer() }
    }
}

/// The formatting layer writes one whole line at a time, so a secret is never split over two writes.
struct RedactingWriter<W> {
    secrets: Arc<[SecretValue]>,
    inner: W,
}

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.inner.write_all(&redact(&self.secrets, line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Returns the text with every occurrence of every secret replaced.
fn redact<'t>(secrets: &[SecretValue], text: &'t [u8]) -> Cow<'t, [u8]> {
    let mut redacted = Cow::Borrowed(text);
    for secret in secrets {
        if let Some(replaced) = replace_secret(&redacted, secret.expose().as_bytes()) {
            redacted = replaced.into();
        }
    }
    redacted
}

/// Returns the line with each occurrence of the secret replaced; `None` if it has none, which is nearly always.
fn replace_secret(line: &[u8], secret: &[u8]) -> Option<Vec<u8>> {
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

    fn redacted(secrets: &[&str], line: &str) -> String {
        let mut writer =
            RedactingWriter { secrets: secrets.iter().copied().map(SecretValue::new).collect(), inner: Vec::new() };
        writer.write_all(line.as_bytes()).unwrap();
        String::from_utf8(writer.inner).unwrap()
    }

    #[test]
    fn every_occurrence_of_every_secret_is_replaced() {
        assert_eq!(redacted(&["abab", "xyz"], "abab and ababab, xyz"), "(redacted) and (redacted)ab, (redacted)");
        assert_eq!(redacted(&["secret"], "secret"), "(redacted)");
    }

    #[test]
    fn noisy_targets_are_off_unless_requested() {
        for (written, quiet) in [
            ("info", [true, true]),
            ("warn,guildhall=info", [true, true]),
            ("debug", [false, false]),
            ("info,actix_http=info", [false, true]),
            ("info,sqlx=warn", [true, false]),
        ] {
            let filter = parse_filter(written).to_string();
            let off = ["actix_http::h1::dispatcher=off", "sqlx::postgres::notice=off"].map(|off| filter.contains(off));
            assert_eq!(off, quiet, "{written}: {filter}");
        }
    }

    #[test]
    fn line_without_a_secret_is_unchanged() {
        assert_eq!(redacted(&["secret"], "secre t, s, sec"), "secre t, s, sec");
        assert_eq!(redacted(&[], "anything"), "anything");
    }
}
