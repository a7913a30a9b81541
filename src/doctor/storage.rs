//! Checks of the state outside the process: the store and Redis.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    time::Duration,
};

use guildhall_actors::wall_clock::WallClock;
use guildhall_core::{state_key::GATE, time::UnixMs};

use super::Finding;
use crate::{
    broker,
    discord::application_id,
    redis::{self, RedisConfig},
    settings::{Settings, StoreSettings, StoreUrl},
    store::{
        self, DeadCount, ProcessEnd, RestoreProgress, RestoredStore, RowSecurityStatus, StoreProbe,
        migrate::{Compatibility, MigrationStatus},
    },
};

/// Processes that ended longer ago cause no warning.
const RECENT: Duration = Duration::from_secs(24 * 3_600);

/// A slower response causes a warning.
const SLOW_RESPONSE: Duration = Duration::from_millis(100);

/// A clock difference of at most this is ignored.
const MAX_CLOCK_DIFFERENCE_MS: u64 = 2_000;

/// Checks that the store is available and compatible with this program; returns what was read from it.
pub(crate) async fn store(settings: &Settings, report: &mut impl FnMut(Finding)) -> Option<StoreProbe> {
    let url = &settings.store.url;
    if let StoreUrl::Sqlite(path) = url
        && let Some(reason) = write_error(path)
    {
        report(Finding::fail(
            "store",
            format!("{url}: {reason}"),
            "allow this user to write there, or set store.url to another file",
        ));
        return None;
    }
    let token = settings.discord.token.as_ref();
    let application = token.and_then(application_id).unwrap_or(1);
    match store::probe_store(&settings.store, &format!("{GATE}{application}")).await {
        Ok(None) => {
            report(Finding::ok("store", format!("{url} does not exist yet; `guildhall serve` creates it")));
            None
        }
        Ok(Some(probe)) => {
            let seen = format!("{url}, {}, responded in {} ms", probe.engine, probe.elapsed.as_millis());
            report(evaluate_schema(&settings.store, &seen, &probe.migrations));
            if let Some(bound) = store::file_bound(&settings.store) {
                let origin = if bound.derive_bound { "derived from the free disk space" } else { "store.max_bytes" };
                report(Finding::ok("store", format!("its file may grow to {} bytes ({origin})", bound.bytes)));
            }
            report(restarts(&probe.process_ends, WallClock::system().now()));
            if let Some((restored, progress)) = &probe.restored {
                report(evaluate_restore(restored, *progress, WallClock::system().now()));
            }
            if probe.elapsed > SLOW_RESPONSE {
                let advice = "every accepted operation waits for the store: move it closer to this machine, or find \
                    out what else uses it";
                report(Finding::warn(
                    "store",
                    format!("slow: it took {} ms to respond", probe.elapsed.as_millis()),
                    advice,
                ));
            }
            if let Some(finding) = evaluate_clock(probe.clock_ahead_ms) {
                report(finding);
            }
            report(evaluate_dead(probe.dead_letters, probe.dead_events, WallClock::system().now()));
            report(evaluate_row_security(probe.row_security.as_ref()));
            Some(probe)
        }
        Err(error) => {
            let message = error.to_string();
            let (seen, advice) = message.split_once("; ").unwrap_or((&message, "check store.url"));
            report(Finding::fail("store", format!("{url}: {seen}"), advice));
            None
        }
    }
}

/// Checks whether parts have recently ended processes of this store.
fn restarts(ends: &[ProcessEnd], now: UnixMs) -> Finding {
    const CHECK: &str = "restarts";
    let recent = ends.iter().filter(|end| now.since(end.at) < RECENT).count();
    match ends.first() {
        None => Finding::ok(CHECK, "no part has ended a process"),
        Some(ProcessEnd { instance, part, cause, at }) => {
            let ago = now.since(*at).as_secs() / 60;
            let seen =
                format!("{recent} processes ended by a part in 24 h; last: {part} {cause}, {instance}, {ago} min ago");
            if recent == 0 {
                return Finding::ok(CHECK, seen);
            }
            let advice = "search the log of that process for `part ended`, and see \
                docs/runbooks/GuildhallCrashLoop.md";
            Finding::warn(CHECK, seen, advice)
        }
    }
}

