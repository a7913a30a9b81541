//! Reloads the settings: reads them again, validates all of them, and applies those that can change without a restart.
//!
//! ```text
//!  SIGHUP ─┐                 ┌─ one error ─▶ nothing is applied, all errors are reported
//!  API ────┴▶ read, check ───┤
//!                            └─ valid ─────▶ applied ─▶ changed, unchanged, needs a restart
//! ```

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    sync::{Arc, OnceLock},
};

use guildhall_actors::circuit_breaker::ReplaceToken;
use guildhall_actors::gate::Gate;
use guildhall_actors::ports::WebhookClient;
use guildhall_actors::supervision::spawn_blocking_work;
use guildhall_actors::supervisor::EventsHandle;
use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{event::handler::EventHandlers, response::Credential};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::api_component;
use crate::daemon::events_component as events;
use crate::{
    api::{Certificates, CheckedCertificate, Control, Reload, ReloadError, ReloadFuture, ReloadReport, ReloadedItem},
    discord::{TokenSetter, application_id, rest::Authorization},
    events::{HandlerWarned, ReloadFailed, Reloaded, emit},
    handlers::{self, HandlerDigests},
    logging::{LogControl, Secrets},
    redis::fingerprint,
    settings::{BotTokenError, LoadedSettings, SecretValue, Settings, SettingsError},
};

/// Reads the current settings, with the flags that the process was started with.
pub type ReadSettings = Box<dyn Fn() -> Result<LoadedSettings, SettingsError> + Send + Sync>;

/// The parts of a running daemon that a reload changes.
pub(crate) struct ReloadTargets {
    pub(crate) control: Control,
    pub(crate) certificates: Option<Certificates>,
    /// Those of the REST proxy.
    pub(crate) egress_certificates: Option<Certificates>,
    pub(crate) authorization: Authorization,
    pub(crate) gateway_token: TokenSetter,
    pub(crate) gate: Arc<Gate>,
    pub(crate) clock: WallClock,
    /// Credentials of calls with the token. A token that does not name its application, as simulators issue them, has
    /// two: the gate's own, and the application that Discord named.
    pub(crate) credentials: BTreeSet<Credential>,
    pub(crate) events: EventsHandle,
    /// Secrets that no span may contain.
    pub(crate) span_secrets: Secrets,
}

/// Reloads the settings of this process. Clones share their state.
#[derive(Clone)]
pub struct Reloader(Arc<ReloaderInner>);

struct ReloaderInner {
    read: ReadSettings,
    log: LogControl,
    targets: OnceLock<ReloadTargets>,
    /// Locked during a reload, so that reloads run one after the other.
    running: Mutex<RunningSettings>,
}

/// The settings in force.
struct RunningSettings {
    /// The settings that the process was started with.
    started: LoadedSettings,
    /// The settings that were applied last.
    applied: LoadedSettings,
    handlers: HandlerDigests,
    /// The token that calls are made with.
    token: Option<SecretValue>,
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reloader")
    }
}

/// Settings that were read and validated.
struct CheckedSettings {
    loaded: LoadedSettings,
    handlers: EventHandlers,
    handler_digests: HandlerDigests,
    certificate: Option<CheckedCertificate>,
    egress_certificate: Option<CheckedCertificate>,
}

type ReloadErrors = Vec<(String, String)>;

impl Reloader {
    /// Creates a reloader of a process that was started with these settings and handlers.
    #[must_use]
    pub fn new(read: ReadSettings, started: LoadedSettings, handlers: HandlerDigests, log: LogControl) -> Self {
        let (applied, token) = (started.clone(), started.settings.discord.token.clone());
        let running = Mutex::new(RunningSettings { started, applied, handlers, token });
        Self(Arc::new(ReloaderInner { read, log, targets: OnceLock::new(), running }))
    }

    /// Sets the parts that reloads change. Later calls have no effect.
    pub(crate) fn attach(&self, targets: ReloadTargets) {
        drop(self.0.targets.set(targets));
    }

    /// Reloads, and logs the result.
    pub(crate) async fn reload_by_signal(&self) {
        // Only a caller of the API needs the result.
        let _ = self.reload().await;
    }

    async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let reloaded = self.try_reload().await;
        match &reloaded {
            Ok(report) => emit(Reloaded { report }),
            Err(error) => emit(ReloadFailed { error }),
        }
        reloaded
    }

    async fn try_reload(&self) -> Result<ReloadReport, ReloadError> {
        let targets = self.0.targets.get().ok_or(ReloadError::Starting)?;
        let mut running = self.0.running.lock().await;
        let (shared, old) = (Arc::clone(&self.0), running.applied.settings.clone());
        let checked = spawn_blocking_work(move || check((shared.read)(), &old)).await;
        let checked = checked.unwrap_or_else(|error| {
            Err(vec![(
                String::new(),
                format!(
                    "reading the settings failed: \
            {error}"
                ),
            )])
        });
        let checked = checked.map_err(ReloadError::Invalid)?;
        let broker = events::check_broker(&checked.handlers, &running.started.settings);
        broker.map_err(|error| ReloadError::Invalid(vec![("handlers".to_owned(), error.to_string())]))?;
        let webhooks = events::webhooks(&checked.handlers, &targets.gate, &targets.clock);
        let brain = webhooks.map_err(|error| ReloadError::Invalid(vec![("handlers".to_owned(), error.to_string())]))?;
        Ok(apply(&self.0.log, targets, &mut running, checked, &brain).await)
    }
}

