//! Tests of the control API: actions, reset and snapshots.

use ed25519_dalek::{Signature, VerifyingKey};
use guildhall_sim::{GuildsSpec, Sim, SimConfig};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::common::Fixture;

#[tokio::test]
async fn reset_clears_everything_and_a_snapshot_restores_it() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/guilds/{}/roles", fixture.guild);
    fixture.api(Method::POST, &path, Some(json!({ "name": "Elder" }))).await;
    fixture.fault(json!({ "route": "DELETE", "do": { "kind": "status", "status": 500 } })).await;
    let snapshot = fixture.control(Method::GET, "/sim/snapshot", None).await;

    assert_eq!(fixture.control(Method::POST, "/sim/reset", None).await.status, 200);
    assert_eq!(fixture.sim.score().requests, 0);
    assert_eq!(fixture.control(Method::GET, "/sim/faults", None).await.json(), json!([]));
    let state = fixture.control(Method::GET, "/sim/state", None).await.json();
    assert!(!state.to_string().contains("Elder"), "{state}");

    let restored = fixture.control(Method::PUT, "/sim/snapshot", Some(snapshot.json())).await;
    assert_eq!(restored.status, 200, "{}", restored.text);
    let roles = fixture.api(Method::GET, &path, None).await.json();
    assert!(roles.as_array().unwrap().iter().any(|role| role["name"] == "Elder"), "{roles}");
    let gateway = fixture.api(Method::GET, "/gateway", None).await.json();
    assert_eq!(gateway["url"], fixture.sim.gateway_url(), "a snapshot contains no address");
}

#[tokio::test]
async fn snapshot_can_be_restored_in_another_simulator() {
    let first = Fixture::start(SimConfig::default()).await;
    first.api(Method::POST, &format!("/guilds/{}/roles", first.guild), Some(json!({ "name": "Elder" }))).await;
    let snapshot = first.control(Method::GET, "/sim/snapshot", None).await.json();
    let second = Fixture::start(SimConfig { guilds: 5, ..SimConfig::default() }).await;
    second.control(Method::PUT, "/sim/snapshot", Some(snapshot)).await;
    assert_eq!(second.sim.guilds(), first.sim.guilds());
}

#[tokio::test]
async fn members_react_to_messages_and_take_it_back() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/channels/{}/messages", fixture.channel);
    let message = fixture.api(Method::POST, &path, Some(json!({ "content": "vote" }))).await.json()["id"].clone();
    let mut reaction = json!({ "channel_id": fixture.channel, "message_id": message, "emoji": "🔥" });
    let react = async |body: &Value| fixture.control(Method::POST, "/sim/reactions", Some(body.clone())).await;
    assert_eq!((react(&reaction).await.status, react(&reaction).await.status), (200, 200));
    let stored = fixture.api(Method::GET, &path, None).await.json();
    assert_eq!((&stored[0]["reactions"][0]["count"], &stored[0]["reactions"][0]["me"]), (&json!(1), &json!(false)));
    reaction["remove"] = json!(true);
    assert_eq!(react(&reaction).await.status, 200);
    assert!(fixture.api(Method::GET, &path, None).await.json()[0].get("reactions").is_none());
    reaction["emoji"] = json!("fire");
    let refused = react(&reaction).await;
    assert!(refused.status == 400 && refused.text.contains("not an emoji"), "{}", refused.text);
    let created = &fixture.sim.score().created[&fixture.guild];
    assert_eq!(created.keys().collect::<Vec<_>>(), ["message vote"], "what members do is not in the score");
}

/// What a bot may do twice without making a duplicate, and what it may not.
#[tokio::test]
async fn duplicates_are_objects_of_a_repeated_request() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let post = async |path: String, body: Value| {
        let made = fixture.api(Method::POST, &path, Some(body)).await;
        assert!(made.status < 300, "{}", made.text);
        made.json()
    };
    for _ in 0..2 {
        let fired = fixture.control(Method::POST, "/sim/commands", Some(json!({ "name": "ping" }))).await.json();
        let token = fired["token"].as_str().unwrap();
        let answer = json!({ "type": 4, "data": { "content": "pong" } });
        post(format!("/interactions/{}/{token}/callback", fired["id"].as_str().unwrap()), answer).await;
        post(format!("/webhooks/{}/{token}", fixture.application), json!({ "content": "and more" })).await;
    }
    let state = fixture.control(Method::GET, "/sim/state", None).await.json();
    for channel in state["guilds"][0]["channels"].as_array().unwrap() {
        let path = format!("/channels/{}/messages", channel["id"].as_str().unwrap());
        post(path.clone(), json!({ "embeds": [{ "title": "one" }] })).await;
        post(path, json!({ "embeds": [{ "title": "two" }] })).await;
    }
    let roles = format!("/guilds/{}/roles", fixture.guild);
    let role = post(roles.clone(), json!({ "name": "Elder" })).await["id"].clone();
    fixture.api(Method::DELETE, &format!("{roles}/{}", role.as_str().unwrap()), None).await;
    post(roles.clone(), json!({ "name": "Elder" })).await;
    assert_eq!(fixture.sim.score().duplicates, 0, "{:?}", fixture.sim.score().created);

    post(roles, json!({ "name": "Elder" })).await;
    let path = format!("/channels/{}/messages", fixture.channel);
    for nonce in ["1", "2"] {
        post(path.clone(), json!({ "content": "once", "nonce": nonce })).await;
    }
    assert_eq!(fixture.sim.score().duplicates, 2);
}

