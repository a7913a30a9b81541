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
use redis::{Connection, FromRedisValue, TypedCommands as _};
use tokio::time::timeout;

use crate::support::RedisServer;

/// A timeout that only a defect reaches; no test waits for it.
const STUCK: Duration = Duration::from_secs(60);

/// Longer than any test runs.
const HOUR: Duration = Duration::from_secs(3_600);

/// Number of keys of a window in which no member waits.
const WITHOUT_QUEUE: usize = 7;

const BOT: Credential = Credential::Application(42);

/// Rules under which time changes nothing during a test.
fn still() -> SharedLimitConfig {
    SharedLimitConfig { silence: HOUR, forget: HOUR, newcomer: HOUR, horizon: HOUR, ..SharedLimitConfig::default() }
}

/// Rules under which the first members get everything at once.
fn at_once() -> SharedLimitConfig {
    SharedLimitConfig { newcomer: Duration::ZERO, ..still() }
}

fn connect(url: RedisUrl) -> RedisClient {
    RedisClient::new(RedisConfig { url, ca_file: None, timeout: STUCK }).unwrap()
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(STUCK, what).await.expect("timed out")
}

fn command<T: FromRedisValue>(redis: &mut Connection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(redis).unwrap()
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

    async fn call(&self, doing: ScriptCommand, not_after: u64, rules: SharedLimitConfig) -> ScriptReply {
        let call = ScriptCall { member: self.member.to_owned(), life: 0xbeef, not_after, doing };
        let window = RedisWindow::new(self.redis.clone(), &self.keys, rules);
        window.call(self.credential, &call).await.unwrap()
    }

    async fn look(&self) -> String {
        let reply = self.call(ScriptCommand::Look, 0, still()).await;
        let ScriptReply::Seen { epoch, .. } = reply else { panic!("{reply:?}") };
        epoch
    }

    async fn join(&mut self, join: JoinRequest, rules: SharedLimitConfig) -> MembershipState {
        let reply = self.call(ScriptCommand::Join(join), 0, rules).await;
        let ScriptReply::Done(standing) = reply else { panic!("{reply:?}") };
        self.epoch.clone_from(&standing.epoch);
        standing
    }

    async fn say(&self, sync: SyncRequest, rules: SharedLimitConfig) -> ScriptReply {
        self.call(ScriptCommand::Sync(SyncRequest { epoch: self.epoch.clone(), ..sync }), 0, rules).await
    }

    async fn sync(&self, sync: SyncRequest, rules: SharedLimitConfig) -> MembershipState {
        let reply = self.say(sync, rules).await;
        let ScriptReply::Done(standing) = reply else { panic!("{reply:?}") };
        standing
    }

    /// Creates a window with data under each of its keys except the queue's. Returns a connected process.
    async fn busy_window(redis: &RedisClient, application: u64) -> Self {
        let mut lost = Self::new(redis, application, BOT, "lost");
        lost.join(JoinRequest::default(), still()).await;
        let mut present = Self::new(redis, application, BOT, "present");
        // With these rules, the first process counts as detached, and calls sent earlier no longer count.
        let nothing = Duration::ZERO;
        let rules = SharedLimitConfig { silence: nothing, window: nothing, guard: nothing, ..at_once() };
        let standing = present.join(JoinRequest { flying: 1, ..JoinRequest::default() }, rules).await;
        assert_eq!((standing.slots.len(), standing.members, standing.live), (1, 2, 1));
        present
    }
}

fn place(application: u64) -> WindowKeys {
    WindowKeys::new(&RedisKeys::new(application), WindowScope::Bot)
}

#[tokio::test]
async fn a_script_that_the_server_has_forgotten_is_given_to_it_again() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut process = Process::new(&redis, 42, BOT, "a");
    process.join(JoinRequest::default(), at_once()).await;
    let () = command(&mut server.client().get_connection().unwrap(), &["SCRIPT", "FLUSH"]);
    assert_eq!(process.sync(SyncRequest { want: 2, ..SyncRequest::default() }, at_once()).await.slots.len(), 2);
}

