//! The form of the calls, and the simulator's responses to them.

use std::time::Duration;

use guildhall_actors::gate::{Effects, RequestBody, RestRequest, RestResponse};
use guildhall_core::{
    response::{Credential, ResponseClass},
    route::SublimitKind,
};
use guildhall_sim::{FireSpec, Sim, SimConfig, SimHandle};
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use twilight_model::{guild::audit_log::AuditLogEventType, http::interaction::InteractionResponseData};

use super::*;
use crate::{
    discord::rest::{DecodeError, HyperTransport, TransportConfig},
    settings::SecretValue,
};

fn body(request: &RestRequest) -> Value {
    match &request.body {
        RequestBody::Whole(bytes) => serde_json::from_slice(bytes).unwrap(),
        RequestBody::Empty | RequestBody::Stream(_) => Value::Null,
    }
}

fn shape<T>(call: &Call<T>) -> (Method, &str, Effects, Option<u64>) {
    (call.request.method.clone(), &call.request.path, call.request.effects, call.request.guild)
}

#[tokio::test]
async fn calls_have_the_right_method_path_effects_and_guild() {
    let calls = CallBuilder::new(Id::new(5));
    let (guild, user, role, channel, message) = (Id::new(1), Id::new(2), Id::new(3), Id::new(4), Id::new(6));
    let (none, again, creates) = (Effects::None, Effects::Idempotent, Effects::Creates);
    assert_eq!(shape(&calls.gateway_bot().unwrap()), (Method::GET, "/gateway/bot", none, None));
    let call = calls.create_role(guild, |role| role.name("a")).unwrap();
    assert_eq!(shape(&call), (Method::POST, "/guilds/1/roles", creates, Some(1)));
    let call = calls.delete_role(guild, role).unwrap();
    assert_eq!(shape(&call), (Method::DELETE, "/guilds/1/roles/3", again, Some(1)));
    let call = calls.add_member_role(guild, user, role).unwrap();
    assert_eq!(shape(&call), (Method::PUT, "/guilds/1/members/2/roles/3", again, Some(1)));
    let call = calls.remove_member_role(guild, user, role).unwrap();
    assert_eq!(shape(&call), (Method::DELETE, "/guilds/1/members/2/roles/3", again, Some(1)));
    let call = calls.create_channel(guild, "hall", |channel| channel.topic("t")).unwrap();
    assert_eq!(shape(&call), (Method::POST, "/guilds/1/channels", creates, Some(1)));
    assert_eq!(call.request.sub, None);
    let call = calls.delete_channel(channel).unwrap();
    assert_eq!(shape(&call), (Method::DELETE, "/channels/4", again, None));
    let call = calls.message(channel, message).unwrap();
    assert_eq!(shape(&call), (Method::GET, "/channels/4/messages/6", none, None));
    let call = calls.messages(channel, MessagePage::After(message), 50).unwrap();
    assert_eq!(shape(&call), (Method::GET, "/channels/4/messages?after=6&limit=50", none, None));
    let call = calls.audit_log(guild, |log| log.action_type(AuditLogEventType::RoleCreate).limit(10)).unwrap();
    assert_eq!(shape(&call), (Method::GET, "/guilds/1/audit-logs?action_type=30&limit=10", none, Some(1)));
}

#[tokio::test]
async fn channel_name_and_topic_have_their_own_limit() {
    let calls = CallBuilder::new(Id::new(5));
    let call = calls.modify_channel(Id::new(4), |channel| channel.name("hall")).unwrap().for_guild(Id::new(1));
    assert_eq!(shape(&call), (Method::PATCH, "/channels/4", Effects::Idempotent, Some(1)));
    assert_eq!(call.request.sub, Some(SublimitKind::ChannelName));
    assert_eq!(calls.modify_channel(Id::new(4), |channel| channel.nsfw(true)).unwrap().request.sub, None);
}

