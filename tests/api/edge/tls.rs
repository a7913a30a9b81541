//! The API over TLS: its certificates, its errors, and its health checks.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc};

use guildhall_testkit::{
    gateway::{FakeGateway, GatewayBehavior},
    program::{Guildhall, RunningGuildhall, text},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{
    KEY,
    http::{Connection, send_request},
};

/// A CA with certificates for `api.test` and this machine.
struct CertificateAuthority {
    folder: TempDir,
    ca: rcgen::Certificate,
    key: KeyPair,
}

impl CertificateAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = ca.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), ca.pem()).unwrap();
        Self { folder, ca, key }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a new certificate and its key. Returns the certificate as clients see it.
    fn issue(&self, cert: &str, key: &str) -> Vec<u8> {
        let pair = KeyPair::generate().unwrap();
        let names = vec!["api.test".to_owned(), "127.0.0.1".to_owned()];
        let issued = CertificateParams::new(names).unwrap().signed_by(&pair, &self.ca, &self.key).unwrap();
        // Atomically, as tools that renew certificates do.
        for (name, text) in [(key, pair.serialize_pem()), (cert, issued.pem())] {
            fs::write(self.file("new"), text).unwrap();
            fs::rename(self.file("new"), self.file(name)).unwrap();
        }
        issued.der().to_vec()
    }

    /// A daemon that uses these files.
    fn daemon(&self, gateway: &str, cert: &str, key: &str) -> Guildhall {
        Guildhall::serve(gateway)
            .env("GUILDHALL__API__ADMIN_KEY", KEY)
            .env("GUILDHALL__API__TLS__CERT_FILE", self.file(cert).to_str().unwrap())
            .env("GUILDHALL__API__TLS__KEY_FILE", self.file(key).to_str().unwrap())
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    /// A verified connection, and the certificate of the server.
    async fn connect(&self, address: SocketAddr) -> (Connection<tokio_rustls::client::TlsStream<TcpStream>>, Vec<u8>) {
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = self.connector().connect(ServerName::try_from("api.test").unwrap(), stream).await.unwrap();
        let presented = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        (Connection::from_stream(stream), presented)
    }
}

fn stop(daemon: RunningGuildhall) {
    daemon.signal("TERM");
    let exit = tokio::task::block_in_place(|| daemon.wait_for_exit());
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_is_renewed_without_a_restart() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let ca = CertificateAuthority::new();
    let first = ca.issue("cert.pem", "key.pem");
    let daemon = ca.daemon(&gateway.url, "cert.pem", "key.pem").spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");

    let (mut connection, presented) = ca.connect(address).await;
    assert_eq!(presented, first);
    for path in ["/livez", "/v1/operations", "/v1/operations"] {
        let response = connection.send_request("GET", path, &Value::Null).await.unwrap();
        assert_eq!(response.status, 200, "{response:?}");
    }
    assert!(send_request(address, "GET", "/livez", &Value::Null).await.is_err(), "plain HTTP gets no response");

    // An invalid certificate is reported, and the old one stays in use.
    fs::write(ca.file("cert.pem"), "not a certificate").unwrap();
    daemon.wait_for_log_line("which holds no certificate");
    assert_eq!(ca.connect(address).await.1, first);
    let second = ca.issue("cert.pem", "key.pem");
    daemon.wait_for_log_line("certificate reloaded");
    assert_eq!(ca.connect(address).await.1, second);
    // Existing connections are not disturbed.
    let metrics = connection.send_request("GET", "/metrics", &Value::Null).await.unwrap().body;
    assert!(metrics.contains("guildhall_api_certificate_loads_total{result=\"error\"} 1"), "{metrics}");
    stop(daemon);
}

