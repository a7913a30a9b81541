//! A recording proxy: it records requests to a server, and forwards them unchanged.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request that was forwarded.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    head: String,
}

impl RecordedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// The proxy. It runs until the test process ends.
pub(crate) struct RecordingProxy {
    pub(crate) address: SocketAddr,
    recorded: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl RecordingProxy {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, recorded) = (listener.local_addr().unwrap(), Arc::new(Mutex::default()));
        let shared = Arc::clone(&recorded);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let (server, shared) = (TcpStream::connect(server).unwrap(), Arc::clone(&shared));
                let (client_writer, server_reader) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || forward(client, server, |bytes| record(&shared, bytes)));
                std::thread::spawn(move || forward(server_reader, client_writer, |_| {}));
            }
        });
        Self { address, recorded }
    }

    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.recorded.lock().unwrap().clone()
    }

    /// The first forwarded request with this method and path.
    pub(crate) fn request_to(&self, method: &str, path: &str) -> RecordedRequest {
        let line = format!("{method} {path} ");
        let requests = self.requests();
        requests.iter().find(|request| request.head.starts_with(&line)).cloned().unwrap_or_else(|| {
            panic!(
                "no request {line}, but {:?}",
                requests.iter().map(|one| one.head.lines().next()).collect::<Vec<_>>()
            )
        })
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut on_bytes: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        on_bytes(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

/// A client writes the head of a request in one piece, and sends the next when it has the response. So each write that
/// starts a request starts with a head.
fn record(recorded: &Mutex<Vec<RecordedRequest>>, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some((head, _)) = text.split_once("\r\n\r\n")
        && head.lines().next().is_some_and(|line| line.ends_with(" HTTP/1.1"))
    {
        recorded.lock().unwrap().push(RecordedRequest { head: head.to_owned() });
    }
}
