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
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
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

pub(crate) struct Fake {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    /// Responds to each request by its content and the number of requests before it.
    pub(crate) fn start(answer: impl Fn(&Asked, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (answer, seen) = (Arc::new(answer), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    let before = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(request.clone());
                        seen.len() - 1
                    };
                    write(&stream, answer(&request, before));
                });
            }
        });
        Self { address, asked }
    }

    /// Always responds the same.
    pub(crate) fn says(status: u16, body: Value) -> Self {
        Self::start(move |_, _| Reply::Json(status, body.clone()))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let mut asked = Asked { method: words.next()?.to_owned(), path: words.next()?.to_owned(), ..Asked::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        asked.headers.push((name.to_lowercase(), value.to_owned()));
    }
    let length = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    asked.body = String::from_utf8(body).unwrap();
    Some(asked)
}

fn write(mut stream: &TcpStream, reply: Reply) {
    let mut whole = |status: u16, kind: &str, more: &str, body: &str| {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n"
        );
        // The client may have disconnected.
        drop(stream.write_all(format!("{head}{body}").as_bytes()));
    };
    match reply {
        Reply::Json(status, body) => whole(status, "application/json", "", &body.to_string()),
        Reply::Text(status, body) => whole(status, "text/html", "", body),
        Reply::Problem(status, more, body) => whole(status, "application/problem+json", more, &body.to_string()),
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
