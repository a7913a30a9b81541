//! Runs the script and the model together: both get the same calls at the same time of the same clock.

use std::time::Duration;

use guildhall::redis::RedisKeys;
use guildhall::redis::window::{GATE, WindowKeys, WindowScope, read_reply};
use guildhall_core::limit::shared::{ReferenceWindow, ScriptCall, ScriptReply, SharedLimitConfig};
use guildhall_testkit::redis::RedisServer;
use proptest::{
    strategy::Strategy,
    test_runner::{Config, TestCaseError, TestCaseResult, TestRunner},
};
use redis::{Connection, cmd};

use super::mirror;

/// The line of the script that reads the clock.
const CLOCK: &str = "local time = redis.call('TIME') -- The one clock.";

/// Its replacement: the time is the last argument.
const GIVEN_CLOCK: &str = "local time = { 0, ARGV[#ARGV] }";

/// Cases per property, unless `PROPTEST_CASES` sets more.
const CASES: u32 = 300;

/// A day in this century, in microseconds, so that times are as large as real ones.
pub(crate) const START: u64 = 1_750_000_000_000_000;

/// Runs random sequences on both. Each starts with an empty Redis.
pub(crate) fn for_all<T: std::fmt::Debug>(
    sequences: &impl Strategy<Value = T>,
    drive: impl Fn(T, &mut Pair<'_>) -> TestCaseResult,
) {
    let server = RedisServer::start();
    let connection = std::cell::RefCell::new(server.client().get_connection().unwrap());
    assert_eq!(GATE.matches(CLOCK).count(), 1, "the script must read its clock in one place");
    let script = GATE.replace(CLOCK, GIVEN_CLOCK);
    let sha: String = cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection.borrow_mut()).unwrap();
    let config = Config { failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    let mut runner = TestRunner::new(Config { cases: config.cases.max(CASES), ..config });
    let result = runner.run(sequences, |sequence| {
        let mut connection = connection.borrow_mut();
        let mut pair = Pair::new(&mut connection, &sha);
        pair.flush();
        drive(sequence, &mut pair)?;
        pair.compare_states()
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

pub(crate) struct Pair<'a> {
    connection: &'a mut Connection,
    sha: &'a str,
    keys: WindowKeys,
    window: ReferenceWindow,
    /// Clock of both.
    pub(crate) now: u64,
    /// Run id of the server of both.
    pub(crate) server: String,
    calls: u32,
}

impl<'a> Pair<'a> {
    fn new(connection: &'a mut Connection, sha: &'a str) -> Self {
        let keys = WindowKeys::new(&RedisKeys::new(7), WindowScope::Bot);
        Self {
            connection,
            sha,
            keys,
            window: ReferenceWindow::empty(),
            now: START,
            server: "first".to_owned(),
            calls: 0,
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += u64::try_from(time.as_micros()).unwrap();
    }

    pub(crate) fn flush(&mut self) {
        cmd("FLUSHALL").exec(self.connection).unwrap();
        self.window = ReferenceWindow::empty();
    }

    /// Reply of both.
    pub(crate) fn call(&mut self, call: &ScriptCall, rules: &SharedLimitConfig) -> Result<ScriptReply, TestCaseError> {
        let keys = self.keys.keys();
        let reply = cmd("EVALSHA")
            .arg(self.sha)
            .arg(keys.len())
            .arg(keys)
            .arg(self.keys.arguments(call, rules, &self.server))
            .arg(self.now)
            .query(self.connection)
            .map_err(|error| TestCaseError::fail(format!("{error} at {call:?}")))?;
        let scripted = read_reply(reply).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let modelled = self.window.call(call, rules, &self.server, self.now);
        proptest::prop_assert_eq!(&scripted, &modelled, "the script (left) and the model differ at {:?}", call);
        self.calls += 1;
        if self.calls.is_multiple_of(16) {
            self.compare_states()?;
        }
        Ok(modelled)
    }

    fn compare_states(&mut self) -> TestCaseResult {
        let scripted = format!("{:#?}", mirror::ReferenceWindow::read(self.connection, self.keys.keys()));
        let modelled = format!("{:#?}", self.window);
        proptest::prop_assert!(
            scripted == modelled,
            "the state of the script is {scripted}\nand that of the model is \
            {modelled}"
        );
        Ok(())
    }
}
