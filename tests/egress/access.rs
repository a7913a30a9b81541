//! What a key may do through the proxy.

use serde_json::{Value, json};

use crate::fixture::{Call, EgressFixture, header};

const MESSAGES: &str = "POST /channels/{channel.id}/messages";
const ROLES: &str = "POST /guilds/{guild.id}/roles";

fn code(response: &guildhall_testkit::program::HttpResponse) -> (u16, Option<u64>) {
    (response.status, response.json()["code"].as_u64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_a_guild_reaches_only_its_guild() {
    let fixture = EgressFixture::start().await;
    let [own, other, _] = fixture.sim.guilds()[..] else { panic!("three guilds") };
    let (own_channel, other_channel) = (fixture.channel_of(own), fixture.channel_of(other));
    let key = fixture.create_key(&["egress", &format!("guild:{own}")]);
    let body = json!({"content": "hello"}).to_string();
    let post = |path: &str, body: &str| {
        fixture.send(&Call { method: "POST", path, authorization: &key, body, ..Call::default() })
    };
    let read = |path: &str| fixture.send(&Call { path, authorization: &key, ..Call::default() });

    assert_eq!(post(&format!("/channels/{own_channel}/messages"), &body).status, 200);
    assert_eq!(read(&format!("/guilds/{own}")).status, 200);
    assert_eq!(read(&format!("/channels/{own_channel}")).status, 200);
    let digits: String = other_channel.bytes().map(|digit| format!("%{digit:x}")).collect();
    let forward = json!({"message_reference": {"type": 1, "channel_id": other_channel, "message_id": "1"}}).to_string();
    for (refused, expected) in [
        (post(&format!("/channels/{other_channel}/messages"), &body), 10_003),
        (post(&format!("/Channels/{other_channel}/messages"), &body), 10_003),
        (post(&format!("/channels/{own_channel}/messages"), &forward), 10_003),
        (read(&format!("/channels/{other_channel}/messages")), 10_003),
        (read(&format!("/guilds/{other}/roles")), 10_004),
        (read(&format!("/users/@me/guilds/{other}/member")), 10_004),
    ] {
        assert_eq!(code(&refused), (404, Some(expected)), "{}", refused.body);
        assert_eq!(header(&refused, "x-guildhall-why"), Some("foreign_target"), "{}", refused.head);
    }
    // Another spelling of a path would have other buckets.
    for path in [format!("/ch%61nnels/{own_channel}/messages"), format!("/channels/{digits}/messages")] {
        let refused = post(&path, &body);
        assert_eq!((refused.status, header(&refused, "x-guildhall-why")), (400, Some("path")), "{}", refused.body);
    }
    assert_eq!(fixture.arrived_at(MESSAGES), 1);
    // Discord's own 404 stays one.
    let missing = post("/channels/1/messages", &body);
    assert_eq!(code(&missing), (404, Some(10_003)), "{}", missing.body);
    assert_eq!(header(&missing, "x-guildhall-sent"), Some("1"), "{}", missing.head);
    // What belongs to no guild needs another scope; what every bot reads at its start does not.
    for path in ["/users/@me", "/gateway/bot", "/oauth2/applications/@me"] {
        assert_eq!(read(path).status, 200, "{path}");
    }
    for (method, path) in [("POST", "/users/@me/channels"), ("GET", "/users/@me/guilds"), ("DELETE", "/invites/abc")] {
        let refused = fixture.send(&Call { method, path, authorization: &key, ..Call::default() });
        assert_eq!((refused.status, header(&refused, "x-guildhall-why")), (403, Some("forbidden")), "{path}");
    }
    let urgent = Call { authorization: &key, headers: "X-Guildhall-Lane: interactive\r\n", ..Call::default() };
    assert_eq!(fixture.send(&urgent).status, 403, "one guild's key cannot pass everyone else");
    let audit = fixture.api("GET", "/v1/audit?action=refused&limit=100", &Value::Null).body;
    assert!(audit.contains("egress POST /channels/{id}/messages: Unknown Channel"), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_without_the_scope_is_refused() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let channel = fixture.channel_of(guild);
    let (none, reads) = (fixture.create_key(&["operations:write"]), fixture.create_key(&["egress:read"]));
    let typing = format!("/channels/{channel}/typing");
    let status = |method: &str, path: &str, key: &str| {
        fixture.send(&Call { method, path, authorization: key, ..Call::default() }).status
    };
    assert_eq!(status("GET", "/users/@me", &none), 403);
    assert_eq!(status("GET", &format!("/channels/{channel}"), &reads), 200);
    assert_eq!(status("POST", &typing, &reads), 403);
    assert_eq!(status("POST", &typing, &fixture.create_key(&["egress"])), 204);
    assert_eq!(fixture.arrived_at("POST /channels/{channel.id}/typing"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granting_a_dangerous_permission_needs_its_scope_in_any_form() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let limit = format!("guild:{guild}");
    let (plain, danger) = (fixture.create_key(&["egress", &limit]), fixture.create_key(&["egress", "danger", &limit]));
    let roles = format!("/guilds/{guild}/roles");
    let form = |head: &str, content: &str| format!("--b\r\n{head}\r\n\r\n{content}\r\n--b--\r\n");
    let payload = "Content-Disposition: form-data; name=\"payload_json\"";
    let multipart = "multipart/form-data; boundary=b";
    let administrator = r#"{"name":"Boss","permissions":"8"}"#;
    let attempts = [
        ("application/json", administrator.to_owned(), 403),
        ("application/json; charset=utf-8", administrator.replace("\"8\"", "8"), 403),
        (multipart, form(payload, administrator), 403),
        (multipart, form(&format!("{payload}; filename=\"a.json\""), administrator), 403),
        (multipart, form("Content-Disposition: form-data; name=\"permissions\"", "8"), 403),
        ("application/json", r#"{"name":"Boss","permissions":"0","permissions":"8"}"#.to_owned(), 400),
        (multipart, form("Content-Disposition: form-data; name=\"permissions[]\"", "8"), 400),
        (multipart, form(&format!("{payload}\r\nContent-Transfer-Encoding: base64"), "e30="), 400),
        ("application/x-www-form-urlencoded", "name=Boss&permissions=8".to_owned(), 400),
        ("text/plain", administrator.to_owned(), 400),
        ("application/json; charset=utf-16", administrator.to_owned(), 400),
    ];
    let send = |key: &str, content_type: &str, body: &str, headers: &str| {
        let path = &roles;
        fixture.send(&Call { method: "POST", path, authorization: key, content_type, body, headers })
    };
    for (content_type, body, status) in &attempts {
        let refused = send(&plain, content_type, body, "");
        assert_eq!(refused.status, *status, "{content_type} {body}: {}", refused.body);
        assert_eq!(header(&refused, "x-guildhall-sent"), Some("0"), "{content_type} {body}");
    }
    for headers in ["Content-Encoding: gzip\r\n", "Connection: content-type\r\n"] {
        assert_eq!(send(&plain, "application/json", r#"{"name":"x"}"#, headers).status, 400, "{headers}");
    }
    assert_eq!(fixture.arrived_at(ROLES), 0);
    assert_eq!(send(&plain, "application/json", r#"{"name":"Herald","permissions":"1024"}"#, "").status, 200);
    assert_eq!(send(&danger, "application/json", administrator, "").status, 200);

    // Giving a role that is dangerous, and calls whose effect is unknown.
    let listed = fixture.get(&roles).json();
    let boss = listed.as_array().unwrap().iter().find(|role| role["name"] == "Boss").unwrap()["id"].clone();
    let members = fixture.get(&format!("/guilds/{guild}/members?limit=10")).json();
    let member = members.as_array().unwrap().iter().find(|member| member["user"]["bot"] != true).unwrap();
    let member = member["user"]["id"].as_str().unwrap().to_owned();
    let give = format!("/guilds/{guild}/members/{member}/roles/{}", boss.as_str().unwrap());
    let encoded = give.replace("/members/", "/m%65mbers/");
    let refused = fixture.send(&Call { method: "PUT", path: &encoded, authorization: &plain, ..Call::default() });
    assert_eq!((refused.status, header(&refused, "x-guildhall-sent")), (400, Some("0")), "{}", refused.body);
    for (method, path, body) in [
        ("PUT", give.clone(), String::new()),
        ("PATCH", format!("/guilds/{guild}/members/{member}"), json!({"roles": [boss]}).to_string()),
        ("POST", format!("/guilds/{guild}/a-new-way"), String::new()),
    ] {
        let call = Call { method, path: &path, authorization: &plain, body: &body, ..Call::default() };
        let refused = fixture.send(&call);
        assert_eq!(
            (refused.status, header(&refused, "x-guildhall-sent")),
            (403, Some("0")),
            "{path}: {}",
            refused.body
        );
    }
    let given = fixture.send(&Call { method: "PUT", path: &give, authorization: &danger, ..Call::default() });
    assert_eq!(given.status, 204, "{}", given.body);
}
