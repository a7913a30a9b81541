//! Bodies that pass as they arrive, in both directions.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use guildhall_sim::LimitConfig;
use guildhall_testkit::program::TEST_TIMEOUT;
use tokio::task::block_in_place;

use crate::fixture::{Call, EgressFixture, bot, open, read_all, read_until};

/// Size of an upload.
const LARGE: usize = 26 * 1024 * 1024;

/// A form with a file of about this size.
fn form(bytes: usize) -> Vec<u8> {
    let mut body = b"--b\r\nContent-Disposition: form-data; name=\"files[0]\"; filename=\"a\"\r\n\r\n".to_vec();
    body.extend((0..bytes).map(|at| u8::try_from(at % 251).unwrap()));
    body.extend_from_slice(b"\r\n--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{}\r\n--b--\r\n");
    body
}

fn head(length: &str) -> String {
    format!(
        "POST /api/v10/channels/5/messages HTTP/1.1\r\nHost: test\r\nConnection: close\r\nAuthorization: {}\r\n\
         Content-Type: multipart/form-data; boundary=b\r\n{length}\r\n\r\n",
        bot()
    )
}

/// Waits until so many calls with forms have begun to arrive at Discord.
fn wait_until_begun(fixture: &EgressFixture, count: usize) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while fixture.upstream.begun() < count {
        assert!(Instant::now() < deadline, "{} of {count} calls have begun", fixture.upstream.begun());
        block_in_place(|| std::thread::sleep(Duration::from_millis(10)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_reaches_discord_while_it_arrives() {
    let fixture = EgressFixture::start().await;
    let body = form(LARGE);
    let mut stream = block_in_place(|| open(fixture.egress, &head(&format!("Content-Length: {}", body.len()))));
    let (first, rest) = body.split_at(1024 * 1024);
    block_in_place(|| stream.write_all(first).unwrap());
    // Discord has the first part before the client has sent the second.
    wait_until_begun(&fixture, 1);
    block_in_place(|| stream.write_all(rest).unwrap());
    let answer = block_in_place(|| read_all(stream));
    assert!(answer.contains(&format!("{{\"received\":{}}}", body.len())), "{answer}");
    let sent = fixture.upstream.calls("/channels/5/messages").pop().unwrap();
    assert!(sent.body == body, "the content has changed");
    assert_eq!(sent.headers("content-length"), [body.len().to_string()]);

    // The same in chunks, whose number is not known before the end.
    let mut stream = block_in_place(|| open(fixture.egress, &head("Transfer-Encoding: chunked")));
    block_in_place(|| {
        for piece in body.chunks(300_000) {
            write!(stream, "{:x}\r\n", piece.len()).unwrap();
            stream.write_all(piece).unwrap();
            stream.write_all(b"\r\n").unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let answer = block_in_place(|| read_all(stream));
    assert!(answer.contains(&format!("{{\"received\":{}}}", body.len())), "{answer}");
    let sent = fixture.upstream.calls("/channels/5/messages").pop().unwrap();
    assert!(sent.body == body, "the content has changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_takes_no_permit_before_its_first_part_has_arrived() {
    let fixture = EgressFixture::start().await;
    let body = form(2 * 1024 * 1024);
    let mut stream = block_in_place(|| open(fixture.egress, &head(&format!("Content-Length: {}", body.len()))));
    block_in_place(|| stream.write_all(&body[..100_000]).unwrap());
    fixture.wait_for_metric("guildhall_egress_connections 1");
    // Calls of others pass meanwhile, and the upload has not begun.
    assert_eq!(fixture.get("/users/@me").status, 200);
    assert_eq!(fixture.upstream.begun(), 0);
    block_in_place(|| stream.write_all(&body[100_000..]).unwrap());
    let answer = block_in_place(|| read_all(stream));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_or_abandoned_upload_ends_and_opens_no_breaker() {
    let settings =
        [("GUILDHALL__EGRESS__BODY_TIMEOUT_MS", "500"), ("GUILDHALL__EGRESS__MIN_UPLOAD_BYTES_PER_SECOND", "1000000")];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let body = form(2 * 1024 * 1024);
    let start = || {
        let mut stream = open(fixture.egress, &head(&format!("Content-Length: {}", body.len())));
        stream.write_all(&body[..1024 * 1024]).unwrap();
        stream
    };
    let small = form(10);
    let call = Call {
        method: "POST",
        path: "/channels/5/messages",
        authorization: &bot(),
        content_type: "multipart/form-data; boundary=b",
        body: std::str::from_utf8(&small).unwrap(),
        ..Call::default()
    };
    // Teaches the gate that the route has no limit; otherwise a lost call would block it for a while.
    assert_eq!(fixture.send(&call).status, 200);
    let slow = block_in_place(|| read_all(start()));
    assert!(slow.starts_with("HTTP/1.1 408 ") && slow.contains("x-guildhall-sent: 1"), "{slow}");
    // More than enough failures for a breaker, if they counted as Discord's.
    for count in 2..9 {
        let stream = block_in_place(start);
        wait_until_begun(&fixture, count + 1);
        drop(stream);
        fixture.wait_for_metric(&format!("guildhall_rest_lost_total{{why=\"aborted\"}} {count}"));
    }
    let after = fixture.send(&call);
    assert_eq!(after.status, 200, "{} {}", after.head, after.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_reaches_the_client_while_it_arrives() {
    let fixture = EgressFixture::start().await;
    let call = Call { path: "/voice/regions?slow-response", authorization: &bot(), ..Call::default() };
    let mut stream = block_in_place(|| open(fixture.egress, &call.text()));
    let begun = block_in_place(|| read_until(&mut stream, "\"first"));
    assert!(begun.starts_with("HTTP/1.1 200 ") && begun.contains("content-length: 11\r\n"), "{begun}");
    // It has its place until its end.
    fixture.wait_for_metric("guildhall_egress_calls 1");
    fixture.upstream.release();
    assert_eq!(block_in_place(|| read_all(stream)), "last\"");
    fixture.wait_for_metric("guildhall_egress_calls 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_never_reads_is_disconnected() {
    let settings = [("GUILDHALL__EGRESS__WRITE_TIMEOUT_MS", "300")];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let call = Call { path: "/voice/regions?big-response", authorization: &bot(), ..Call::default() };
    let stream = block_in_place(|| open(fixture.egress, &call.text()));
    fixture.wait_for_metric("guildhall_egress_connections_cut_total{why=\"unread\"} 1");
    fixture.wait_for_metric("guildhall_egress_connections 0");
    drop(stream);
    assert_eq!(fixture.get("/users/@me").status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_url_of_the_settings_replaces_that_of_discord() {
    let settings = [("GUILDHALL__EGRESS__GATEWAY_URL", "ws://127.0.0.1:9")];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let gateway = fixture.get("/gateway/bot");
    assert_eq!((gateway.status, &gateway.json()["url"]), (200, &"ws://127.0.0.1:9".into()), "{}", gateway.body);
    assert!(gateway.json()["session_start_limit"]["remaining"].is_u64(), "{}", gateway.body);
}
