//! A server with scripted responses, one request for each connection.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};

/// A request that was received.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Response of the server.
pub(crate) enum Reply {
    Json(u16, Value),
    Text(u16, &'static str),
    /// A stream that ends after these pieces.
    Stream(Vec<String>),
    /// A stream without events, until the client disconnects.
    Open,
    /// A problem response, with additional header lines.
    Problem(u16, &'static str, Value),
    /// No response, until the client disconnects.
    Silence,
    /// Closes the connection.
    HangUp,
}

pub(crate) struct FakeServer {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl FakeServer {
    /// Responds to each request by its content and the number of requests before it.
    pub(crate) fn start(respond: impl Fn(&ReceivedRequest, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let (respond, received) = (Arc::new(respond), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (respond, received) = (Arc::clone(&respond), Arc::clone(&received));
                thread::spawn(move || {
                    let Some(request) = read_request(&stream) else { return };
                    let before = {
                        let mut received = received.lock().unwrap();
                        received.push(request.clone());
                        received.len() - 1
                    };
                    write_reply(&stream, respond(&request, before));
                });
            }
        });
        Self { address, requests }
    }

    /// Always responds the same.
    pub(crate) fn always(status: u16, body: Value) -> Self {
        Self::start(move |_, _| Reply::Json(status, body.clone()))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<ReceivedRequest> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let mut request = ReceivedRequest {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        ..ReceivedRequest::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        request.headers.push((name.to_lowercase(), value.to_owned()));
    }
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).unwrap();
    Some(request)
}

fn write_reply(mut stream: &TcpStream, reply: Reply) {
    let mut write_response = |status: u16, kind: &str, headers: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
        );
        // The client may have disconnected.
        drop(stream.write_all(format!("{head}{body}").as_bytes()));
    };
    match reply {
        Reply::Json(status, body) => write_response(status, "application/json", "", &body.to_string()),
        Reply::Text(status, body) => write_response(status, "text/html", "", body),
        Reply::Problem(status, headers, body) => {
            write_response(status, "application/problem+json", headers, &body.to_string());
        }
        Reply::Stream(pieces) => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
            drop(stream.write_all(head.as_bytes()));
            for piece in pieces {
                drop(stream.write_all(piece.as_bytes()).and_then(|()| stream.flush()));
            }
        }
        Reply::Open => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: here\n\n";
            drop(stream.write_all(head.as_bytes()));
            drop(stream.read(&mut [0]));
        }
        Reply::Silence => drop(stream.read(&mut [0])),
        Reply::HangUp => {}
    }
}

/// A problem of the daemon.
pub(crate) fn problem(status: u16, name: &str, detail: &str, mut more: Value) -> Reply {
    let mut body = json!({"type": format!("urn:guildhall:problem:{name}"), "title": "A title", "status": status, "detail": detail});
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object_mut()) {
        body.append(more);
    }
    Reply::Problem(status, "", body)
}

/// An operation as the API lists it.
pub(crate) fn operation(id: &str, state: &str) -> Value {
    json!({"id": id, "kind": "create_role", "guild_id": "7", "state": state, "seq": 1, "lane": "operation",
        "payload": {}, "reason": null, "attempts": 1, "max_attempts": 3, "delays": 0, "parked": false,
        "eligible_at": "2026-01-31T12:00:00.000Z", "deadline_at": null, "waits_for": null, "progress": [],
        "error": null, "result": null, "trace": null, "redrive_of": null, "created_at": "2026-01-31T12:00:00.000Z",
        "updated_at": "2026-01-31T12:00:01.000Z", "finished_at": null, "href": format!("/v1/operations/{id}")})
}

/// The response to a submission.
pub(crate) fn accepted(id: &str, replayed: bool) -> Value {
    json!({"id": id, "kind": "create_role", "guild_id": "7", "state": "queued", "eligible_at": null, "result": null,
        "replayed": replayed, "href": format!("/v1/operations/{id}")})
}
