//! The unmodified script, with Redis's own clock.

use std::{collections::BTreeSet, future::Future, time::Duration};

use guildhall::redis::window::{RedisWindow, WindowKeys, WindowScope};
use guildhall::redis::{ACL_RULES, RedisClient, RedisConfig, RedisKeys, SubscriptionEvent};
use guildhall::settings::RedisUrl;
use guildhall_core::{
    limit::shared::{
        JoinRequest, MembershipState, ScriptCall, ScriptCommand, ScriptReply, SharedLimitConfig, SyncRequest,
    },
    response::Credential,
};
use guildhall_testkit::redis::RedisServer;
use redis::{Connection, FromRedisValue, TypedCommands as _};
use tokio::time::timeout;

/// A timeout that only a defect reaches; no test waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Longer than any test runs.
const HOUR: Duration = Duration::from_secs(3_600);

/// Number of keys of a window in which no member waits.
const WITHOUT_QUEUE: usize = 7;

const BOT: Credential = Credential::Application(42);

/// Rules under which time changes nothing during a test.
fn frozen_config() -> SharedLimitConfig {
    SharedLimitConfig { silence: HOUR, forget: HOUR, newcomer: HOUR, horizon: HOUR, ..SharedLimitConfig::default() }
}

/// Rules under which the first members get everything at once.
fn immediate_config() -> SharedLimitConfig {
    SharedLimitConfig { newcomer: Duration::ZERO, ..frozen_config() }
}

fn connect(url: RedisUrl) -> RedisClient {
    RedisClient::new(RedisConfig { url, ca_file: None, timeout: TEST_TIMEOUT }).unwrap()
}

async fn with_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.expect("timed out")
}

fn command<T: FromRedisValue>(redis: &mut Connection, args: &[&str]) -> T {
    redis::cmd(args[0]).arg(&args[1..]).query(redis).unwrap()
}

/// A process of the fleet, as seen in its calls.
#[derive(Clone)]
struct Process {
    redis: RedisClient,
    keys: RedisKeys,
    credential: Credential,
    member: &'static str,
    epoch: String,
}

impl Process {
    fn new(redis: &RedisClient, application: u64, credential: Credential, member: &'static str) -> Self {
        Self { redis: redis.clone(), keys: RedisKeys::new(application), credential, member, epoch: String::new() }
    }

    async fn call(&self, command: ScriptCommand, not_after: u64, rules: SharedLimitConfig) -> ScriptReply {
        let call = ScriptCall { member: self.member.to_owned(), incarnation: 0xbeef, not_after, command };
        let window = RedisWindow::new(self.redis.clone(), &self.keys, rules);
        window.call(self.credential, &call).await.unwrap()
    }

    async fn probe(&self) -> String {
        let reply = self.call(ScriptCommand::Probe, 0, frozen_config()).await;
        let ScriptReply::Status { epoch, .. } = reply else { panic!("{reply:?}") };
        epoch
    }

    async fn join(&mut self, join: JoinRequest, rules: SharedLimitConfig) -> MembershipState {
        let reply = self.call(ScriptCommand::Join(join), 0, rules).await;
        let ScriptReply::Done(state) = reply else { panic!("{reply:?}") };
        self.epoch.clone_from(&state.epoch);
        state
    }

    async fn send_sync(&self, sync: SyncRequest, rules: SharedLimitConfig) -> ScriptReply {
        self.call(ScriptCommand::Sync(SyncRequest { epoch: self.epoch.clone(), ..sync }), 0, rules).await
    }

    async fn sync(&self, sync: SyncRequest, rules: SharedLimitConfig) -> MembershipState {
        let reply = self.send_sync(sync, rules).await;
        let ScriptReply::Done(state) = reply else { panic!("{reply:?}") };
        state
    }

