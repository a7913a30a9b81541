//! twilight-http through the proxy, configured as its users configure it: it has no rate limiter of its own.

use std::time::Duration;

use futures_util::future::join_all;
use guildhall_sim::{Algorithm, FireSpec, LimitConfig, RateLimitScore, RouteLimit};
use guildhall_testkit::program::CANARY;
use twilight_http::{Client, request::channel::reaction::RequestReactionType};
use twilight_model::{
    http::{
        attachment::Attachment,
        interaction::{InteractionResponse, InteractionResponseType},
    },
    id::{Id, marker::ChannelMarker},
};

use crate::fixture::EgressFixture;

const CHANNELS: usize = 3;
const MESSAGES: usize = 7;
const READS: usize = 80;

fn tight(method: &str, path: &str, limit: u32) -> RouteLimit {
    RouteLimit {
        method: method.to_owned(),
        path: path.to_owned(),
        case: Default::default(),
        bucket: None,
        limit,
        per_ms: 1_000,
        algorithm: Algorithm::Fixed,
    }
}

/// An id of the simulator as one of the library.
fn id<T>(text: &impl ToString) -> Id<T> {
    Id::new(text.to_string().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twilight_loses_no_call_and_exceeds_no_limit() {
    let message = "/channels/{channel.id}/messages/{message.id}";
    let routes = vec![
        tight("POST", "/channels/{channel.id}/messages", 5),
        tight("PATCH", message, 4),
        tight("DELETE", message, 3),
        tight("POST", "/guilds/{guild.id}/roles", 1),
    ];
    let limits = LimitConfig { routes, ..LimitConfig::default() };
    // A client without a limiter does not repeat a call that was answered with 429.
    let fixture = EgressFixture::start_with(limits, &[("GUILDHALL__EGRESS__MAX_WAIT_MS", "60000")]).await;
    let client = Client::builder()
        .token(CANARY.to_owned())
        .proxy(fixture.egress.to_string(), true)
        .ratelimiter(None)
        .timeout(Duration::from_secs(60))
        .build();

    let application = client.current_user_application().await.unwrap().model().await.unwrap().id;
    let guild = id(&fixture.sim.guilds()[0]);
    let names = ["a", "b", "c"];
    let roles = join_all(
        names.map(|name| async { client.create_role(guild).name(name).await?.model().await.map_err(Into::into) }),
    );
    let roles: Result<Vec<_>, Box<dyn std::error::Error>> = roles.await.into_iter().collect();
    for role in roles.unwrap() {
        client.update_role(guild, role.id).name(Some("renamed")).await.unwrap();
        client.delete_role(guild, role.id).await.unwrap();
    }

    let channels: Vec<Id<ChannelMarker>> =
        fixture.sim.guilds().iter().take(CHANNELS).map(|guild| id(&fixture.channel_of(guild))).collect();
    let client = &client;
    let life = |channel: Id<ChannelMarker>, number: usize| async move {
        let content = format!("message {number}");
        let sent = client.create_message(channel).content(&content).await.unwrap().model().await.unwrap();
        let wave = RequestReactionType::Unicode { name: "🌊" };
        client.create_reaction(channel, sent.id, &wave).await.unwrap();
        let edited = client.update_message(channel, sent.id).content(Some("edited")).await.unwrap();
        assert_eq!(edited.model().await.unwrap().content, "edited");
        client.delete_message(channel, sent.id).await.unwrap();
    };
    let lives = channels.iter().flat_map(|channel| (0..MESSAGES).map(|number| life(*channel, number)));
    let reads = (0..READS).map(|number| {
        let channel = channels[number % CHANNELS];
        async move { assert_eq!(client.channel(channel).await.unwrap().model().await.unwrap().id, channel) }
    });
    let (lives, reads) = (join_all(lives.collect::<Vec<_>>()), join_all(reads.collect::<Vec<_>>()));
    tokio::join!(lives, reads);

    // A form passes as it is.
    let file = Attachment::from_bytes("tide.txt".to_owned(), b"high water 06:12".to_vec(), 1);
    let files = [file];
    client.create_message(channels[0]).content("a file").attachments(&files).await.unwrap();
    let forms = fixture.upstream.calls("/messages");
    let is_form = |kind: &&str| kind.starts_with("multipart/");
    let form = forms.iter().find(|call| call.headers("content-type").iter().any(is_form)).unwrap();
    assert!(form.body.windows(16).any(|part| part == b"high water 06:12"), "{}", form.head);

    // The library sends the bot token with calls whose token is in the path, too.
    let fired = fixture.sim.fire(FireSpec::command(fixture.sim.guilds()[0], "greet")).await.unwrap();
    let (interaction, token) = (id(&fired.id.unwrap()), fired.token.unwrap());
    let response = InteractionResponse { kind: InteractionResponseType::DeferredChannelMessageWithSource, data: None };
    let interactions = client.interaction(application);
    interactions.create_response(interaction, &token, &response).await.unwrap();
    interactions.update_response(&token).content(Some("Hello")).await.unwrap();
    interactions.create_followup(&token).content("And more").await.unwrap();

    let score = fixture.sim.score();
    assert_eq!(score.rate_limited, RateLimitScore::default(), "{:?}", score.routes);
    assert_eq!((score.invalid_requests, score.duplicates, score.interactions.answered), (0, 0, 1));
    assert!(score.max_per_second.values().all(|most| *most <= 50), "{:?}", score.max_per_second);
    let expected = (CHANNELS * MESSAGES) as u64;
    for (route, count) in [
        ("POST /channels/{channel.id}/messages", expected),
        (&format!("PATCH {message}"), expected),
        (&format!("DELETE {message}"), expected),
        ("GET /channels/{channel.id}", READS as u64),
        ("POST /guilds/{guild.id}/roles", names.len() as u64),
    ] {
        assert_eq!(fixture.arrived_at(route), count, "each call of {route} arrived exactly once");
    }
}
