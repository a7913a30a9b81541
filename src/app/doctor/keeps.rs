//! What is kept outside the process: the store, and Redis.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    time::Duration,
};

use guildhall_core::state_key::GATE;

use super::Finding;
use crate::{
    discord::application_of,
    redis::{self, RedisConfig},
    settings::{Settings, Store, StoreUrl},
    store::{self, Looked, migrate::Step},
};

/// An answer that takes longer is worth a word.
const SLOW: Duration = Duration::from_millis(100);

/// Whether the store is there and fits this program; what was seen of it.
pub(super) async fn store(settings: &Settings, tell: &mut impl FnMut(Finding)) -> Option<Looked> {
    let url = &settings.store.url;
    if let StoreUrl::Sqlite(path) = url
        && let Some(why) = unwritable(path)
    {
        tell(Finding::fail(
            "store",
            format!("{url}: {why}"),
            "let this user write there, or name another file with store.url",
        ));
        return None;
    }
    let token = settings.discord.token.as_ref();
    let application = token.and_then(application_of).unwrap_or(1);
    match store::look(&settings.store, &format!("{GATE}{application}")).await {
        Ok(None) => {
            tell(Finding::ok("store", format!("{url} is not there yet; `guildhall serve` makes it")));
            None
        }
        Ok(Some(looked)) => {
            let seen = format!("{url}, {}, answers in {} ms", looked.engine, looked.took.as_millis());
            tell(fits(&settings.store, &seen, &looked.steps));
            if let Some(bound) = store::file_bound(&settings.store) {
                let origin = if bound.derived { "derived from the free disk space" } else { "store.max_bytes" };
                tell(Finding::ok("store", format!("its file may grow to {} bytes ({origin})", bound.bytes)));
            }
            if looked.took > SLOW {
                let advice = "every accepted operation waits for it: bring it closer, or see what else uses it";
                tell(Finding::warn("store", format!("it took {} ms to answer", looked.took.as_millis()), advice));
            }
            Some(looked)
        }
        Err(error) => {
            let says = error.to_string();
            let (seen, advice) = says.split_once("; ").unwrap_or((&says, "check store.url"));
            tell(Finding::fail("store", format!("{url}: {seen}"), advice));
            None
        }
    }
}

/// Whether what a store has is what this program knows.
fn fits(settings: &Store, seen: &str, steps: &[Step]) -> Finding {
    if let Some(newer) = steps.iter().find(|step| !step.known) {
        let seen = format!("{seen}; it has the migration {}, which this version does not know", newer.name);
        return Finding::fail("store", seen, "run the version of guildhall that made it, or a newer one");
    }
    let missing = steps.iter().filter(|step| !step.applied).count();
    match (missing, settings.migrate) {
        (0, _) => Finding::ok("store", format!("{seen}; its schema is up to date")),
        (missing, true) => {
            Finding::ok("store", format!("{seen}; {missing} migrations are to come, which `guildhall serve` makes"))
        }
        (missing, false) => {
            let advice = "run `guildhall migrate up`, or set store.migrate = true";
            Finding::fail("store", format!("{seen}; it lacks {missing} migrations, and store.migrate is false"), advice)
        }
    }
}

/// Why a file cannot be written, without writing to it.
fn unwritable(path: &Path) -> Option<String> {
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
    Some(format!("nothing can be made in {}: {error}", folder.display()))
}

/// Whether Redis is there, and keeps what it is told.
pub(super) async fn redis(settings: &Settings, tell: &mut impl FnMut(Finding)) {
    let Some(config) = RedisConfig::new(&settings.redis) else {
        return tell(Finding::skip("redis", "not configured: this process shares its limits with no other"));
    };
    let (url, patience) = (config.url.clone(), config.timeout);
    let looked = match redis::look(config).await {
        Ok(looked) => looked,
        Err(error) => {
            let advice = "check redis.url and redis.ca_file; without Redis a daemon sends its share for a while, and one that \
                          never reached it sends nothing";
            return tell(Finding::fail("redis", format!("{url}: {error}"), advice));
        }
    };
    let seen =
        format!("{}, Redis {}, answers in {:.1} ms", looked.node, looked.version, looked.took.as_secs_f64() * 1e3);
    tell(if looked.took > SLOW.min(patience / 2) {
        let advice = format!(
            "bring it closer: each call to Discord waits for it, and redis.timeout_ms is {}",
            patience.as_millis()
        );
        Finding::warn("redis", seen, advice)
    } else {
        Finding::ok("redis", seen)
    });
    tell(eviction(&looked));
    tell(persistence(&looked));
}

fn eviction(looked: &redis::Looked) -> Finding {
    const CHECK: &str = "redis eviction";
    let policy = &looked.policy;
    match (policy.as_str(), looked.memory_most) {
        ("noeviction", _) => Finding::ok(CHECK, "maxmemory-policy is noeviction"),
        (_, 0) => Finding::ok(CHECK, format!("maxmemory-policy is {policy}, and its memory has no bound")),
        (_, bytes) => Finding::warn(
            CHECK,
            format!("maxmemory-policy is {policy}: past {bytes} bytes it forgets who shares the limit"),
            "set maxmemory-policy noeviction, or give it a Redis of its own with memory enough",
        ),
    }
}

fn persistence(looked: &redis::Looked) -> Finding {
    const CHECK: &str = "redis persistence";
    if looked.is_disk_broken {
        let advice = "see why it cannot write to its disk: by its usual settings it then refuses every write";
        return Finding::fail(CHECK, "its last save failed", advice);
    }
    let appends = if looked.appends { "appendonly is on" } else { "appendonly is off" };
    Finding::ok(CHECK, format!("{appends}; none is needed: a Redis that forgot is noticed, and the limit holds"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::doctor::Verdict;

    fn looked() -> redis::Looked {
        redis::Looked {
            node: "a:1".to_owned(),
            version: "7.0.0".to_owned(),
            took: Duration::from_millis(1),
            policy: "allkeys-lru".to_owned(),
            memory_most: 0,
            appends: false,
            is_disk_broken: false,
        }
    }

    #[test]
    fn a_redis_that_forgets_is_told_of_once_it_can_be_full() {
        assert_eq!(eviction(&looked()).verdict, Verdict::Ok);
        let bounded = eviction(&redis::Looked { memory_most: 1_000_000, ..looked() });
        assert!(bounded.verdict == Verdict::Warn && bounded.seen.contains("allkeys-lru"), "{bounded:?}");
        let kept = redis::Looked { memory_most: 1_000_000, policy: "noeviction".to_owned(), ..looked() };
        assert_eq!(eviction(&kept).verdict, Verdict::Ok);
        assert_eq!(persistence(&redis::Looked { is_disk_broken: true, ..looked() }).verdict, Verdict::Fail);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_told_before_anything_tries_to() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(unwritable(&folder.path().join("a/b/c.db")), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
        assert!(unwritable(Path::new("/proc/nowhere/c.db")).unwrap().contains("/proc"));
        assert_eq!(unwritable(Path::new("c.db")), None);
    }
}