#[tokio::test]
async fn every_key_carries_the_applications_tag_and_ends_by_itself_whatever_call_was_the_last() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let process = Process::busy_window(&redis, 42).await;
    let mut wire = server.client().get_connection().unwrap();
    let there: BTreeSet<String> = wire.keys("*").unwrap().into_iter().collect();
    assert_eq!(there, place(42).keys()[..WITHOUT_QUEUE].iter().cloned().collect());
    assert!(there.iter().all(|key| key.starts_with("guildhall:{42}:bot:")), "{there:?}");

    let leave = ScriptCommand::Leave(SyncRequest { epoch: process.epoch.clone(), ..SyncRequest::default() });
    let sync = ScriptCommand::Sync(SyncRequest { epoch: process.epoch.clone(), ..SyncRequest::default() });
    for doing in [sync, ScriptCommand::Join(JoinRequest::default()), leave] {
        for key in &there {
            let () = command(&mut wire, &["PEXPIRE", key, "100000"]);
        }
        process.call(doing.clone(), 0, still()).await;
        for key in wire.keys("*").unwrap() {
            let left: u64 = command(&mut wire, &["PTTL", &key]);
            assert!((3_600_000..=3_600_000 + 360_000).contains(&left), "{key} has {left} ms left after {doing:?}");
        }
    }

    let mut waiting = Process::new(&redis, 43, BOT, "a");
    waiting.join(JoinRequest::default(), at_once()).await;
    let rules = SharedLimitConfig { horizon: Duration::ZERO, ..at_once() };
    assert!(waiting.sync(SyncRequest { want: 99, ..SyncRequest::default() }, rules).await.again.is_some());
    for key in &place(43).keys()[WITHOUT_QUEUE..] {
        let left: i64 = command(&mut wire, &["PTTL", key]);
        assert!((3_600_000..=3_600_000 + 360_000).contains(&left), "{key} has {left} ms left");
    }
}

#[tokio::test]
async fn a_look_leaves_everything_as_it_is() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    assert_eq!(Process::new(&redis, 42, BOT, "a").look().await, "");
    let mut wire = server.client().get_connection().unwrap();
    assert_eq!(wire.keys("*").unwrap(), Vec::<String>::new());
    let process = Process::busy_window(&redis, 42).await;
    let dump = |wire: &mut Connection| -> Vec<Vec<u8>> {
        place(42).keys().iter().map(|key| command(wire, &["DUMP", key])).collect()
    };
    let before = dump(&mut wire);
    assert_eq!(process.look().await, process.epoch);
    assert_eq!(dump(&mut wire), before);
}

#[tokio::test]
async fn a_call_that_comes_too_late_does_nothing() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut process = Process::new(&redis, 42, BOT, "a");
    let reply = process.call(ScriptCommand::Join(JoinRequest::default()), 1, at_once()).await;
    let ScriptReply::Stale { now } = reply else { panic!("{reply:?}") };
    let time: Vec<u64> = command(&mut server.client().get_connection().unwrap(), &["TIME"]);
    // The same clock, in microseconds.
    assert!(now.abs_diff(time[0] * 1_000_000 + time[1]) < 3_600_000_000, "{now} is not about {time:?}");
    assert_eq!(process.look().await, "");
    process.join(JoinRequest::default(), at_once()).await;
    assert!(process.epoch.ends_with("-beef"), "{}", process.epoch);
}

#[tokio::test]
async fn a_window_that_has_lost_any_part_of_itself_is_none() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut wire = server.client().get_connection().unwrap();
    // A window without its queue has only lost an order.
    for (number, part) in place(0).keys()[..WITHOUT_QUEUE].iter().enumerate() {
        let application = 100 + number as u64;
        let mut process = Process::busy_window(&redis, application).await;
        assert_eq!(process.look().await, process.epoch);
        let () = command(&mut wire, &["DEL", &place(application).keys()[number]]);
        assert_eq!(process.look().await, "", "{part}");
        let reply = process.say(SyncRequest::default(), still()).await;
        assert!(matches!(reply, ScriptReply::Rejoin { replaced: false, .. }), "{part}: {reply:?}");
        let before = process.epoch.clone();
        process.join(JoinRequest::default(), still()).await;
        assert_ne!(process.epoch, before, "{part}");
    }
}

