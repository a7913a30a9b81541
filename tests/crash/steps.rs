//! Each call of an operation fails once, in each way, and then the daemon is killed: the next one continues where it
//! stopped.

use guildhall_sim::{Fault, FaultAction, Scope};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use crate::{
    caller::STUCK,
    stage::{Engine, Furniture, Place, Stage},
};

/// How long a limit holds an operation, and how long a failed one waits. The daemon is killed meanwhile.
const HELD_MS: u64 = 4_000;

/// An operation that makes several calls, or reads before its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    SendAndPin,
    EditAndPin,
    SetOverwrites,
    ReplaceOverwrites,
    SendDm,
    EnsureRole,
    AdoptRole,
    EnsureChannel,
}

impl Kind {
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
    fn calls(self, place: &Place, direct: u64) -> Vec<(String, u64)> {
        let Place { guild, channel, .. } = place;
        let pin = (format!("PUT /channels/{channel}/messages/pins/*"), 0);
        let overwrite = format!("PUT /channels/{channel}/permissions/*");
        match self {
            Self::SendAndPin => vec![(format!("POST /channels/{channel}/messages"), 0), pin],
            Self::EditAndPin => vec![(format!("PATCH /channels/{channel}/messages/*"), 0), pin],
            Self::SetOverwrites => (0..3).map(|nth| (overwrite.clone(), nth)).collect(),
            Self::ReplaceOverwrites => vec![(format!("PATCH /channels/{channel}"), 0)],
            Self::SendDm => vec![(format!("POST /channels/{direct}/messages"), 0)],
            Self::EnsureRole => {
                vec![(format!("GET /guilds/{guild}/roles"), 0), (format!("POST /guilds/{guild}/roles"), 0)]
            }
            Self::AdoptRole => vec![(format!("PATCH /guilds/{guild}/roles/*"), 0)],
            Self::EnsureChannel => vec![(format!("POST /guilds/{guild}/channels"), 0)],
        }
    }

    fn operation(self, place: &Place) -> Value {
        let channel = place.channel.to_string();
        let allow = |role: &u64| json!({ "role_id": role.to_string(), "allow": "1024" });
        let overwrites: Vec<Value> = place.roles.iter().map(allow).collect();
        let (kind, payload) = match self {
            Self::SendAndPin | Self::EditAndPin => {
                let message = json!({ "key": "rules", "channel_id": channel, "content": "new rules", "pin": true });
                ("ensure_message", message)
            }
            Self::SetOverwrites => ("update_permissions", json!({ "channel_id": channel, "overwrites": overwrites })),
            Self::ReplaceOverwrites => {
                ("replace_overwrites", json!({ "channel_id": channel, "overwrites": overwrites }))
            }
            Self::SendDm => ("send_dm", json!({ "user_id": place.confidant.to_string(), "content": "psst" })),
            Self::EnsureRole => ("ensure_role", json!({ "key": "pilots", "name": "Pilots", "color": 7 })),
            Self::AdoptRole => {
                ("ensure_role", json!({ "key": "pilots", "name": "given-0", "color": 7, "adopt": true }))
            }
            Self::EnsureChannel => ("ensure_channel", json!({ "key": "lobby", "name": "lobby" })),
        };
        json!({ "kind": kind, "payload": payload })
    }

    /// Whether Discord has the requested state exactly once.
    async fn holds(self, stage: &Stage, place: &Place, direct: u64) -> bool {
        let Place { guild, channel, roles, .. } = place;
        let count = |list: &Value, field: &str, value: Value| {
            list.as_array().unwrap().iter().filter(|object| object[field] == value).count()
        };
        match self {
            Self::SendAndPin | Self::EditAndPin => {
                let messages =
                    stage.discord(Method::GET, &format!("/channels/{channel}/messages?limit=100"), None).await;
                let said = |content: &str| count(&messages, "content", json!(content));
                // Discord adds a message to the channel when a message is pinned.
                said("new rules") == 1 && said("old rules") == 0 && count(&messages, "pinned", json!(true)) == 1
            }
            Self::SetOverwrites | Self::ReplaceOverwrites => {
                let seen = stage.discord(Method::GET, &format!("/channels/{channel}"), None).await;
                let overwrites = &seen["permission_overwrites"];
                roles.iter().all(|role| count(overwrites, "id", json!(role.to_string())) == 1)
            }
            Self::SendDm => {
                let messages = stage.discord(Method::GET, &format!("/channels/{direct}/messages"), None).await;
                count(&messages, "content", json!("psst")) == 1
            }
            Self::EnsureRole | Self::AdoptRole => {
                let roles = stage.discord(Method::GET, &format!("/guilds/{guild}/roles"), None).await;
                let name = if self == Self::EnsureRole { "Pilots" } else { "given-0" };
                count(&roles, "name", json!(name)) == 1 && count(&roles, "color", json!(7)) == 1
            }
            Self::EnsureChannel => {
                let channels = stage.discord(Method::GET, &format!("/guilds/{guild}/channels"), None).await;
                count(&channels, "name", json!("lobby")) == 1
            }
        }
    }
}