    /// Creates a window with data under each of its keys except the queue's. Returns a connected process.
    async fn busy_window(redis: &RedisClient, application: u64) -> Self {
        let mut silent = Self::new(redis, application, BOT, "lost");
        silent.join(JoinRequest::default(), frozen_config()).await;
        let mut present = Self::new(redis, application, BOT, "present");
        // With these rules, the first process counts as detached, and calls sent earlier no longer count.
        let nothing = Duration::ZERO;
        let rules = SharedLimitConfig { silence: nothing, window: nothing, guard: nothing, ..immediate_config() };
        let state = present.join(JoinRequest { in_flight: 1, ..JoinRequest::default() }, rules).await;
        assert_eq!((state.slots.len(), state.members, state.live), (1, 2, 1));
        present
    }
}

fn window_keys(application: u64) -> WindowKeys {
    WindowKeys::new(&RedisKeys::new(application), WindowScope::Bot)
}

#[tokio::test]
async fn script_is_loaded_again_after_a_flush() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut process = Process::new(&redis, 42, BOT, "a");
    process.join(JoinRequest::default(), immediate_config()).await;
    let () = command(&mut server.client().get_connection().unwrap(), &["SCRIPT", "FLUSH"]);
    assert_eq!(
        process
            .sync(SyncRequest { requested_slots: 2, ..SyncRequest::default() }, immediate_config())
            .await
            .slots
            .len(),
        2
    );
}

#[tokio::test]
async fn every_key_has_the_application_tag_and_a_ttl_after_any_call() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let process = Process::busy_window(&redis, 42).await;
    let mut connection = server.client().get_connection().unwrap();
    let keys: BTreeSet<String> = connection.keys("*").unwrap().into_iter().collect();
    assert_eq!(keys, window_keys(42).keys()[..WITHOUT_QUEUE].iter().cloned().collect());
    assert!(keys.iter().all(|key| key.starts_with("guildhall:{42}:bot:")), "{keys:?}");

    let leave = ScriptCommand::Leave(SyncRequest { epoch: process.epoch.clone(), ..SyncRequest::default() });
    let sync = ScriptCommand::Sync(SyncRequest { epoch: process.epoch.clone(), ..SyncRequest::default() });
    for doing in [sync, ScriptCommand::Join(JoinRequest::default()), leave] {
        for key in &keys {
            let () = command(&mut connection, &["PEXPIRE", key, "100000"]);
        }
        process.call(doing.clone(), 0, frozen_config()).await;
        for key in connection.keys("*").unwrap() {
            let ttl: u64 = command(&mut connection, &["PTTL", &key]);
            assert!((3_600_000..=3_600_000 + 360_000).contains(&ttl), "{key} has {ttl} ms left after {doing:?}");
        }
    }

    let mut waiting = Process::new(&redis, 43, BOT, "a");
    waiting.join(JoinRequest::default(), immediate_config()).await;
    let rules = SharedLimitConfig { horizon: Duration::ZERO, ..immediate_config() };
    assert!(
        waiting.sync(SyncRequest { requested_slots: 99, ..SyncRequest::default() }, rules).await.retry_after.is_some()
    );
    for key in &window_keys(43).keys()[WITHOUT_QUEUE..] {
        let ttl: i64 = command(&mut connection, &["PTTL", key]);
        assert!((3_600_000..=3_600_000 + 360_000).contains(&ttl), "{key} has {ttl} ms left");
    }
}

#[tokio::test]
async fn every_member_learns_how_many_tokens_are_free() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let (mut first, mut second) = (Process::new(&redis, 42, BOT, "a"), Process::new(&redis, 42, BOT, "b"));
    // Without these, no token is free until earlier calls have left the window.
    let rules = SharedLimitConfig { window: Duration::ZERO, guard: Duration::ZERO, ..immediate_config() };
    let joined = first.join(JoinRequest::default(), rules.clone()).await;
    assert_eq!((joined.free, joined.pool), (50, 50));
    let booking = SyncRequest { requested_slots: 2, ..SyncRequest::default() };
    assert_eq!(first.sync(booking, rules.clone()).await.free, 48);
    assert_eq!(second.join(JoinRequest::default(), rules.clone()).await.free, 48);
    assert_eq!(second.sync(SyncRequest::default(), rules).await.free, 48);
}

