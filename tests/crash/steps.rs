//! Each call of an operation fails once, in each way, and then the daemon is killed: the next one continues where it
//! stopped.

use guildhall_sim::{Fault, FaultAction, Scope};
use guildhall_testkit::crash::{
    client::TEST_TIMEOUT,
    fixture::{DaemonFixture, Engine, FixtureSize, GuildFixture},
};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

/// How long a limit holds an operation, and how long a failed one waits. The daemon is killed meanwhile.
const HELD_MS: u64 = 4_000;

/// An operation that makes several calls, or reads before its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    SendAndPin,
    EditAndPin,
    SetOverwrites,
    ReplaceOverwrites,
    SendDm,
    EnsureRole,
    AdoptRole,
    EnsureChannel,
}

impl StepKind {
    const ALL: [Self; 8] = [
        Self::SendAndPin,
        Self::EditAndPin,
        Self::SetOverwrites,
        Self::ReplaceOverwrites,
        Self::SendDm,
        Self::EnsureRole,
        Self::AdoptRole,
        Self::EnsureChannel,
    ];

    /// Its calls: the route of each, and how many calls of the same route precede it.
    fn calls(self, guild_fixture: &GuildFixture, dm_channel: u64) -> Vec<(String, u64)> {
        let GuildFixture { guild, channel, .. } = guild_fixture;
        let pin = (format!("PUT /channels/{channel}/messages/pins/*"), 0);
        let overwrite = format!("PUT /channels/{channel}/permissions/*");
        match self {
            Self::SendAndPin => vec![(format!("POST /channels/{channel}/messages"), 0), pin],
            Self::EditAndPin => vec![(format!("PATCH /channels/{channel}/messages/*"), 0), pin],
            Self::SetOverwrites => (0..3).map(|nth| (overwrite.clone(), nth)).collect(),
            Self::ReplaceOverwrites => vec![(format!("PATCH /channels/{channel}"), 0)],
            Self::SendDm => vec![(format!("POST /channels/{dm_channel}/messages"), 0)],
            Self::EnsureRole => {
                vec![(format!("GET /guilds/{guild}/roles"), 0), (format!("POST /guilds/{guild}/roles"), 0)]
            }
            Self::AdoptRole => vec![(format!("PATCH /guilds/{guild}/roles/*"), 0)],
            Self::EnsureChannel => vec![(format!("POST /guilds/{guild}/channels"), 0)],
        }
    }

    fn operation(self, guild_fixture: &GuildFixture) -> Value {
        let channel = guild_fixture.channel.to_string();
        let allow = |role: &u64| json!({ "role_id": role.to_string(), "allow": "1024" });
        let overwrites: Vec<Value> = guild_fixture.roles.iter().map(allow).collect();
        let (kind, payload) = match self {
            Self::SendAndPin | Self::EditAndPin => {
                let message = json!({ "key": "rules", "channel_id": channel, "content": "new rules", "pin": true });
                ("ensure_message", message)
            }
            Self::SetOverwrites => ("update_permissions", json!({ "channel_id": channel, "overwrites": overwrites })),
            Self::ReplaceOverwrites => {
                ("replace_overwrites", json!({ "channel_id": channel, "overwrites": overwrites }))
            }
            Self::SendDm => ("send_dm", json!({ "user_id": guild_fixture.dm_user.to_string(), "content": "psst" })),
            Self::EnsureRole => ("ensure_role", json!({ "key": "pilots", "name": "Pilots", "color": 7 })),
            Self::AdoptRole => {
                ("ensure_role", json!({ "key": "pilots", "name": "given-0", "color": 7, "adopt": true }))
            }
            Self::EnsureChannel => ("ensure_channel", json!({ "key": "lobby", "name": "lobby" })),
        };
        json!({ "kind": kind, "payload": payload })
    }

