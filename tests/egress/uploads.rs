//! Large uploads with a key that has limits: files pass as they arrive, the rest once it was judged.

use std::io::Write as _;

use guildhall_testkit::program::HttpResponse;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::fixture::{EgressFixture, header, open, read_all};

/// Size of a file.
const LARGE: usize = 26 * 1024 * 1024;

const FILE: &str = "Content-Disposition: form-data; name=\"files[0]\"; filename=\"a.bin\"";
const PAYLOAD: &str = "Content-Disposition: form-data; name=\"payload_json\"\r\nContent-Type: application/json";

fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend_from_slice(format!("--b\r\n{head}\r\n\r\n").as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b--\r\n");
    body
}

fn file() -> Vec<u8> {
    (0..LARGE).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn upload(fixture: &EgressFixture, key: &str, path: &str, content_type: &str, body: &[u8]) -> HttpResponse {
    let head = format!(
        "POST /api/v10{path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: {key}\r\n\
         Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let response = block_in_place(|| {
        let mut stream = open(fixture.egress, &head);
        // The rest is not read after a refusal.
        drop(stream.write_all(body));
        read_all(stream)
    });
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head: head.to_lowercase(), body: body.to_owned() }
}

const FORM: &str = "multipart/form-data; boundary=b";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_a_guild_uploads_large_files() {
    let fixture = EgressFixture::start().await;
    let guild = fixture.sim.guilds()[0];
    let key = fixture.create_key(&["egress", &format!("guild:{guild}")]);
    let path = format!("/channels/{}/messages", fixture.channel_of(guild));
    let (file, payload) = (file(), json!({"content": "a file"}).to_string());
    let payload = payload.as_bytes();
    // discord.py sends the payload first, discord.js last.
    for parts in [[(PAYLOAD, payload), (FILE, &file[..])], [(FILE, &file[..]), (PAYLOAD, payload)]] {
        let body = form(&parts);
        let answer = upload(&fixture, &key, &path, FORM, &body);
        assert_eq!(answer.json()["received"], body.len(), "{} {}", answer.head, answer.body);
        let sent = fixture.upstream.calls(&path).pop().unwrap();
        assert!(sent.body == body, "the content has changed");
        assert_eq!(sent.headers("content-length"), [body.len().to_string()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_upload_never_arrives_completely() {
    let fixture = EgressFixture::start().await;
    let [own, other, _] = fixture.sim.guilds()[..] else { panic!("three guilds") };
    let key = fixture.create_key(&["egress", &format!("guild:{own}")]);
    let file = file();
    let (own_channel, other_channel) = (fixture.channel_of(own), fixture.channel_of(other));
    let messages = |channel: &str| format!("/channels/{channel}/messages");
    let hello = br#"{"content":"hello"}"#;
    let forward = json!({"message_reference": {"type": 1, "channel_id": other_channel, "message_id": "1"}}).to_string();
    let administrator = br#"{"name":"Boss","permissions":"8"}"#;
    let roles = format!("/guilds/{own}/roles");
    // Teaches the gate that the routes have no limit; otherwise a call that ends early would block its route for a while.
    for (path, payload) in [(messages(&own_channel), &hello[..]), (roles.clone(), &br#"{"name":"x"}"#[..])] {
        let answer = upload(&fixture, &key, &path, FORM, &form(&[(PAYLOAD, payload)]));
        assert_eq!(answer.status, 200, "{path} {}", answer.body);
    }
    let begun = fixture.upstream.begun();
    // What is known before the call needs no permit.
    for (path, parts, status) in [
        (messages(&other_channel), vec![(FILE, &file[..]), (PAYLOAD, &hello[..])], 404),
        (messages(&own_channel), vec![(PAYLOAD, forward.as_bytes()), (FILE, &file[..])], 404),
        (roles.clone(), vec![(PAYLOAD, &administrator[..]), (FILE, &file[..])], 403),
        (
            roles.clone(),
            vec![("Content-Disposition: form-data; name=\"permissions\"", &b"8"[..]), (FILE, &file[..])],
            403,
        ),
    ] {
        let answer = upload(&fixture, &key, &path, FORM, &form(&parts));
        assert_eq!((answer.status, header(&answer, "x-guildhall-sent")), (status, Some("0")), "{path} {}", answer.body);
    }
    assert_eq!(fixture.upstream.begun(), begun);
    // What comes after the file ends the call.
    for (path, parts, status) in [
        (messages(&own_channel), vec![(FILE, &file[..]), (PAYLOAD, forward.as_bytes())], 404),
        (roles.clone(), vec![(FILE, &file[..]), (PAYLOAD, &administrator[..])], 403),
        (
            roles.clone(),
            vec![(PAYLOAD, &br#"{"name":"x"}"#[..]), (FILE, &file[..]), (PAYLOAD, &administrator[..])],
            400,
        ),
        (
            roles.clone(),
            vec![
                (PAYLOAD, &br#"{"name":"x"}"#[..]),
                (FILE, &file[..]),
                ("Content-Disposition: form-data; name=\"permissions\"", &b"8"[..]),
            ],
            403,
        ),
        (messages(&own_channel), vec![(FILE, &file[..]), (PAYLOAD, &file[..2_000_000])], 413),
    ] {
        let answer = upload(&fixture, &key, &path, FORM, &form(&parts));
        assert_eq!((answer.status, header(&answer, "x-guildhall-sent")), (status, Some("1")), "{path} {}", answer.body);
    }
    assert!(fixture.upstream.begun() > begun);
    for path in [messages(&own_channel), roles] {
        let arrived = fixture.upstream.calls(&path);
        let writes = arrived.iter().filter(|call| !call.head.starts_with("GET ")).count();
        assert_eq!(writes, 1, "a refused call arrived at {path}");
    }
    // Other large bodies cannot be judged.
    let json = upload(&fixture, &key, &messages(&own_channel), "application/json", &file);
    assert_eq!((json.status, header(&json, "x-guildhall-why")), (413, Some("body_too_large")), "{}", json.body);
    let audit = fixture.api("GET", "/v1/audit?action=refused&limit=100", &Value::Null).body;
    assert!(audit.contains("egress POST /guilds/{id}/roles"), "{audit}");
}