#[tokio::test]
async fn probe_changes_nothing() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    assert_eq!(Process::new(&redis, 42, BOT, "a").probe().await, "");
    let mut connection = server.client().get_connection().unwrap();
    assert_eq!(connection.keys("*").unwrap(), Vec::<String>::new());
    let process = Process::busy_window(&redis, 42).await;
    let dump = |connection: &mut Connection| -> Vec<Vec<u8>> {
        window_keys(42).keys().iter().map(|key| command(connection, &["DUMP", key])).collect()
    };
    let before = dump(&mut connection);
    assert_eq!(process.probe().await, process.epoch);
    assert_eq!(dump(&mut connection), before);
}

#[tokio::test]
async fn late_call_does_nothing() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut process = Process::new(&redis, 42, BOT, "a");
    let reply = process.call(ScriptCommand::Join(JoinRequest::default()), 1, immediate_config()).await;
    let ScriptReply::Stale { now } = reply else { panic!("{reply:?}") };
    let time: Vec<u64> = command(&mut server.client().get_connection().unwrap(), &["TIME"]);
    // The same clock, in microseconds.
    assert!(now.abs_diff(time[0] * 1_000_000 + time[1]) < 3_600_000_000, "{now} is not about {time:?}");
    assert_eq!(process.probe().await, "");
    process.join(JoinRequest::default(), immediate_config()).await;
    assert!(process.epoch.ends_with("-beef"), "{}", process.epoch);
}

#[tokio::test]
async fn window_without_one_of_its_keys_is_discarded() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut connection = server.client().get_connection().unwrap();
    // A window without its queue has only lost an order.
    for (number, part) in window_keys(0).keys()[..WITHOUT_QUEUE].iter().enumerate() {
        let application = 100 + number as u64;
        let mut process = Process::busy_window(&redis, application).await;
        assert_eq!(process.probe().await, process.epoch);
        let () = command(&mut connection, &["DEL", &window_keys(application).keys()[number]]);
        assert_eq!(process.probe().await, "", "{part}");
        let reply = process.send_sync(SyncRequest::default(), frozen_config()).await;
        assert!(matches!(reply, ScriptReply::Rejoin { replaced: false, .. }), "{part}: {reply:?}");
        let before = process.epoch.clone();
        process.join(JoinRequest::default(), frozen_config()).await;
        assert_ne!(process.epoch, before, "{part}");
    }
}

/// Data of an earlier version in Redis: a state without a queue, and a queue from before its epoch.
#[tokio::test]
async fn window_of_an_earlier_version_continues_with_an_empty_queue() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut connection = server.client().get_connection().unwrap();
    let mut process = Process::new(&redis, 42, BOT, "a");
    process.join(JoinRequest::default(), immediate_config()).await;
    let keys = window_keys(42);
    let [state, .., queue, due] = keys.keys() else { panic!("{:?}", keys.keys()) };
    for (key, score) in [(queue, "1"), (due, "9000000000000000")] {
        for number in 0..60 {
            let _: u32 = command(&mut connection, &["ZADD", key, score, &format!("gone {number}")]);
        }
    }
    let deleted: u32 = command(&mut connection, &["HDEL", state, "queued"]);
    assert_eq!(deleted, 1);
    assert_eq!(
        process
            .sync(SyncRequest { requested_slots: 2, ..SyncRequest::default() }, immediate_config())
            .await
            .slots
            .len(),
        2
    );
    // A partial queue counts as none, too.
    let _: u32 = command(&mut connection, &["ZADD", queue, "1", "gone"]);
    assert_eq!(
        process
            .sync(SyncRequest { requested_slots: 1, ..SyncRequest::default() }, immediate_config())
            .await
            .slots
            .len(),
        1
    );
    // An earlier version needs the field that the queue has replaced.
    let line: Option<u64> = command(&mut connection, &["HGET", state, "line"]);
    assert_eq!(line, Some(0));
}

