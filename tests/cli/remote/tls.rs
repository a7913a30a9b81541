//! A daemon behind TLS, with a certificate of a private CA.

use std::{fs, net::SocketAddr, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    runtime::Runtime,
};
use tokio_rustls::TlsAcceptor;

use super::fixture::Cli;

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"instances\":[]}";

/// A server with a certificate for 127.0.0.1, and the folder with its CA file.
fn start_tls_server(runtime: &Runtime) -> (SocketAddr, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = ca.self_signed(&ca_key).unwrap();
    fs::write(folder.path().join("ca.pem"), ca.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca, &ca_key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust the certificate disconnects.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 4096];
            if stream.read(&mut head).await.is_ok() {
                drop(stream.write_all(RESPONSE.as_bytes()).await);
                drop(stream.shutdown().await);
            }
        }
    });
    (address, folder)
}

#[test]
fn daemon_is_trusted_only_by_its_ca() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (address, folder) = start_tls_server(&runtime);
    let cli = Cli::at(&format!("https://{address}"));
    let ca = folder.path().join("ca.pem");
    let output = cli.run(&["instances", "--ca-file", ca.to_str().unwrap(), "-o", "json"]).json();
    assert_eq!(output, serde_json::json!({"instances": []}));
    let message = cli.run(&["instances"]).expect_failure();
    assert!(message.contains("certificate") && message.contains("--ca-file"), "{message}");
    let message = cli.run(&["instances", "--ca-file", "none.pem"]).expect_failure();
    assert!(message.contains("none.pem cannot be read") && message.contains("PEM"), "{message}");
}
