//! A recording proxy: it records requests to a server, and forwards them unchanged.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request that was forwarded.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    head: String,
}

impl Heard {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// The proxy. It runs until the test process ends.
pub(crate) struct Tap {
    pub(crate) address: SocketAddr,
    noted: Arc<Mutex<Vec<Heard>>>,
}

impl Tap {
    pub(crate) fn on(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, noted) = (listener.local_addr().unwrap(), Arc::new(Mutex::default()));
        let notes = Arc::clone(&noted);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let (server, notes) = (TcpStream::connect(server).unwrap(), Arc::clone(&notes));
                let (client_too, server_too) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || pass(client, server, |bytes| note(&notes, bytes)));
                std::thread::spawn(move || pass(server_too, client_too, |_| {}));
            }
        });
        Self { address, noted }
    }

    pub(crate) fn requests(&self) -> Vec<Heard> {
        self.noted.lock().unwrap().clone()
    }

    /// The first forwarded request with this method and path.
    pub(crate) fn request_to(&self, method: &str, path: &str) -> Heard {
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

fn pass(mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Write));
}

/// A client writes the head of a request in one piece, and sends the next when it has the response. So each write that
/// starts a request starts with a head.
fn note(notes: &Mutex<Vec<Heard>>, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some((head, _)) = text.split_once("\r\n\r\n")
        && head.lines().next().is_some_and(|line| line.ends_with(" HTTP/1.1"))
    {
        notes.lock().unwrap().push(Heard { head: head.to_owned() });
    }
}