#[tokio::test]
async fn window_belongs_to_one_application_and_credential() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut bot = Process::new(&redis, 42, BOT, "a");
    let mut anonymous = Process::new(&redis, 42, Credential::Anonymous, "a");
    let mut other = Process::new(&redis, 43, Credential::Application(43), "a");
    for process in [&mut bot, &mut anonymous, &mut other] {
        assert_eq!(process.probe().await, "");
        assert_eq!(process.join(JoinRequest::default(), immediate_config()).await.members, 1);
    }
}

#[tokio::test]
async fn global_block_is_published_to_all_processes() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut subscription = redis.subscribe(&RedisKeys::new(42).of("news"));
    assert_eq!(with_timeout(subscription.next()).await, SubscriptionEvent::Subscribed);
    let block = |micros| SyncRequest { block: Duration::from_micros(micros), ..SyncRequest::default() };

    let mut bot = Process::new(&redis, 42, BOT, "a \"strange\" one");
    let millisecond = Duration::from_millis(1);
    let joined = bot
        .join(JoinRequest { block: HOUR, global_block: millisecond, ..JoinRequest::default() }, immediate_config())
        .await;
    assert!(joined.global_block <= millisecond && joined.blocked > HOUR / 2, "{joined:?}");
    // Neither a stale call nor a call without a global block is published.
    bot.call(ScriptCommand::Join(JoinRequest { block: HOUR, ..JoinRequest::default() }), 0, immediate_config()).await;
    bot.call(ScriptCommand::Join(JoinRequest { global_block: HOUR, ..JoinRequest::default() }), 1, immediate_config())
        .await;
    bot.clone().send_sync(SyncRequest::default(), immediate_config()).await;
    Process { epoch: "1-1".to_owned(), ..bot.clone() }.send_sync(block(9_000), immediate_config()).await;
    bot.sync(block(2_000_001), immediate_config()).await;
    let mut anonymous = Process::new(&redis, 42, Credential::Anonymous, "b");
    anonymous.join(JoinRequest::default(), immediate_config()).await;
    let leave = ScriptCommand::Leave(SyncRequest { epoch: anonymous.epoch.clone(), ..block(3_000) });
    anonymous.call(leave, 0, immediate_config()).await;

    for (scope, ms, by) in [("bot", 1, bot.member), ("bot", 2_001, bot.member), ("anonymous", 3, anonymous.member)] {
        let SubscriptionEvent::Message(message) = with_timeout(subscription.next()).await else { panic!("no message") };
        let message: serde_json::Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(message, serde_json::json!({ "kind": "block", "scope": scope, "ms": ms, "by": by }));
    }
}

#[tokio::test]
async fn documented_acl_rules_are_sufficient() {
    let server = RedisServer::start();
    let mut connection = server.client().get_connection().unwrap();
    let rules: Vec<_> = ACL_RULES.split(' ').collect();
    let () = command(&mut connection, &[&["ACL", "SETUSER", "guildhall", "on", ">secret"], &rules[..]].concat());
    let redis = connect(format!("redis://guildhall:secret@127.0.0.1:{}", server.port()).parse().unwrap());
    let process = Process::busy_window(&redis, 42).await;
    process.sync(SyncRequest { block: Duration::from_secs(1), ..SyncRequest::default() }, frozen_config()).await;
    let leave = ScriptCommand::Leave(SyncRequest { epoch: process.epoch.clone(), ..SyncRequest::default() });
    assert!(matches!(process.call(leave, 0, frozen_config()).await, ScriptReply::Status { .. }));
}