/// Shows what became of the operations of a restored store.
fn evaluate_restore(restored: &RestoredStore, progress: RestoreProgress, now: UnixMs) -> Finding {
    const CHECK: &str = "restore";
    let RestoreProgress { unchecked, not_sent, needs_review } = progress;
    let hours = now.since(restored.at).as_secs() / 3_600;
    let seen = format!(
        "restored from a backup {hours} h ago with {} unfinished operations: {unchecked} to check, {not_sent} not found and not \
         sent, {needs_review} need review",
        restored.due
    );
    if unchecked > 0 {
        return Finding::warn(CHECK, seen, "wait until `guildhall serve` has checked them in Discord");
    }
    if not_sent + needs_review == 0 {
        return Finding::ok(CHECK, seen);
    }
    let advice = "see `guildhall dlq list --class restored` and `guildhall ops list --state needs_review`; redrive what is still \
        wanted, and discard the rest";
    Finding::warn(CHECK, seen, advice)
}

/// Checks whether operations or events failed finally.
fn evaluate_dead(letters: Option<DeadCount>, events: Option<DeadCount>, now: UnixMs) -> Finding {
    const CHECK: &str = "dead letters";
    let (Some(letters), Some(events)) = (letters, events) else {
        return Finding::skip(CHECK, "the store has no table for them yet");
    };
    let describe = |dead: DeadCount, what: &str| {
        let age = dead.oldest.map(|oldest| format!(" (oldest {} h ago)", now.since(oldest).as_secs() / 3_600));
        format!("{} {what}{}", dead.count, age.unwrap_or_default())
    };
    let seen = format!("{}, {}", describe(letters, "dead letters"), describe(events, "dead events"));
    match (letters.count, events.count) {
        (0, 0) => Finding::ok(CHECK, seen),
        (0, _) => Finding::warn(CHECK, seen, "list the events with GET /v1/events/dead; see docs/events.md"),
        (_, _) => Finding::warn(
            CHECK,
            seen,
            "list them with `guildhall dlq list`, correct the cause, then `guildhall dlq redrive` or `dlq discard`",
        ),
    }
}

/// Checks whether PostgreSQL isolates tenants.
fn evaluate_row_security(status: Option<&RowSecurityStatus>) -> Finding {
    const CHECK: &str = "row security";
    match status {
        None => Finding::skip(CHECK, "only a PostgreSQL with a current schema has it"),
        Some(RowSecurityStatus::Off) => {
            Finding::ok(CHECK, "off by store.row_security: tenants are isolated by queries only")
        }
        Some(RowSecurityStatus::On { role }) => Finding::ok(CHECK, format!("on, with the role {role}")),
        Some(RowSecurityStatus::Unusable { reason, is_required }) => {
            let (seen, advice) = reason.split_once("; ").unwrap_or((reason, "see docs/security.md"));
            let finding = Finding::warn(CHECK, format!("off: {seen}; tenants are isolated by queries only"), advice);
            if *is_required { Finding { status: super::CheckStatus::Fail, ..finding } } else { finding }
        }
    }
}

