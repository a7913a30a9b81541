//! Finished spans of traces, for a collector.
//!
//! A span is reported when it has ended, with both of its times: an operation may outlive the process that accepted it.
//! Nothing is built unless there is a listener. There is one listener for each process, like the recorder of metrics.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use guildhall_core::time::UnixMs;
use guildhall_core::trace::{SpanId, TraceContext};

use crate::wall_clock::unix_now;

/// Kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside the process.
    Internal,
    /// A request to this process.
    Server,
    /// A request by this process.
    Client,
    /// A message to this process that expects no response.
    Consumer,
}

/// Attribute of a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

/// A finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Trace and span id.
    pub trace: TraceContext,
    /// Parent span, if there is one.
    pub parent: Option<SpanId>,
    /// Name, out of a small set.
    pub name: Cow<'static, str>,
    /// Kind of the span.
    pub kind: SpanKind,
    /// Start, in nanoseconds since 1970.
    pub started_at: u64,
    /// End, in nanoseconds since 1970.
    pub ended_at: u64,
    /// Further attributes.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Error message, if it failed.
    pub failed: Option<String>,
}

impl Span {
    /// Creates a span that has just ended.
    #[must_use]
    pub fn ended_now(
        trace: TraceContext,
        parent: Option<SpanId>,
        name: impl Into<Cow<'static, str>>,
        elapsed: Duration,
    ) -> Self {
        let ended = nanos(unix_now());
        Self::between(trace, parent, name, ended.saturating_sub(nanos(elapsed)), ended)
    }

    /// Creates a span from its start and end.
    #[must_use]
    pub fn from_times(
        trace: TraceContext,
        parent: Option<SpanId>,
        name: impl Into<Cow<'static, str>>,
        began: UnixMs,
        ended: UnixMs,
    ) -> Self {
        let at = |time: UnixMs| nanos(Duration::from_millis(time.millis()));
        Self::between(trace, parent, name, at(began), at(ended.max(began)))
    }

    fn between(
        trace: TraceContext,
        parent: Option<SpanId>,
        name: impl Into<Cow<'static, str>>,
        began: u64,
        ended: u64,
    ) -> Self {
        let (name, kind) = (name.into(), SpanKind::Internal);
        Self { trace, parent, name, kind, started_at: began, ended_at: ended, attributes: Vec::new(), failed: None }
    }

    /// Sets the kind.
    #[must_use]
    pub fn kind(self, kind: SpanKind) -> Self {
        Self { kind, ..self }
    }

    /// Adds a text attribute.
    #[must_use]
    pub fn text(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.attributes.push((name, Attribute::Text(value.into())));
        self
    }

    /// Adds a number attribute.
    #[must_use]
    pub fn number(mut self, name: &'static str, value: impl Into<i64>) -> Self {
        self.attributes.push((name, Attribute::Number(value.into())));
        self
    }

    /// Adds the guild, if there is one.
    #[must_use]
    pub fn guild(self, guild: Option<u64>) -> Self {
        match guild {
            Some(guild) => self.text("guildhall.guild_id", guild.to_string()),
            None => self,
        }
    }

    /// Sets the error message, if any.
    #[must_use]
    pub fn failed(self, error: Option<String>) -> Self {
        Self { failed: error, ..self }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Collector of spans.
pub trait SpanListener: Send + Sync {
    /// Receives a finished span. Must not block.
    fn on_ended(&self, span: Span);
}

static LISTENER: OnceLock<Arc<dyn SpanListener>> = OnceLock::new();

/// Sets the listener. Returns `false` if there is one already.
pub fn listen(listener: Arc<dyn SpanListener>) -> bool {
    LISTENER.set(listener).is_ok()
}

/// Reports a span of a sampled trace, if there is a listener.
pub fn record(trace: Option<TraceContext>, span: impl FnOnce(TraceContext) -> Span) {
    if let Some(trace) = trace.filter(|trace| trace.is_sampled()) {
        record_if_listening(|| span(trace));
    }
}

/// Reports a span without a check for sampling. `span` is called only if there is a listener.
pub fn record_if_listening(span: impl FnOnce() -> Span) {
    if let Some(listener) = LISTENER.get() {
        listener.on_ended(span());
    }
}
