//! A server between the daemon and the simulator: it records calls, and answers those with forms itself, which the
//! simulator does not read, and those for long responses.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
};

/// A call that arrived.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCall {
    /// Its first line and its headers, as sent.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl RecordedCall {
    /// Values of a header, in the order in which they were sent.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

/// The server. It runs until the test process ends.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    recorded: Arc<Mutex<Vec<RecordedCall>>>,
    /// Calls whose head and first bytes have arrived.
    begun: Arc<Mutex<usize>>,
    /// Whether the second half of a response is sent.
    released: Arc<(Mutex<bool>, Condvar)>,
}

/// Size of a response to a path with `big-response`.
const BIG: usize = 32 * 1024 * 1024;

impl Upstream {
    pub(crate) fn start(sim: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = Self {
            address: listener.local_addr().unwrap(),
            recorded: Arc::default(),
            begun: Arc::default(),
            released: Arc::default(),
        };
        let shared = upstream.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let shared = shared.clone();
                std::thread::spawn(move || shared.serve(client, sim));
            }
        });
        upstream
    }

    /// Number of calls with forms whose first part has arrived.
    pub(crate) fn begun(&self) -> usize {
        *self.begun.lock().unwrap()
    }

    /// Sends the second half of responses to paths with `slow-response`.
    pub(crate) fn release(&self) {
        *self.released.0.lock().unwrap() = true;
        self.released.1.notify_all();
    }

    /// Calls whose first line contains this.
    pub(crate) fn calls(&self, part: &str) -> Vec<RecordedCall> {
        let is_wanted = |call: &&RecordedCall| call.head.lines().next().unwrap().contains(part);
        self.recorded.lock().unwrap().iter().filter(is_wanted).cloned().collect()
    }

    /// Serves one call. A call that is cut off is not recorded.
    fn serve(&self, mut client: TcpStream, sim: SocketAddr) {
        let on_form = || *self.begun.lock().unwrap() += 1;
        let Some((call, received)) = read_call(&mut client, on_form) else { return };
        let is_form = call.headers("content-type").iter().any(|kind| kind.starts_with("multipart/"));
        self.recorded.lock().unwrap().push(call.clone());
        if is_form {
            let body = format!("{{\"received\":{}}}", call.body.len());
            let head = "HTTP/1.1 200 OK\r\nVia: 1.1 google\r\nContent-Type: application/json\r\nSet-Cookie: a=1\r\n\
                Set-Cookie: b=2\r\nX-Guildhall-Why: forged\r\nConnection: close";
            write!(client, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
            return;
        }
        let line = call.head.lines().next().unwrap();
        let head = "HTTP/1.1 200 OK\r\nVia: 1.1 google\r\nContent-Type: application/json\r\nConnection: close";
        if line.contains("slow-response") {
            write!(client, "{head}\r\nContent-Length: 11\r\n\r\n\"first").unwrap();
            let (released, changed) = &*self.released;
            drop(changed.wait_while(released.lock().unwrap(), |released| !*released).unwrap());
            drop(client.write_all(b"last\""));
            return;
        }
        if line.contains("big-response") {
            write!(client, "{head}\r\nContent-Length: {BIG}\r\n\r\n").unwrap();
            // The daemon may close the connection.
            drop(client.write_all(&vec![b' '; BIG]));
            return;
        }
        let mut server = TcpStream::connect(sim).unwrap();
        let head = call.head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        server.write_all(head.as_bytes()).unwrap();
        server.write_all(&received[call.head.len()..]).unwrap();
        let mut response = Vec::new();
        server.read_to_end(&mut response).unwrap();
        // The daemon may have given up.
        drop(client.write_all(&response));
        drop(client.shutdown(Shutdown::Both));
    }
}

/// Reads a call: parsed, and as received. `None` if it ends early.
fn read_call(stream: &mut TcpStream, on_form: impl FnOnce()) -> Option<(RecordedCall, Vec<u8>)> {
    let mut received = Vec::new();
    let mut read_more = |received: &mut Vec<u8>| {
        let mut piece = [0; 64 * 1024];
        let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
        received.extend_from_slice(&piece[..count]);
        Some(())
    };
    let end = loop {
        if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        read_more(&mut received)?;
    };
    let head = String::from_utf8(received[..end].to_vec()).unwrap();
    let mut call = RecordedCall { head, body: Vec::new() };
    if call.headers("content-type").iter().any(|kind| kind.starts_with("multipart/")) {
        on_form();
    }
    if let Some(length) = call.headers("content-length").first() {
        let length: usize = length.parse().unwrap();
        while received.len() < end + length {
            read_more(&mut received)?;
        }
        call.body = received[end..end + length].to_vec();
    } else if call.headers("transfer-encoding") == ["chunked"] {
        let mut at = end;
        loop {
            let line_end = loop {
                if let Some(found) = received[at..].windows(2).position(|window| window == b"\r\n") {
                    break at + found;
                }
                read_more(&mut received)?;
            };
            let size = usize::from_str_radix(std::str::from_utf8(&received[at..line_end]).unwrap(), 16).unwrap();
            while received.len() < line_end + 2 + size + 2 {
                read_more(&mut received)?;
            }
            call.body.extend_from_slice(&received[line_end + 2..line_end + 2 + size]);
            at = line_end + 2 + size + 2;
            if size == 0 {
                break;
            }
        }
    }
    Some((call, received))
}
