//! Tests of attachments over HTTP, and of TLS.

use std::sync::Arc;

use bytes::Bytes;
use guildhall_sim::{Sim, SimConfig};
use http::{Method, Request};
use http_body_util::Full;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::common::{AGENT, Fixture, TOKEN, TestResponse, call, send};

/// Posts a message with files of this content, as a form.
async fn post_files(fixture: &Fixture, contents: &[&str]) -> TestResponse {
    let mut body = String::from("--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{}\r\n");
    for (number, content) in contents.iter().enumerate() {
        body += &format!(
            "--b\r\nContent-Disposition: form-data; name=\"files[{number}]\"; filename=\"{number}.html\"\r\n\
             Content-Type: text/html\r\n\r\n{content}\r\n"
        );
    }
    let request = Request::post(format!("/api/v10/channels/{}/messages", fixture.channel))
        .header("host", "sim")
        .header("user-agent", AGENT)
        .header("authorization", TOKEN)
        .header("content-type", "multipart/form-data; boundary=b")
        .body(Full::new(Bytes::from(body + "--b--\r\n")))
        .unwrap();
    send(fixture.sim.address(), request).await.unwrap()
}

/// The path of an attachment of a message.
fn path(message: &TestResponse, index: usize) -> String {
    let url = message.json()["attachments"][index]["url"].as_str().unwrap().to_owned();
    let start = url.find("/attachments/").unwrap();
    url[start..].to_owned()
}

#[tokio::test]
async fn uploaded_file_is_downloaded_until_its_message_is_deleted() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let message = post_files(&fixture, &["<b>one</b>", "two"]).await;
    assert_eq!(message.status, 200, "{}", message.text);
    let file = fixture.control(Method::GET, &path(&message, 0), None).await;
    assert_eq!((file.status, file.text.as_str(), file.header("content-type")), (200, "<b>one</b>", "text/html"));
    assert_eq!(file.header("content-disposition"), "attachment; filename=\"0.html\"");
    assert_eq!(fixture.control(Method::POST, &path(&message, 0), None).await.status, 405);
    let other = path(&message, 1).replace("1.html", "0.html");
    assert_eq!(fixture.control(Method::GET, &other, None).await.status, 404);

    let id = message.json()["id"].as_str().unwrap().to_owned();
    fixture.api(Method::DELETE, &format!("/channels/{}/messages/{id}", fixture.channel), None).await;
    assert_eq!(fixture.control(Method::GET, &path(&message, 1), None).await.status, 404);
}

#[tokio::test]
async fn files_beyond_the_bound_take_the_place_of_older_ones() {
    let fixture = Fixture::start(SimConfig { max_attachment_bytes: 10, ..SimConfig::default() }).await;
    let first = post_files(&fixture, &["123456"]).await;
    let second = post_files(&fixture, &["abcdef"]).await;
    assert_eq!(fixture.control(Method::GET, &path(&first, 0), None).await.status, 404);
    assert_eq!(fixture.control(Method::GET, &path(&second, 0), None).await.text, "abcdef");
}

#[tokio::test]
async fn snapshot_contains_files_and_gives_them_the_new_url() {
    let first = Fixture::start(SimConfig::default()).await;
    post_files(&first, &["kept"]).await;
    let snapshot = first.control(Method::GET, "/sim/snapshot", None).await.json();
    let second = Fixture::start(SimConfig::default()).await;
    second.control(Method::PUT, "/sim/snapshot", Some(snapshot)).await;
    let listed = second.api(Method::GET, &format!("/channels/{}/messages", first.channel), None).await.json();
    let url = listed[0]["attachments"][0]["url"].as_str().unwrap();
    let path = url.strip_prefix(&second.sim.url()).unwrap();
    assert_eq!(second.control(Method::GET, path, None).await.text, "kept");
}

#[tokio::test]
async fn malformed_form_is_refused() {
    let fixture = Fixture::start(SimConfig::default()).await;
    let request = Request::post(format!("/api/v10/channels/{}/messages", fixture.channel))
        .header("host", "sim")
        .header("authorization", TOKEN)
        .header("content-type", "multipart/form-data; boundary=b")
        .body(Full::new(Bytes::from_static(b"--b\r\nno end")))
        .unwrap();
    let refused = send(fixture.sim.address(), request).await.unwrap();
    assert_eq!((refused.status, &refused.json()["code"]), (400, &json!(50035)));
}

#[tokio::test]
async fn tls_clients_trust_the_generated_certificate() {
    let sim = Sim::start(SimConfig { tls: true, ..SimConfig::default() }).await.unwrap();
    assert!(sim.api_url().starts_with("https://127.0.0.1:") && sim.gateway_url().starts_with("wss://127.0.0.1:"));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(sim.certificate().unwrap().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    for name in ["127.0.0.1", "localhost"] {
        let socket = TcpStream::connect(sim.address()).await.unwrap();
        let mut socket = connector.connect(ServerName::try_from(name).unwrap(), socket).await.unwrap();
        socket.write_all(b"GET /api/v10/gateway HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains(&sim.gateway_url()), "{answer}");
    }
    assert!(call(sim.address(), Method::GET, "/sim", None).await.is_err(), "plain HTTP gets no response");
}