    /// Whether Discord has the requested state exactly once.
    async fn is_applied_once(self, fixture: &DaemonFixture, guild_fixture: &GuildFixture, dm_channel: u64) -> bool {
        let GuildFixture { guild, channel, roles, .. } = guild_fixture;
        let count = |list: &Value, field: &str, value: Value| {
            list.as_array().unwrap().iter().filter(|object| object[field] == value).count()
        };
        match self {
            Self::SendAndPin | Self::EditAndPin => {
                let messages =
                    fixture.call_discord(Method::GET, &format!("/channels/{channel}/messages?limit=100"), None).await;
                let count_with_content = |content: &str| count(&messages, "content", json!(content));
                // Discord adds a message to the channel when a message is pinned.
                count_with_content("new rules") == 1
                    && count_with_content("old rules") == 0
                    && count(&messages, "pinned", json!(true)) == 1
            }
            Self::SetOverwrites | Self::ReplaceOverwrites => {
                let channel_object = fixture.call_discord(Method::GET, &format!("/channels/{channel}"), None).await;
                let overwrites = &channel_object["permission_overwrites"];
                roles.iter().all(|role| count(overwrites, "id", json!(role.to_string())) == 1)
            }
            Self::SendDm => {
                let messages =
                    fixture.call_discord(Method::GET, &format!("/channels/{dm_channel}/messages"), None).await;
                count(&messages, "content", json!("psst")) == 1
            }
            Self::EnsureRole | Self::AdoptRole => {
                let roles = fixture.call_discord(Method::GET, &format!("/guilds/{guild}/roles"), None).await;
                let name = if self == Self::EnsureRole { "Pilots" } else { "given-0" };
                count(&roles, "name", json!(name)) == 1 && count(&roles, "color", json!(7)) == 1
            }
            Self::EnsureChannel => {
                let channels = fixture.call_discord(Method::GET, &format!("/guilds/{guild}/channels"), None).await;
                count(&channels, "name", json!("lobby")) == 1
            }
        }
    }
}

/// A failing call of an operation, in its own guild.
struct StepFailure {
    kind: StepKind,
    nth: usize,
    action: FaultAction,
    guild_fixture: GuildFixture,
    dm_channel: u64,
    id: String,
}

async fn submit_operation(fixture: &DaemonFixture, guild_fixture: &GuildFixture, operation: &Value) -> String {
    let path = format!("/v1/guilds/{}/operations", guild_fixture.guild);
    let started = Instant::now();
    loop {
        let (status, response) = fixture.request(Method::POST, &path, None, Some(operation)).await.unwrap();
        // The listener responds before operations are accepted, so a 503 at the start has accepted nothing.
        if status == 503 && started.elapsed() < TEST_TIMEOUT {
            sleep(Duration::from_millis(10)).await;
            continue;
        }
        assert_eq!(status, 202, "{response}");
        return response["id"].as_str().unwrap().to_owned();
    }
}

async fn get_operation(fixture: &DaemonFixture, id: &str) -> Value {
    fixture.request(Method::GET, &format!("/v1/operations/{id}"), None, None).await.unwrap().1
}