/// Settings with a certificate and a log filter.
fn settings(cert: &str, filter: &str) -> String {
    format!("[api.tls]\ncert_file = \"{cert}\"\nkey_file = \"{cert}.key\"\n[log]\nfilter = \"{filter}\"\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_swaps_the_certificate_and_refuses_a_broken_one() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let ca = CertificateAuthority::new();
    let first = ca.issue("first.pem", "first.pem.key");
    let second = ca.issue("second.pem", "second.pem.key");
    fs::write(ca.file("broken.pem"), "no certificate").unwrap();
    fs::copy(ca.file("first.pem.key"), ca.file("broken.pem.key")).unwrap();
    // The key of another certificate.
    fs::copy(ca.file("second.pem"), ca.file("mixed.pem")).unwrap();
    fs::copy(ca.file("first.pem.key"), ca.file("mixed.pem.key")).unwrap();
    // Not the files in use: only a reload reads them.
    let text = |cert: &str, filter: &str| settings(ca.file(cert).to_str().unwrap(), filter);
    let daemon = Guildhall::serve(&gateway.url)
        .env("GUILDHALL__API__ADMIN_KEY", KEY)
        .file("config/guildhall.toml", &text("first.pem", "info"))
        .spawn();
    let set = |cert: &str, filter: &str| {
        fs::write(daemon.folder().join("config/guildhall.toml"), text(cert, filter)).unwrap();
    };
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    let (mut connection, presented) = ca.connect(address).await;
    assert_eq!(presented, first);

    for broken in ["broken.pem", "mixed.pem", "missing.pem"] {
        set(broken, "debug");
        let refused = connection.send_request("POST", "/v1/reload", &Value::Null).await.unwrap();
        assert_eq!(refused.status, 422, "{broken}: {refused:?}");
        assert!(refused.body.contains("api.tls"), "{broken}: {refused:?}");
        assert_eq!(ca.connect(address).await.1, first, "{broken}");
    }
    set("first.pem", "info");
    let same = connection.send_request("POST", "/v1/reload", &Value::Null).await.unwrap();
    assert!(same.body.contains("\"changed\":[]"), "a rejected change is never applied: {same:?}");

    set("second.pem", "info");
    let swapped = connection.send_request("POST", "/v1/reload", &Value::Null).await.unwrap();
    assert_eq!(swapped.status, 200, "{swapped:?}");
    assert!(swapped.body.contains("\"certificate\""), "{swapped:?}");
    assert_eq!(ca.connect(address).await.1, second);
    // The existing connection is not disturbed.
    assert_eq!(connection.send_request("GET", "/v1/operations", &Value::Null).await.unwrap().status, 200);
    stop(daemon);
}

#[tokio::test(flavor = "multi_thread")]
async fn healthcheck_works_over_tls() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let ca = CertificateAuthority::new();
    ca.issue("cert.pem", "key.pem");
    let daemon = ca.daemon(&gateway.url, "cert.pem", "key.pem").spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    let check = |args: &[&str]| {
        let output = Guildhall::new(&[&["healthcheck"], args].concat())
            .env("GUILDHALL__API__BIND", &address.to_string())
            .env("GUILDHALL__API__TLS__CERT_FILE", ca.file("cert.pem").to_str().unwrap())
            .env("GUILDHALL__API__TLS__KEY_FILE", ca.file("key.pem").to_str().unwrap())
            .output();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let url = format!("https://{address}");
    let ca_file = ca.file("ca.pem").to_str().unwrap().to_owned();
    tokio::task::block_in_place(|| {
        assert_eq!(check(&[]), (Some(0), "ready\n".to_owned(), String::new()));
        assert_eq!(check(&["--live", "--url", &url, "--ca-file", &ca_file]).1, "alive\n");
        let (code, _, message) = check(&["--url", &url]);
        assert!(code == Some(1) && message.contains("UnknownIssuer"), "{message}");
        let (code, _, message) = check(&["--url", &format!("http://{address}")]);
        assert!(code == Some(1) && message.contains("does not speak HTTP"), "{message}");
    });
    stop(daemon);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_trust_only_the_certificate_of_their_settings() {
    let gateway = FakeGateway::start(GatewayBehavior::Normal).await;
    let ca = CertificateAuthority::new();
    ca.issue("cert.pem", "key.pem");
    ca.issue("other.pem", "other.key");
    let daemon = ca.daemon(&gateway.url, "cert.pem", "key.pem").spawn();
    let address = daemon.address();
    daemon.wait_for_log_line("\"part is ready\",\"part\":\"gateway\"");
    let list = |cert: &str, key: &str| {
        let output = Guildhall::new(&["ops", "list", "--output", "json"])
            .env("GUILDHALL__API__BIND", &address.to_string())
            .env("GUILDHALL__API__ADMIN_KEY", KEY)
            .env("GUILDHALL__API__TLS__CERT_FILE", ca.file(cert).to_str().unwrap())
            .env("GUILDHALL__API__TLS__KEY_FILE", ca.file(key).to_str().unwrap())
            .output();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    tokio::task::block_in_place(|| {
        let (code, out, err) = list("cert.pem", "key.pem");
        assert_eq!(code, Some(0), "{out} {err}");
        let (code, _, err) = list("other.pem", "other.key");
        assert!(code != Some(0) && !err.contains(KEY), "{err}");
    });
    stop(daemon);
}

/// The error of a daemon that cannot start with these files.
fn startup_error(ca: &CertificateAuthority, cert: &str, key: &str) -> String {
    let output = ca.daemon("ws://127.0.0.1:1", cert, key).output();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn invalid_tls_files_are_reported_with_a_fix() {
    let ca = CertificateAuthority::new();
    ca.issue("cert.pem", "key.pem");
    ca.issue("other.pem", "other.key");
    let write = |name: &str, text: &str| fs::write(ca.file(name), text).unwrap();
    write("empty.pem", "");
    let wrapped = |kind: &str, data: &str| format!("-----BEGIN {kind}-----\n{data}\n-----END {kind}-----\n");
    write("encrypted.key", &wrapped("ENCRYPTED PRIVATE KEY", "MIIBvTBXBgkqhkiG9w0BBQ0wSjApBgkqhkiG9w0BBQww"));
    write("old.key", &wrapped("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA"));
    write("nonsense.key", &wrapped("PRIVATE KEY", "AAAA"));
    write("broken.pem", &wrapped("CERTIFICATE", "not base64!"));
    write("hollow.pem", &wrapped("CERTIFICATE", "AAAA"));
    for (cert, key, file, message) in [
        ("missing.pem", "key.pem", "missing.pem", "which cannot be read"),
        ("cert.pem", "missing.key", "missing.key", "which cannot be read"),
        ("empty.pem", "key.pem", "empty.pem", "holds no certificate"),
        ("key.pem", "key.pem", "key.pem", "holds no certificate"),
        ("broken.pem", "key.pem", "broken.pem", "which is broken"),
        ("hollow.pem", "key.pem", "hollow.pem", "which is broken"),
        ("cert.pem", "cert.pem", "cert.pem", "holds no private key"),
        ("cert.pem", "encrypted.key", "encrypted.key", "decrypt it: openssl pkey"),
        ("cert.pem", "old.key", "old.key", "decrypt it: openssl pkey"),
        ("cert.pem", "nonsense.key", "nonsense.key", "cannot be used"),
        ("cert.pem", "other.key", "other.key", "does not belong to the first certificate"),
    ] {
        let error = startup_error(&ca, cert, key);
        assert!(error.contains(message) && error.contains(file), "{cert} and {key}: {error}");
    }
}