impl Reload for Reloader {
    fn reload(&self) -> ReloadFuture {
        let reloader = self.clone();
        Box::pin(async move { Self::reload(&reloader).await })
    }
}

/// Validates everything, so that all errors are reported together. If the settings themselves are invalid, the files
/// that the previous settings name are validated.
fn check(loaded: Result<LoadedSettings, SettingsError>, old: &Settings) -> Result<CheckedSettings, ReloadErrors> {
    let mut errors = ReloadErrors::new();
    let settings = loaded.as_ref().map_or(old, |loaded| &loaded.settings);
    let handlers = handlers::load_with_digests(&settings.handlers);
    let certificate = settings.api.tls.as_ref().map(Certificates::check).transpose();
    let egress = settings.egress.tls.as_ref().filter(|_| settings.egress.enabled);
    let egress_certificate = egress.map(Certificates::check).transpose();
    let token = settings.discord.bot_token();
    if let Err(error) = &loaded {
        errors.extend(error.problems.iter().map(|problem| (problem.key.clone(), problem.to_string())));
    }
    if let Err(error) = token {
        let message = match error {
            BotTokenError::Missing => "discord.token is no longer set; set it again".to_owned(),
            BotTokenError::OfSimulator { .. } => error.to_string(),
        };
        errors.push(("discord.token".to_owned(), message));
    }
    if let Err(error) = &handlers {
        errors.extend(error.field_errors());
    }
    for (section, checked) in [("api.tls", &certificate), ("egress.tls", &egress_certificate)] {
        if let Err(error) = checked {
            errors.push((section.to_owned(), error.to_string()));
        }
    }
    match (loaded, handlers, certificate, egress_certificate) {
        (Ok(loaded), Ok((handlers, handler_digests)), Ok(certificate), Ok(egress_certificate)) if errors.is_empty() => {
            Ok(CheckedSettings { loaded, handlers, handler_digests, certificate, egress_certificate })
        }
        _ => Err(errors),
    }
}

async fn apply(
    log: &LogControl,
    targets: &ReloadTargets,
    running: &mut RunningSettings,
    checked: CheckedSettings,
    brain: &Arc<dyn WebhookClient>,
) -> ReloadReport {
    let CheckedSettings { loaded, handlers, handler_digests, certificate, egress_certificate } = checked;
    let settings = &loaded.settings;
    let mut report = ReloadReport::default();
    // First: neither the log nor a span may contain the new secrets.
    let secrets: Vec<SecretValue> = settings.secrets().into_iter().chain(handlers::secrets(&handlers)).collect();
    targets.span_secrets.add(secrets.clone());
    log.add_secrets(secrets);

    let needs_restart = running.started.changes_to(&loaded).into_iter().filter(|change| !change.reloads);
    report.needs_restart.extend(needs_restart.map(|change| item(change.key, change.old, change.new)));
    for change in running.applied.changes_to(&loaded).into_iter().filter(|change| change.reloads) {
        // Settings with an effect of their own are reported by that effect.
        if !matches!(change.key, "discord.token") {
            report.changed.push(item(change.key, change.old, change.new));
        }
    }
    log.set_filter(&settings.log.filter);
    targets.control.set_policies(api_component::policies_config(&settings.api, &running.started.settings.api));
    apply_certificate(targets.certificates.as_ref(), certificate, "api.tls", &mut report);
    apply_certificate(targets.egress_certificates.as_ref(), egress_certificate, "egress.tls", &mut report);
    apply_handlers(targets, running, handlers, handler_digests, brain, &mut report);
    apply_token(targets, running, settings.discord.token.as_ref(), &mut report).await;
    let is_listed = |key: &str| {
        let same = |one: &ReloadedItem| one.what == key || one.what.split(' ').next() == Some(key);
        report.changed.iter().chain(&report.needs_restart).any(same)
    };
    let extra_items = ["certificate", "handler"];
    report.unchanged =
        LoadedSettings::reloadable().chain(extra_items).filter(|key| !is_listed(key)).map(Cow::from).collect();
    running.applied = loaded;
    report
}

fn item(what: impl Into<String>, old: impl Into<Value>, new: impl Into<Value>) -> ReloadedItem {
    ReloadedItem { what: what.into(), old: old.into(), new: new.into() }
}

