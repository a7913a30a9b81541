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

use super::stage::Cli;

const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"instances\":[]}";

/// A server with a certificate for 127.0.0.1, and the folder with its CA file.
fn secured(runtime: &Runtime) -> (SocketAddr, TempDir) {
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
                drop(stream.write_all(ANSWER.as_bytes()).await);
                drop(stream.shutdown().await);
            }
        }
    });
    (address, folder)
}

#[test]
fn a_daemon_is_trusted_by_its_authority_and_by_nothing_else() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (address, folder) = secured(&runtime);
    let cli = Cli::at(&format!("https://{address}"));
    let ca = folder.path().join("ca.pem");
    let shown = cli.run(&["instances", "--ca-file", ca.to_str().unwrap(), "-o", "json"]).json();
    assert_eq!(shown, serde_json::json!({"instances": []}));
    let says = cli.run(&["instances"]).failed();
    assert!(says.contains("certificate") && says.contains("--ca-file"), "{says}");
    let says = cli.run(&["instances", "--ca-file", "none.pem"]).failed();
    assert!(says.contains("none.pem cannot be read") && says.contains("PEM"), "{says}");
}