/// Compares this machine's clock with the database's; returns a warning if they differ.
fn evaluate_clock(ahead_ms: i64) -> Option<Finding> {
    let (difference, direction) = (ahead_ms.unsigned_abs(), if ahead_ms > 0 { "ahead of" } else { "behind" });
    if difference <= MAX_CLOCK_DIFFERENCE_MS {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let seen = format!("this machine's clock is {:.1} s {direction} the database's", difference as f64 / 1e3);
    let advice = "synchronize the clocks of both machines (chrony, systemd-timesyncd): operations are stored by the \
        database's clock, and logs and metrics of this machine do not match it";
    Some(Finding::warn("store", seen, advice))
}

/// Checks whether the schema of a store is compatible with this program.
fn evaluate_schema(settings: &StoreSettings, seen: &str, migrations: &[MigrationStatus]) -> Finding {
    for migration in migrations {
        let name = &migration.name;
        match migration.compatibility() {
            Compatibility::Pending | Compatibility::Applied | Compatibility::Newer => {}
            Compatibility::Changed { stored, expected: known } => {
                let seen = format!("{seen}; migration {name} was applied with other SQL (hash {stored}, not {known})");
                return Finding::fail("store", seen, "run the version of guildhall that applied it");
            }
            Compatibility::Incompatible { .. } => {
                let seen = format!("{seen}; it has migration {name}, which this version cannot work with");
                return Finding::fail("store", seen, "run the version of guildhall that applied it, or a newer one");
            }
        }
    }
    let newer = migrations.iter().filter(|migration| migration.compatibility() == Compatibility::Newer).count();
    if newer > 0 {
        let seen = format!("{seen}; it has {newer} compatible migrations of a newer version");
        return Finding::warn("store", seen, "finish the upgrade: run the newer version everywhere");
    }
    let missing = migrations.iter().filter(|migration| !migration.applied).count();
    match (missing, settings.migrate) {
        (0, _) => Finding::ok("store", format!("{seen}; its schema is up to date")),
        (missing, true) => {
            Finding::ok("store", format!("{seen}; {missing} migrations are pending; `guildhall serve` applies them"))
        }
        (missing, false) => {
            let advice = "run `guildhall migrate up`, or set store.migrate = true";
            Finding::fail(
                "store",
                format!("{seen}; {missing} migrations are pending, and store.migrate is false"),
                advice,
            )
        }
    }
}

/// Why a file cannot be written. Does not write to it.
fn write_error(path: &Path) -> Option<String> {
    if path.exists() {
        let error = OpenOptions::new().append(true).open(path).err()?;
        return Some(error.to_string());
    }
    let mut folder: PathBuf = path.parent().map(Path::to_owned).unwrap_or_default();
    while !folder.as_os_str().is_empty() && !folder.exists() {
        folder.pop();
    }
    let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
    let error = tempfile::tempfile_in(&folder).err()?;
    Some(format!("cannot create files in {}: {error}", folder.display()))
}

/// Checks whether Redis is available, and whether it can lose its data.
pub(crate) async fn redis(settings: &Settings, report: &mut impl FnMut(Finding)) {
    let Some(config) = RedisConfig::new(&settings.redis) else {
        let seen = match &settings.store.url {
            StoreUrl::Sqlite(_) => "not configured: the process of this store has the whole rate limit",
            StoreUrl::Postgres { .. } => "not configured: the processes of this store divide the rate limit",
        };
        return report(Finding::skip("redis", seen));
    };
    let (url, timeout) = (config.url.clone(), config.timeout);
    let probe = match redis::probe_redis(config).await {
        Ok(probe) => probe,
        Err(error) => {
            let advice = "check redis.url and redis.ca_file; without Redis a daemon uses its share of the limit for a \
                while, and one that never reached Redis sends nothing";
            return report(Finding::fail("redis", format!("{url}: {error}"), advice));
        }
    };
    let seen =
        format!("{}, Redis {}, responded in {:.1} ms", probe.node, probe.version, probe.ping_time.as_secs_f64() * 1e3);
    report(if probe.ping_time > SLOW_RESPONSE.min(timeout / 2) {
        let advice = format!(
            "move it closer to this machine: each call to Discord waits for it, and redis.timeout_ms is {}",
            timeout.as_millis()
        );
        Finding::warn("redis", seen, advice)
    } else {
        Finding::ok("redis", seen)
    });
    report(eviction(&probe));
    report(persistence(&probe));
}

/// Checks that RabbitMQ is reachable, and that its exchanges and queues exist.
pub(crate) async fn broker(settings: &Settings, report: &mut impl FnMut(Finding)) {
    const CHECK: &str = "rabbitmq";
    let Some(url) = &settings.broker.url else {
        return report(Finding::skip(CHECK, "not configured: no events are published"));
    };
    let probe = match broker::probe(&settings.broker, url).await {
        Ok(probe) => probe,
        Err(error) => {
            let message = error.to_string();
            let (seen, advice) = message.split_once("; ").unwrap_or((&message, "check broker.url; docs/broker.md"));
            return report(Finding::fail(CHECK, seen, advice));
        }
    };
    let seen =
        format!("{url}: connected in {} ms, {} queues exist", probe.connect_time.as_millis(), probe.queues.len());
    report(Finding::ok(CHECK, seen));
    let topology = broker::Topology::new(&settings.broker);
    let of = |name: &str| probe.queues.iter().find(|queue| queue.name == name);
    if let Some(letters) = of(&topology.dead_letter_queue).filter(|queue| queue.messages > 0) {
        let seen = format!("{} dead letters in {}", letters.messages, letters.name);
        report(Finding::warn(
            "broker dead letters",
            seen,
            "see `guildhall broker dlq list`, then redrive or discard them",
        ));
    }
    let unread = |queue: &&broker::QueueState| queue.consumers == 0 && queue.name != topology.dead_letter_queue;
    let (unread, waiting) = probe
        .queues
        .iter()
        .filter(unread)
        .filter(|queue| queue.messages > 0)
        .fold((0, 0_u64), |(queues, messages), queue| (queues + 1, messages + u64::from(queue.messages)));
    if unread > 0 {
        let seen = format!("{waiting} messages in {unread} queues without a consumer");
        report(Finding::warn(
            "broker consumers",
            seen,
            "start the consumers: a full queue makes events wait in the daemon",
        ));
    }
}

fn eviction(probe: &redis::RedisProbe) -> Finding {
    const CHECK: &str = "redis eviction";
    let policy = &probe.policy;
    match (policy.as_str(), probe.max_memory) {
        ("noeviction", _) => Finding::ok(CHECK, "maxmemory-policy is noeviction"),
        (_, 0) => Finding::ok(CHECK, format!("maxmemory-policy is {policy}, and its memory is not limited")),
        (_, bytes) => Finding::warn(
            CHECK,
            format!(
                "maxmemory-policy is {policy}: above {bytes} bytes it evicts the list of processes that share the \
                limit"
            ),
            "set maxmemory-policy to noeviction, or use a separate Redis with enough memory",
        ),
    }
}

fn persistence(probe: &redis::RedisProbe) -> Finding {
    const CHECK: &str = "redis persistence";
    if probe.is_disk_broken {
        let advice = "find out why it cannot write to its disk: with its default settings it then refuses every write";
        return Finding::fail(CHECK, "the last save failed", advice);
    }
    let append_only = if probe.has_append_only_file { "appendonly is on" } else { "appendonly is off" };
    Finding::ok(
        CHECK,
        format!(
            "{append_only}; persistence is not needed: Guildhall detects that Redis has lost its data, \
        and the limit is still enforced"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckStatus;

    fn probe() -> redis::RedisProbe {
        redis::RedisProbe {
            node: "a:1".to_owned(),
            version: "7.0.0".to_owned(),
            ping_time: Duration::from_millis(1),
            policy: "allkeys-lru".to_owned(),
            max_memory: 0,
            has_append_only_file: false,
            is_disk_broken: false,
        }
    }

    #[test]
    fn eviction_is_a_warning_if_memory_is_limited() {
        assert_eq!(eviction(&probe()).status, CheckStatus::Ok);
        let bounded = eviction(&redis::RedisProbe { max_memory: 1_000_000, ..probe() });
        assert!(bounded.status == CheckStatus::Warn && bounded.seen.contains("allkeys-lru"), "{bounded:?}");
        let noeviction = redis::RedisProbe { max_memory: 1_000_000, policy: "noeviction".to_owned(), ..probe() };
        assert_eq!(eviction(&noeviction).status, CheckStatus::Ok);
        assert_eq!(persistence(&redis::RedisProbe { is_disk_broken: true, ..probe() }).status, CheckStatus::Fail);
    }

    #[test]
    fn dead_letters_and_dead_events_are_counted_with_their_age() {
        let now = UnixMs::new(20 * 3_600_000);
        let dead = |count| Some(DeadCount { count, oldest: (count > 0).then_some(UnixMs::new(3_600_000)) });
        assert_eq!(evaluate_dead(dead(0), dead(0), now).seen, "0 dead letters, 0 dead events");
        let letters = evaluate_dead(dead(3), dead(0), now);
        assert_eq!(letters.status, CheckStatus::Warn);
        assert_eq!(letters.seen, "3 dead letters (oldest 19 h ago), 0 dead events");
        assert!(letters.advice.unwrap().contains("guildhall dlq redrive"));
        assert!(evaluate_dead(dead(0), dead(1), now).advice.unwrap().contains("/v1/events/dead"));
        assert_eq!(evaluate_dead(None, dead(0), now).status, CheckStatus::Skip);
    }

    #[test]
    fn unusable_row_security_fails_only_if_it_is_required() {
        let unusable = |is_required| {
            let reason = "the role a does not exist; run: CREATE ROLE a; then start again".to_owned();
            evaluate_row_security(Some(&RowSecurityStatus::Unusable { reason, is_required }))
        };
        assert_eq!((unusable(false).status, unusable(true).status), (CheckStatus::Warn, CheckStatus::Fail));
        assert_eq!(unusable(false).advice.as_deref(), Some("run: CREATE ROLE a; then start again"));
        let on = evaluate_row_security(Some(&RowSecurityStatus::On { role: "a".to_owned() }));
        assert_eq!((on.status, evaluate_row_security(None).status), (CheckStatus::Ok, CheckStatus::Skip));
    }

    #[test]
    fn process_end_is_a_warning_for_a_day() {
        let end = ProcessEnd {
            instance: "a-1".to_owned(),
            part: "token_bucket".to_owned(),
            cause: "panicked at a.rs:1:2".to_owned(),
            at: UnixMs::new(0),
        };
        assert_eq!(restarts(&[], UnixMs::new(1)).status, CheckStatus::Ok);
        let warned = restarts(std::slice::from_ref(&end), UnixMs::new(120_000));
        assert!(warned.status == CheckStatus::Warn, "{warned:?}");
        assert!(warned.seen.contains("token_bucket panicked at a.rs:1:2, a-1, 2 min ago"), "{warned:?}");
        assert_eq!(restarts(&[end], UnixMs::new(90_000_000)).status, CheckStatus::Ok);
    }

    #[test]
    fn restore_is_a_warning_until_its_operations_are_resolved() {
        let restored =
            RestoredStore { at: UnixMs::new(0), due: 9, scheduled: 1, events: 0, sessions: 1, checked_at: None };
        let evaluate = |unchecked, not_sent, needs_review| {
            let progress = RestoreProgress { unchecked, not_sent, needs_review };
            evaluate_restore(&restored, progress, UnixMs::new(7_200_000))
        };
        let pending = evaluate(3, 0, 0);
        assert!(pending.status == CheckStatus::Warn && pending.seen.contains("2 h ago with 9"), "{pending:?}");
        let unresolved = evaluate(0, 2, 1);
        assert!(unresolved.status == CheckStatus::Warn && unresolved.seen.contains("1 need review"), "{unresolved:?}");
        assert_eq!(evaluate(0, 0, 0).status, CheckStatus::Ok);
    }

    #[test]
    fn unwritable_store_file_is_found_without_writing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write_error(&folder.path().join("a/b/c.db")), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file is left behind");
        assert!(write_error(Path::new("/proc/nowhere/c.db")).unwrap().contains("/proc"));
        assert_eq!(write_error(Path::new("c.db")), None);
    }
}