fn apply_certificate(
    current: Option<&Certificates>,
    checked: Option<CheckedCertificate>,
    section: &'static str,
    report: &mut ReloadReport,
) {
    let (was, is) = (current.is_some(), checked.is_some());
    match (current, checked) {
        (Some(current), Some(checked)) => {
            let is_listed = report.changed.iter().any(|one| one.what == "certificate");
            if current.differs_from(&checked) && !is_listed {
                report.changed.push(item("certificate", Value::Null, Value::Null));
            }
            current.show(checked);
        }
        // Whether the listener uses TLS is fixed at its start.
        (None, Some(_)) | (Some(_), None) => {
            report.changed.retain(|one| one.what.strip_prefix(section).is_none_or(|rest| !rest.starts_with('.')));
            report.needs_restart.push(item(section, was, is));
        }
        (None, None) => {}
    }
}

fn apply_handlers(
    targets: &ReloadTargets,
    running: &mut RunningSettings,
    handlers: EventHandlers,
    digests: HandlerDigests,
    brain: &Arc<dyn WebhookClient>,
    report: &mut ReloadReport,
) {
    if digests == running.handlers {
        return;
    }
    let changes = changed_handlers(&running.handlers, &digests);
    let unreachable = handlers::unreachable(&handlers, running.started.settings.gateway.intents);
    let warnings = handlers::warnings(&handlers).into_iter().chain(unreachable).collect::<Vec<_>>();
    match targets.events.replace_handlers(handlers, brain) {
        Ok(()) => {
            report.changed.extend(changes);
            running.handlers = digests;
            warnings.iter().for_each(|warning| emit(HandlerWarned { warning }));
        }
        Err(error) => report.needs_restart.push(item("handlers.file", Value::Null, error.to_string())),
    }
}

/// Which handlers were added, changed, moved or removed.
fn changed_handlers(old: &HandlerDigests, new: &HandlerDigests) -> Vec<ReloadedItem> {
    let find = |digests: &HandlerDigests, name: &str| {
        digests.iter().find(|(one, _)| &**one == name).map(|(_, digest)| *digest)
    };
    let mut items = Vec::new();
    for (name, digest) in new {
        match find(old, name) {
            None => items.push(item(format!("handler {name}"), Value::Null, "added")),
            Some(before) if before != *digest => items.push(item(format!("handler {name}"), "in use", "changed")),
            Some(_) => {}
        }
    }
    let removed = old.iter().filter(|(name, _)| find(new, name).is_none());
    items.extend(removed.map(|(name, _)| item(format!("handler {name}"), "in use", "removed")));
    if items.is_empty() {
        items.push(item("handler order", Value::Null, "changed"));
    }
    items
}

/// A new token is used for calls from now on, and for the gateway from the next connection on.
async fn apply_token(
    targets: &ReloadTargets,
    running: &mut RunningSettings,
    new: Option<&SecretValue>,
    report: &mut ReloadReport,
) {
    let (Some(new), Some(old)) = (new, running.token.clone()) else { return };
    if new.expose() == old.expose() {
        return;
    }
    let (old_application, new_application) = (application_id(&old), application_id(new));
    if old_application != new_application {
        // Queues, sessions and limits belong to the application.
        let describe = |id: Option<u64>| json!(id.map(|id| format!("a token of application {id}")));
        report.needs_restart.push(item("discord.token", describe(old_application), describe(new_application)));
        return;
    }
    if let Err(error) = targets.authorization.set(new) {
        report.needs_restart.push(item("discord.token", "(redacted)", error.to_string()));
        return;
    }
    (targets.gateway_token)(new);
    running.token = Some(new.clone());
    report.changed.push(item("discord.token", "(redacted)", "(redacted)"));
    // Resumes calls that a 401 for the old token has stopped.
    for credential in &targets.credentials {
        let changed = ReplaceToken { credential: *credential, fingerprint: fingerprint(new) };
        // Without the breaker the process is ending.
        let _ = targets.gate.breaker().send(changed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_changes_are_reported() {
        let digests = |all: &[(&str, u8)]| -> HandlerDigests {
            all.iter().map(|(name, n)| (Arc::from(*name), [*n; 32])).collect()
        };
        let changes = |old: &[(&str, u8)], new: &[(&str, u8)]| -> Vec<String> {
            let items = changed_handlers(&digests(old), &digests(new));
            items.into_iter().map(|one| format!("{} {}", one.what, one.new.as_str().unwrap())).collect()
        };
        assert_eq!(
            changes(&[("a", 1), ("b", 1), ("c", 1)], &[("b", 2), ("c", 1), ("d", 1)]),
            ["handler b changed", "handler d added", "handler a removed"]
        );
        assert_eq!(changes(&[("a", 1), ("b", 1)], &[("b", 1), ("a", 1)]), ["handler order changed"]);
    }
}