/// Waits until the operation is in one of these states.
async fn wait_for_state(fixture: &DaemonFixture, id: &str, states: &[&str]) -> Value {
    let started = Instant::now();
    loop {
        let operation = get_operation(fixture, id).await;
        if states.contains(&operation["state"].as_str().unwrap_or_default()) {
            return operation;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{operation}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// An operation that a limit has stopped halfway shows its progress and cannot be cancelled.
async fn assert_not_cancellable(fixture: &DaemonFixture, case: &StepFailure) {
    let held = wait_for_state(fixture, &case.id, &["delayed"]).await;
    let path = format!("/v1/operations/{}/cancel", case.id);
    let (status, problem) = fixture.request(Method::POST, &path, None, None).await.unwrap();
    assert_eq!((status, &problem["state"]), (409, &json!("delayed")), "{:?}: {problem}", case.kind);
    assert_eq!(problem["progress"].as_array().unwrap().len(), case.nth, "{problem}");
    assert_eq!(problem["progress"], held["progress"]);
    assert!(problem["detail"].as_str().unwrap().contains("it already "), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operation_failed_at_any_step_completes_once_after_a_restart() {
    let held = FaultAction::RateLimit { scope: Scope::User, retry_after_ms: HELD_MS };
    let unavailable = FaultAction::Status { status: 503, code: 0 };
    let actions = [unavailable, held.clone(), FaultAction::DropBefore, FaultAction::DropAfter];
    let count = |kind: StepKind| kind.calls(&GuildFixture::default(), 0).len() * actions.len();
    let guilds = StepKind::ALL.into_iter().map(count).sum::<usize>();
    let size = FixtureSize { guilds: guilds.try_into().unwrap(), roles: 3, to_delete: 0, permissions: None };
    let fixture = DaemonFixture::new(Engine::Sqlite, size).await;
    let backoff = HELD_MS.to_string();
    let environment = [
        ("GUILDHALL__OPERATIONS__BACKOFF_BASE_MS", backoff.as_str()),
        ("GUILDHALL__OPERATIONS__BACKOFF_CAP_MS", backoff.as_str()),
    ];
    let mut daemon = fixture.start_daemon_with(&environment);
    let (mut guild_fixtures, mut cases) = (fixture.guilds.iter(), Vec::new());
    for kind in StepKind::ALL {
        for nth in 0..kind.calls(&GuildFixture::default(), 0).len() {
            for action in &actions {
                let guild_fixture = guild_fixtures.next().unwrap().clone();
                let body = json!({ "recipient_id": guild_fixture.dm_user.to_string() });
                let opened = fixture.call_discord(Method::POST, "/users/@me/channels", Some(&body)).await;
                let dm_channel = opened["id"].as_str().unwrap().parse().unwrap();
                if kind == StepKind::EditAndPin {
                    let old = json!({ "key": "rules", "channel_id": guild_fixture.channel.to_string(), "content": "old rules" });
                    let first = submit_operation(
                        &fixture,
                        &guild_fixture,
                        &json!({ "kind": "ensure_message", "payload": old }),
                    )
                    .await;
                    wait_for_state(&fixture, &first, &["succeeded"]).await;
                }
                let (route, skip) = kind.calls(&guild_fixture, dm_channel).swap_remove(nth);
                let fault = Fault { route, action: action.clone(), probability: 1.0, count: Some(1), skip };
                fixture.sim.add_fault(fault).unwrap();
                let id = submit_operation(&fixture, &guild_fixture, &kind.operation(&guild_fixture)).await;
                let case = StepFailure { kind, nth, action: action.clone(), guild_fixture, dm_channel, id };
                if *action == held && nth > 0 && kind != StepKind::EnsureRole {
                    assert_not_cancellable(&fixture, &case).await;
                }
                cases.push(case);
            }
        }
    }
    let mut unfinished = 0;
    for case in &cases {
        let operation = wait_for_state(&fixture, &case.id, &["delayed", "retrying", "reconciling", "succeeded"]).await;
        unfinished += usize::from(operation["state"] != "succeeded");
    }
    assert!(unfinished > 0, "the kill interrupts nothing");
    daemon.kill();
    let _daemon = fixture.start_daemon();
    for case in &cases {
        let operation = wait_for_state(&fixture, &case.id, &["succeeded", "dead", "needs_review"]).await;
        let StepFailure { kind, nth, action, guild_fixture, dm_channel, .. } = case;
        assert_eq!(operation["state"], "succeeded", "{kind:?}, call {nth}, {action:?}: {operation}");
        assert!(
            kind.is_applied_once(&fixture, guild_fixture, *dm_channel).await,
            "{kind:?}, call {nth}, {action:?}: {operation}"
        );
    }
}