#[tokio::test]
async fn message_carries_its_nonce_and_mentions_no_one_by_default() {
    let calls = CallBuilder::new(Id::new(5));
    let call = calls.create_message(Id::new(4), "n-1", |message| message.content("@everyone")).unwrap();
    let sent = json!({
        "allowed_mentions": { "parse": [] }, "content": "@everyone", "nonce": "n-1", "enforce_nonce": true
    });
    assert_eq!(body(&call.request), sent);
    let failed = |nonce: &str| calls.create_message(Id::new(4), nonce, |message| message.content("a")).unwrap_err();
    assert_eq!(failed(""), CallError::Nonce(0));
    assert_eq!(failed(&"n".repeat(26)), CallError::Nonce(26));

    let response = InteractionResponse {
        kind: InteractionResponseType::ChannelMessageWithSource,
        data: Some(InteractionResponseData { content: Some("@here".to_owned()), ..InteractionResponseData::default() }),
    };
    let call = calls.interaction_callback(Id::new(9), "t", &response).unwrap();
    assert_eq!(body(&call.request)["data"]["allowed_mentions"], json!({ "parse": [] }));
}

#[tokio::test]
async fn invalid_calls_are_rejected_with_a_reason() {
    let calls = CallBuilder::new(Id::new(5));
    let long = "a".repeat(2_001);
    let error = calls.create_message(Id::new(4), "n", |message| message.content(&long)).unwrap_err();
    assert!(matches!(&error, CallError::Invalid(reason) if reason.contains("content")), "{error}");
    assert!(matches!(calls.messages(Id::new(4), MessagePage::Newest, 101), Err(CallError::Invalid(_))));
    assert!(matches!(calls.create_channel(Id::new(1), "", |channel| channel), Err(CallError::Invalid(_))));
}

#[tokio::test]
async fn interaction_calls_are_recognized_by_the_gate() {
    let calls = CallBuilder::new(Id::new(5));
    let edit = calls.edit_original("tok", OriginalEdit { content: Some("done"), ..OriginalEdit::default() }).unwrap();
    assert_eq!(shape(&edit), (Method::PATCH, "/webhooks/5/tok/messages/@original", Effects::Idempotent, None));
    let deferred = InteractionResponse { kind: InteractionResponseType::DeferredChannelMessageWithSource, data: None };
    let defer = calls.interaction_callback(Id::new(9), "tok", &deferred).unwrap();
    assert_eq!(defer.request.path, "/interactions/9/tok/callback");
    assert!(edit.request.route(0).interaction && defer.request.route(0).interaction);
    // A webhook of another application uses only its own token.
    let webhook = calls.builders().execute_webhook(Id::new(6), "tok").content("a");
    let call: Call<()> = calls.build(webhook).unwrap();
    assert_eq!(call.request.credential, Credential::Anonymous);
}

struct Fixture {
    sim: SimHandle,
    transport: HyperTransport,
    calls: CallBuilder,
    guild: Id<GuildMarker>,
}

impl Fixture {
    async fn start() -> Self {
        let config = SimConfig::default();
        let token = config.bots[0].token.clone();
        let sim = Sim::start(config).await.unwrap();
        let application = sim.application(&token).unwrap().to_string().parse().unwrap();
        let guild = sim.guilds()[0].to_string().parse().unwrap();
        let transport = HyperTransport::new(TransportConfig {
            api_url: sim.api_url(),
            token: SecretValue::new(token),
            connect_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(60),
            max_response_bytes: 1 << 20,
            pool_idle: Duration::from_secs(60),
            traceparent: false,
            http2: false,
        });
        Self { sim, transport: transport.unwrap(), calls: CallBuilder::new(application), guild }
    }

    async fn send<T: DeserializeOwned>(&self, call: Call<T>) -> Result<T, DecodeError> {
        let received = self.transport.exchange(call.request).await.unwrap();
        call.decoder.decode(&RestResponse {
            status: received.status,
            headers: received.headers,
            body: received.body,
            stream: None,
            class: received.class,
            code: received.code,
            elapsed: Duration::ZERO,
        })
    }
}

