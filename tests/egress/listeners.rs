//! What the proxy listens on, and which calls it makes once.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
    sync::Arc,
};

use guildhall_sim::LimitConfig;
use guildhall_testkit::program::TEST_TIMEOUT;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types::CertificateDer};
use tokio::task::block_in_place;

use crate::fixture::{Call, EgressFixture, bot, open, read_all, read_until};

/// Writes a certificate for this machine and its key; returns the certificate.
fn issue(folder: &Path) -> CertificateDer<'static> {
    let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    fs::write(folder.join("key.pem"), certified.key_pair.serialize_pem()).unwrap();
    // Atomically: it is read again when it changes.
    fs::write(folder.join("new"), certified.cert.pem()).unwrap();
    fs::rename(folder.join("new"), folder.join("cert.pem")).unwrap();
    certified.cert.der().clone()
}

/// Sends a call over TLS to a server with this certificate.
fn send_over_tls(fixture: &EgressFixture, trusted: CertificateDer<'static>) -> Result<String, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), "127.0.0.1".try_into().unwrap()).unwrap();
    let socket = TcpStream::connect(fixture.egress)?;
    socket.set_read_timeout(Some(TEST_TIMEOUT))?;
    let mut stream = StreamOwned::new(session, socket);
    stream.write_all(Call { authorization: &bot(), ..Call::default() }.text().as_bytes())?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        // The server need not say goodbye.
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error),
        Ok(_) | Err(_) => Ok(answer),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_served_and_its_certificate_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let first = issue(folder.path());
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let settings = [("GUILDHALL__EGRESS__TLS__CERT_FILE", &*cert), ("GUILDHALL__EGRESS__TLS__KEY_FILE", &*key)];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let answer = block_in_place(|| send_over_tls(&fixture, first.clone())).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let plain = Call { authorization: &bot(), ..Call::default() }.text();
    let refused = block_in_place(|| {
        let mut stream = TcpStream::connect(fixture.egress).unwrap();
        stream.write_all(plain.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // It may be reset.
        drop(stream.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    });
    assert!(!refused.contains("HTTP/1.1"), "{refused}");
    let second = issue(folder.path());
    block_in_place(|| {
        fixture.running.signal("HUP");
        fixture.running.wait_for_log_line("settings reloaded");
        assert!(send_over_tls(&fixture, first.clone()).is_err(), "the old certificate is still in use");
        let answer = send_over_tls(&fixture, second.clone()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_socket_is_served_for_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("egress.sock");
    let settings = [("GUILDHALL__EGRESS__SOCKET", path.to_str().unwrap())];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = block_in_place(|| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.write_all(Call { authorization: &bot(), ..Call::default() }.text().as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(fixture.get("/users/@me").status, 200, "the address is served as well");
    fixture.running.signal("TERM");
    let exit = block_in_place(|| fixture.running.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identical_reads_of_a_named_route_are_sent_once() {
    let settings = [("GUILDHALL__EGRESS__COALESCE", "/voice/regions")];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let call = Call { path: "/voice/regions?slow-response", authorization: &bot(), ..Call::default() };
    let first = block_in_place(|| open(fixture.egress, &call.text()));
    fixture.wait_for_metric("guildhall_egress_calls 1");
    let others: Vec<_> = block_in_place(|| (0..4).map(|_| open(fixture.egress, &call.text())).collect());
    fixture.wait_for_metric("guildhall_egress_coalesced_total 4");
    // The others do not depend on the first one.
    drop(first);
    fixture.wait_for_metric("guildhall_egress_abandoned_total 1");
    fixture.upstream.release();
    for other in others {
        let answer = block_in_place(|| read_all(other));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\"firstlast\""), "{answer}");
    }
    assert_eq!(fixture.upstream.calls("slow-response").len(), 1);
    // Other routes are not coalesced.
    let call = Call { path: "/users/@me?slow-response", ..call };
    let mut streamed = block_in_place(|| open(fixture.egress, &call.text()));
    block_in_place(|| read_until(&mut streamed, "last\""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_behind_a_trusted_proxy_are_told_apart() {
    let settings = [
        ("GUILDHALL__API__TRUSTED_PROXIES", "127.0.0.1/32"),
        ("GUILDHALL__API__POLICIES__FAILED_PER_SECOND", "1"),
        ("GUILDHALL__API__POLICIES__FAILED_BURST", "1"),
    ];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let status = |address: &str| {
        let headers = format!("X-Forwarded-For: {address}\r\n");
        fixture.send(&Call { headers: &headers, ..Call::default() }).status
    };
    assert_eq!(status("192.0.2.1"), 401);
    let limited = (0..20).any(|_| status("192.0.2.1") == 429);
    assert!(limited, "attempts of one client are limited");
    assert_eq!(status("192.0.2.2"), 401, "another client is not");
}