#[tokio::test]
async fn thousands_of_guilds_are_created_and_paged() {
    let sim = Sim::start(SimConfig { guilds: 2_000, ..SimConfig::default() }).await.unwrap();
    sim.create_guilds(&GuildsSpec { count: Some(1_000), name: Some("more".into()), ..GuildsSpec::default() }).unwrap();
    assert_eq!(sim.guilds().len(), 3_000);
    let (mut count, mut after) = (0, String::from("0"));
    loop {
        let path = format!("/sim/state?limit=700&after={after}");
        let page = crate::common::call(sim.address(), Method::GET, &path, None).await.unwrap().json();
        let guilds = page["guilds"].as_array().unwrap().clone();
        let Some(last) = guilds.last() else { break };
        count += guilds.len();
        last["id"].as_str().unwrap().clone_into(&mut after);
    }
    assert_eq!(count, 3_000);
}

#[tokio::test]
async fn members_join_at_a_rate_and_are_all_reported() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let path = format!("/sim/guilds/{}/members", fixture.guild);
    let joined =
        fixture.control(Method::POST, &path, Some(json!({ "count": 5, "per_second": 500, "name": "ada" }))).await;
    assert_eq!(joined.json()["ids"].as_array().unwrap().len(), 5, "{}", joined.text);
    let user = joined.json()["id"].as_str().unwrap().to_owned();
    let member = fixture.api(Method::GET, &format!("/guilds/{}/members/{user}", fixture.guild), None).await.json();
    assert_eq!(member["user"]["username"], "ada1");
    assert_eq!(fixture.control(Method::DELETE, &format!("{path}/{user}"), None).await.status, 200);
    let gone = fixture.api(Method::GET, &format!("/guilds/{}/members/{user}", fixture.guild), None).await;
    assert_eq!(gone.json()["code"], 10007);
}

#[tokio::test]
async fn bot_permissions_can_be_removed() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let guild = format!("/sim/guilds/{}", fixture.guild);
    fixture.control(Method::PATCH, &guild, Some(json!({ "bot_permissions": 0 }))).await;
    let refused = fixture.api(Method::POST, &format!("/guilds/{}/roles", fixture.guild), Some(json!({}))).await;
    assert_eq!((refused.status, refused.json()["code"].as_u64()), (403, Some(50013)));
    assert_eq!(fixture.sim.score().invalid_requests, 1);
}

/// Accepts one POST, responds with `response`, and returns its headers and body.
async fn endpoint(listener: TcpListener, response: Value) -> (String, String) {
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    let (head, body) = loop {
        let mut buffer = [0; 4096];
        let read = socket.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>();
            if body.len() >= length.unwrap() {
                break (head.to_owned(), body.to_owned());
            }
        }
    };
    let text = response.to_string();
    let response =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    socket.write_all(response.as_bytes()).await.unwrap();
    (head, body)
}

#[tokio::test]
async fn posted_command_is_signed_and_its_response_is_the_first_one() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let key: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&fixture.sim.verify_key()[at * 2..at * 2 + 2], 16).unwrap()).collect();
    let key = VerifyingKey::from_bytes(&key.try_into().unwrap()).unwrap();
    for forged in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/interactions", listener.local_addr().unwrap());
        let received = tokio::spawn(endpoint(listener, json!({ "type": 4, "data": { "content": "pong" } })));
        let command = json!({ "guild_id": fixture.guild, "name": "ping", "url": url, "forged": forged });
        let fired = fixture.control(Method::POST, "/sim/commands", Some(command)).await;
        assert_eq!(fired.json()["posted"]["status"], 200, "{}", fired.text);

        let (head, body) = received.await.unwrap();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        let hex = header("x-signature-ed25519:");
        let signature: Vec<u8> = (0..64).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
        let signed = format!("{}{body}", header("x-signature-timestamp:"));
        let genuine = key.verify_strict(signed.as_bytes(), &Signature::from_slice(&signature).unwrap()).is_ok();
        assert_eq!(genuine, !forged);
    }
    let messages = fixture.api(Method::GET, &format!("/channels/{}/messages", fixture.channel), None).await.json();
    assert_eq!(messages[0]["content"], "pong");
    let score = fixture.sim.score();
    assert_eq!((score.interactions.fired, score.interactions.answered), (2, 2));
}

#[tokio::test]
async fn unreachable_url_is_an_error_with_the_url() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let command = json!({ "guild_id": fixture.guild, "name": "ping", "url": url });
    let answer = fixture.control(Method::POST, "/sim/commands", Some(command)).await;
    assert!(answer.status == 502 && answer.text.contains(&url), "{}", answer.text);
}