#[tokio::test]
async fn simulator_accepts_the_role_lifecycle_and_stores_the_reason() {
    let bench = Fixture::start().await;
    let (calls, guild) = (&bench.calls, bench.guild);
    let user: Id<UserMarker> = {
        let joined = bench.sim.join(bench.sim.guilds()[0], guildhall_sim::JoinSpec { count: 1, ..Default::default() });
        joined.await.unwrap().id.unwrap().to_string().parse().unwrap()
    };
    let reason = "für Gäste [gh:1]";
    let create = calls.create_role(guild, |role| role.name("guest").hoist(true)).unwrap().with_reason(reason).unwrap();
    let role = bench.send(create).await.unwrap();
    assert_eq!((role.name.as_str(), role.hoist), ("guest", true));
    bench.send(calls.add_member_role(guild, user, role.id).unwrap()).await.unwrap();
    bench.send(calls.remove_member_role(guild, user, role.id).unwrap()).await.unwrap();
    let log = calls.audit_log(guild, |log| log.action_type(AuditLogEventType::RoleCreate).limit(1)).unwrap();
    let log = bench.send(log).await.unwrap();
    assert_eq!(log.entries[0].reason.as_deref(), Some(reason));
    assert_eq!(log.entries[0].target_id, Some(role.id.cast()));
    bench.send(calls.delete_role(guild, role.id).unwrap()).await.unwrap();
    let gone = bench.send(calls.delete_role(guild, role.id).unwrap()).await.unwrap_err();
    assert!(matches!(gone, DecodeError::Refused { class: ResponseClass::NotFound, code: Some(10_011), .. }), "{gone}");
}

#[tokio::test]
async fn simulator_accepts_the_channel_lifecycle_and_deduplicates_messages() {
    let bench = Fixture::start().await;
    let (calls, guild) = (&bench.calls, bench.guild);
    let create = calls.create_channel(guild, "hall", |channel| channel.topic("greetings")).unwrap();
    let channel = bench.send(create).await.unwrap();
    assert_eq!((channel.name.as_deref(), channel.topic.as_deref()), (Some("hall"), Some("greetings")));
    let rename = calls.modify_channel(channel.id, |channel| channel.name("lobby")).unwrap();
    assert_eq!(bench.send(rename).await.unwrap().name.as_deref(), Some("lobby"));

    let hello = || calls.create_message(channel.id, "once", |message| message.content("hello")).unwrap();
    let first = bench.send(hello()).await.unwrap();
    assert_eq!(bench.send(hello()).await.unwrap().id, first.id);
    let listed = bench.send(calls.messages(channel.id, MessagePage::Newest, 10).unwrap()).await.unwrap();
    assert_eq!(listed.iter().map(|message| message.id).collect::<Vec<_>>(), [first.id]);
    let after = bench.send(calls.messages(channel.id, MessagePage::After(first.id), 10).unwrap()).await.unwrap();
    assert!(after.is_empty());
    assert_eq!(bench.send(calls.message(channel.id, first.id).unwrap()).await.unwrap().content, "hello");
    assert_eq!(bench.send(calls.delete_channel(channel.id).unwrap()).await.unwrap().id, channel.id);
}

#[tokio::test]
async fn simulator_accepts_an_interaction_deferral_and_its_edit() {
    let bench = Fixture::start().await;
    let fired = bench.sim.fire(FireSpec::command(bench.sim.guilds()[0], "hello")).await.unwrap();
    let (id, token) = (fired.id.unwrap().to_string().parse::<Id<InteractionMarker>>().unwrap(), fired.token.unwrap());
    let deferred = InteractionResponse { kind: InteractionResponseType::DeferredChannelMessageWithSource, data: None };
    let defer = || bench.calls.interaction_callback(id, &token, &deferred).unwrap();
    bench.send(defer()).await.unwrap();
    let twice = bench.send(defer()).await.unwrap_err();
    assert!(matches!(twice, DecodeError::Refused { code: Some(40_060), .. }), "{twice}");
    let content = format!("done with {id}");
    let edit =
        bench.calls.edit_original(&token, OriginalEdit { content: Some(&content), ..OriginalEdit::default() }).unwrap();
    assert_eq!(bench.send(edit).await.unwrap().content, content);
}

#[tokio::test]
async fn simulator_returns_gateway_connection_info() {
    let bench = Fixture::start().await;
    let info = bench.send(bench.calls.gateway_bot().unwrap()).await.unwrap();
    assert_eq!((info.shards, info.url), (1, bench.sim.gateway_url()));
}