/// Data of an earlier version in Redis: a state without a queue, and a queue from before its epoch.
#[tokio::test]
async fn a_window_of_an_earlier_version_goes_on_with_an_empty_queue() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut wire = server.client().get_connection().unwrap();
    let mut process = Process::new(&redis, 42, BOT, "a");
    process.join(JoinRequest::default(), at_once()).await;
    let place = place(42);
    let [state, .., queue, due] = place.keys() else { panic!("{:?}", place.keys()) };
    for (key, lasts) in [(queue, "1"), (due, "9000000000000000")] {
        for number in 0..60 {
            let _: u32 = command(&mut wire, &["ZADD", key, lasts, &format!("gone {number}")]);
        }
    }
    let deleted: u32 = command(&mut wire, &["HDEL", state, "queued"]);
    assert_eq!(deleted, 1);
    assert_eq!(process.sync(SyncRequest { want: 2, ..SyncRequest::default() }, at_once()).await.slots.len(), 2);
    // A partial queue counts as none, too.
    let _: u32 = command(&mut wire, &["ZADD", queue, "1", "gone"]);
    assert_eq!(process.sync(SyncRequest { want: 1, ..SyncRequest::default() }, at_once()).await.slots.len(), 1);
    // An earlier version needs the field that the queue has replaced.
    let line: Option<u64> = command(&mut wire, &["HGET", state, "line"]);
    assert_eq!(line, Some(0));
}

#[tokio::test]
async fn a_window_belongs_to_one_application_and_one_credential() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut bot = Process::new(&redis, 42, BOT, "a");
    let mut anonymous = Process::new(&redis, 42, Credential::Anonymous, "a");
    let mut other = Process::new(&redis, 43, Credential::Application(43), "a");
    for process in [&mut bot, &mut anonymous, &mut other] {
        assert_eq!(process.look().await, "");
        assert_eq!(process.join(JoinRequest::default(), at_once()).await.members, 1);
    }
}

#[tokio::test]
async fn everybody_hears_at_once_when_discord_wants_to_be_left_alone() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let mut news = redis.subscribe(&RedisKeys::new(42).of("news"));
    assert_eq!(soon(news.next()).await, SubscriptionEvent::Subscribed);
    let block = |micros| SyncRequest { block: Duration::from_micros(micros), ..SyncRequest::default() };

    let mut bot = Process::new(&redis, 42, BOT, "a \"strange\" one");
    let millisecond = Duration::from_millis(1);
    let joined =
        bot.join(JoinRequest { block: HOUR, global_block: millisecond, ..JoinRequest::default() }, at_once()).await;
    assert!(joined.global_block <= millisecond && joined.blocked > HOUR / 2, "{joined:?}");
    // Neither a stale call nor a call without a global block is published.
    bot.call(ScriptCommand::Join(JoinRequest { block: HOUR, ..JoinRequest::default() }), 0, at_once()).await;
    bot.call(ScriptCommand::Join(JoinRequest { global_block: HOUR, ..JoinRequest::default() }), 1, at_once()).await;
    bot.clone().say(SyncRequest::default(), at_once()).await;
    Process { epoch: "1-1".to_owned(), ..bot.clone() }.say(block(9_000), at_once()).await;
    bot.sync(block(2_000_001), at_once()).await;
    let mut anonymous = Process::new(&redis, 42, Credential::Anonymous, "b");
    anonymous.join(JoinRequest::default(), at_once()).await;
    let leave = ScriptCommand::Leave(SyncRequest { epoch: anonymous.epoch.clone(), ..block(3_000) });
    anonymous.call(leave, 0, at_once()).await;

    for (scope, ms, by) in [("bot", 1, bot.member), ("bot", 2_001, bot.member), ("anonymous", 3, anonymous.member)] {
        let SubscriptionEvent::Message(told) = soon(news.next()).await else { panic!("no message") };
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        assert_eq!(told, serde_json::json!({ "kind": "block", "scope": scope, "ms": ms, "by": by }));
    }
}

#[tokio::test]
async fn a_user_with_no_more_rights_than_the_documented_ones_may_do_all_of_it() {
    let server = RedisServer::start();
    let mut wire = server.client().get_connection().unwrap();
    let rules: Vec<_> = ACL_RULES.split(' ').collect();
    let () = command(&mut wire, &[&["ACL", "SETUSER", "guildhall", "on", ">secret"], &rules[..]].concat());
    let redis = connect(format!("redis://guildhall:secret@127.0.0.1:{}", server.port()).parse().unwrap());
    let process = Process::busy_window(&redis, 42).await;
    process.sync(SyncRequest { block: Duration::from_secs(1), ..SyncRequest::default() }, still()).await;
    let leave = ScriptCommand::Leave(SyncRequest { epoch: process.epoch.clone(), ..SyncRequest::default() });
    assert!(matches!(process.call(leave, 0, still()).await, ScriptReply::Seen { .. }));
}