/// A failing call of an operation, in its own guild.
struct Case {
    kind: Kind,
    nth: usize,
    action: FaultAction,
    place: Place,
    direct: u64,
    id: String,
}

async fn accept(stage: &Stage, place: &Place, operation: &Value) -> String {
    let path = format!("/v1/guilds/{}/operations", place.guild);
    let began = Instant::now();
    loop {
        let (status, answer) = stage.ask(Method::POST, &path, None, Some(operation)).await.unwrap();
        // The listener responds before operations are accepted, so a 503 at the start has accepted nothing.
        if status == 503 && began.elapsed() < STUCK {
            sleep(Duration::from_millis(10)).await;
            continue;
        }
        assert_eq!(status, 202, "{answer}");
        return answer["id"].as_str().unwrap().to_owned();
    }
}

async fn shown(stage: &Stage, id: &str) -> Value {
    stage.ask(Method::GET, &format!("/v1/operations/{id}"), None, None).await.unwrap().1
}

/// Waits until the operation is in one of these states.
async fn until(stage: &Stage, id: &str, states: &[&str]) -> Value {
    let began = Instant::now();
    loop {
        let shown = shown(stage, id).await;
        if states.contains(&shown["state"].as_str().unwrap_or_default()) {
            return shown;
        }
        assert!(began.elapsed() < STUCK, "{shown}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// An operation that a limit has stopped halfway shows its progress and cannot be cancelled.
async fn cannot_be_cancelled(stage: &Stage, case: &Case) {
    let held = until(stage, &case.id, &["delayed"]).await;
    let path = format!("/v1/operations/{}/cancel", case.id);
    let (status, problem) = stage.ask(Method::POST, &path, None, None).await.unwrap();
    assert_eq!((status, &problem["state"]), (409, &json!("delayed")), "{:?}: {problem}", case.kind);
    assert_eq!(problem["progress"].as_array().unwrap().len(), case.nth, "{problem}");
    assert_eq!(problem["progress"], held["progress"]);
    assert!(problem["detail"].as_str().unwrap().contains("it already "), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fails_at_each_step_and_is_completed_once_after_a_restart() {
    let held = FaultAction::RateLimit { scope: Scope::User, retry_after_ms: HELD_MS };
    let unavailable = FaultAction::Status { status: 503, code: 0 };
    let actions = [unavailable, held.clone(), FaultAction::DropBefore, FaultAction::DropAfter];
    let count = |kind: Kind| kind.calls(&Place::default(), 0).len() * actions.len();
    let guilds = Kind::ALL.into_iter().map(count).sum::<usize>();
    let furniture = Furniture { guilds: guilds.try_into().unwrap(), roles: 3, doomed: 0, permissions: None };
    let stage = Stage::new(Engine::Sqlite, furniture).await;
    let backoff = HELD_MS.to_string();
    let waits = [
        ("GUILDHALL__OPERATIONS__BACKOFF_BASE_MS", backoff.as_str()),
        ("GUILDHALL__OPERATIONS__BACKOFF_CAP_MS", backoff.as_str()),
    ];
    let mut life = stage.begin_with(&waits);
    let (mut places, mut cases) = (stage.places.iter(), Vec::new());
    for kind in Kind::ALL {
        for nth in 0..kind.calls(&Place::default(), 0).len() {
            for action in &actions {
                let place = places.next().unwrap().clone();
                let body = json!({ "recipient_id": place.confidant.to_string() });
                let opened = stage.discord(Method::POST, "/users/@me/channels", Some(&body)).await;
                let direct = opened["id"].as_str().unwrap().parse().unwrap();
                if kind == Kind::EditAndPin {
                    let old =
                        json!({ "key": "rules", "channel_id": place.channel.to_string(), "content": "old rules" });
                    let first = accept(&stage, &place, &json!({ "kind": "ensure_message", "payload": old })).await;
                    until(&stage, &first, &["succeeded"]).await;
                }
                let (route, skip) = kind.calls(&place, direct).swap_remove(nth);
                let fault = Fault { route, action: action.clone(), probability: 1.0, count: Some(1), skip };
                stage.sim.add_fault(fault).unwrap();
                let id = accept(&stage, &place, &kind.operation(&place)).await;
                let case = Case { kind, nth, action: action.clone(), place, direct, id };
                if *action == held && nth > 0 && kind != Kind::EnsureRole {
                    cannot_be_cancelled(&stage, &case).await;
                }
                cases.push(case);
            }
        }
    }
    let mut unfinished = 0;
    for case in &cases {
        let shown = until(&stage, &case.id, &["delayed", "retrying", "reconciling", "succeeded"]).await;
        unfinished += usize::from(shown["state"] != "succeeded");
    }
    assert!(unfinished > 0, "the kill interrupts nothing");
    life.kill();
    let _life = stage.begin();
    for case in &cases {
        let shown = until(&stage, &case.id, &["succeeded", "dead", "needs_review"]).await;
        let Case { kind, nth, action, place, direct, .. } = case;
        assert_eq!(shown["state"], "succeeded", "{kind:?}, call {nth}, {action:?}: {shown}");
        assert!(kind.holds(&stage, place, *direct).await, "{kind:?}, call {nth}, {action:?}: {shown}");
    }
}
