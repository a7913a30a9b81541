//! Parts of traces that are over, for whoever collects them.
//!
//! They are told when they have ended, with both their times: what an operation waits for may outlive the process that
//! accepted it. Nothing is put together unless somebody listens; one listener for the process, as there is one recorder of
//! metrics.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guildhall_core::time::UnixMs;
use guildhall_core::trace::{SpanId, TraceContext};

/// What kind of part it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Something that goes on inside.
    Internal,
    /// Somebody asked us.
    Server,
    /// We asked somebody.
    Client,
    /// Somebody told us, and waits for no answer.
    Consumer,
}

/// What is told of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A word.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

/// A part of a trace that is over.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Which part of which trace.
    pub trace: TraceContext,
    /// The part that it belongs to, if it is not the first.
    pub parent: Option<SpanId>,
    /// What it did, out of a small set of names.
    pub name: Cow<'static, str>,
    /// What kind of part it is.
    pub kind: SpanKind,
    /// When it began, in nanoseconds since 1970.
    pub began: u64,
    /// When it ended, likewise.
    pub ended: u64,
    /// What else there is to tell.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// What went wrong, if something did.
    pub failed: Option<String>,
}

impl Span {
    /// A part of a trace that has ended just now.
    #[must_use]
    pub fn just_now(
        trace: TraceContext,
        parent: Option<SpanId>,
        name: impl Into<Cow<'static, str>>,
        took: Duration,
    ) -> Self {
        let ended = nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        Self::between(trace, parent, name, ended.saturating_sub(nanos(took)), ended)
    }

    /// A part of a trace that lasted from then to then.
    #[must_use]
    pub fn over(
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
        Self { trace, parent, name, kind, began, ended, attributes: Vec::new(), failed: None }
    }

    /// The same, of this kind.
    #[must_use]
    pub fn kind(self, kind: SpanKind) -> Self {
        Self { kind, ..self }
    }

    /// The same, with a word.
    #[must_use]
    pub fn text(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.attributes.push((name, Attribute::Text(value.into())));
        self
    }

    /// The same, with a number.
    #[must_use]
    pub fn number(mut self, name: &'static str, value: impl Into<i64>) -> Self {
        self.attributes.push((name, Attribute::Number(value.into())));
        self
    }

    /// The same, with a guild, if it is about one.
    #[must_use]
    pub fn guild(self, guild: Option<u64>) -> Self {
        match guild {
            Some(guild) => self.text("guildhall.guild_id", guild.to_string()),
            None => self,
        }
    }

    /// The same, but it went wrong, if it did.
    #[must_use]
    pub fn failed(self, why: Option<String>) -> Self {
        Self { failed: why, ..self }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whoever collects parts of traces.
pub trait SpanListener: Send + Sync {
    /// A part is over. Must not wait.
    fn on_ended(&self, span: Span);
}

static LISTENER: OnceLock<Arc<dyn SpanListener>> = OnceLock::new();

/// From now on parts of traces go there. `false` if they go elsewhere already.
pub fn listen(listener: Arc<dyn SpanListener>) -> bool {
    LISTENER.set(listener).is_ok()
}

/// Tells of a part of a trace that somebody wants kept, if anybody listens.
pub fn record(trace: Option<TraceContext>, span: impl FnOnce(TraceContext) -> Span) {
    if let Some(trace) = trace.filter(|trace| trace.is_sampled()) {
        record_if_heard(|| span(trace));
    }
}

/// The same of a part whose trace is worth finding out only then.
pub fn record_if_heard(span: impl FnOnce() -> Span) {
    if let Some(listener) = LISTENER.get() {
        listener.on_ended(span());
    }
}
