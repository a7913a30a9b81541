//! Webhooks over TLS: a server is identified by its certificate, whatever address its name resolves to.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use guildhall::webhook::{TargetProblem, WebhookConfig, Webhooks};
use guildhall_actors::circuit_breaker::CircuitBreaker;
use guildhall_actors::clock::Clock;
use guildhall_core::invalid::InvalidConfig;
use guildhall_testkit::brain::{Action, Brain, respond};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

use super::fixture::{
    FakeResolver, SHORT_TIMEOUT, call_webhook, config, disabled_breaker, expect_retry_later, run, target, webhooks_with,
};

/// A private CA, and a server with its certificate for `brain.test`.
struct TlsServer {
    folder: TempDir,
    acceptor: TlsAcceptor,
}

impl TlsServer {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = ca.self_signed(&ca_key).unwrap();
        fs::write(folder.path().join("ca.pem"), ca.pem()).unwrap();
        fs::write(folder.path().join("ca.key"), ca_key.serialize_pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(vec!["brain.test".to_owned()]).unwrap();
        let server = server.signed_by(&key, &ca, &ca_key).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![server.der().clone()], key)
            .unwrap();
        Self { folder, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

/// A webhook with that name, which resolves to this machine.
fn webhook_at(name: &str, brain: &Brain, config: &WebhookConfig) -> Webhooks {
    let url = format!("https://{name}:{}/hook", brain.address.port());
    webhooks_with(vec![target("greet", &url)], config, disabled_breaker(), FakeResolver::returning(&[&["127.0.0.1"]]))
}

#[test]
fn brain_is_verified_by_name_and_certificate() {
    run(async {
        let server = TlsServer::new();
        let brain = Brain::secured(server.acceptor.clone(), respond(200, "", "{}")).await;
        let trusting = WebhookConfig { ca_file: Some(server.ca_file()), ..config() };
        call_webhook(&webhook_at("brain.test", &brain, &trusting), "greet").await.unwrap();
        assert_eq!(brain.received().names, [Some("brain.test".to_owned())]);
        assert!(brain.received().requests[0].header("host").starts_with("brain.test:"));

        // Another name, and a CA that is not trusted.
        let (reason, _) = expect_retry_later(call_webhook(&webhook_at("other.test", &brain, &trusting), "greet").await);
        assert!(reason.contains("cannot connect to the webhook") && reason.contains("certificate"), "{reason}");
        let (reason, _) = expect_retry_later(call_webhook(&webhook_at("brain.test", &brain, &config()), "greet").await);
        assert!(reason.contains("certificate"), "{reason}");
        assert_eq!(brain.received().requests.len(), 1);
    });
}

#[test]
fn server_without_tls_times_out() {
    run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://brain.test:{}/", listener.local_addr().unwrap().port());
        let short = WebhookConfig { connect_timeout: SHORT_TIMEOUT, ..config() };
        let resolver = FakeResolver::returning(&[&["127.0.0.1"]]);
        let (reason, _) = expect_retry_later(
            call_webhook(&webhooks_with(vec![target("greet", &url)], &short, disabled_breaker(), resolver), "greet")
                .await,
        );
        assert!(reason.contains("no connection within 150 ms"), "{reason}");

        let plain = Brain::always(Action::RespondAndClose(String::new())).await;
        let url = format!("https://127.0.0.1:{}/", plain.address.port());
        let webhooks = webhooks_with(vec![target("greet", &url)], &short, disabled_breaker(), FakeResolver::empty());
        assert!(expect_retry_later(call_webhook(&webhooks, "greet").await).0.contains("cannot connect to the webhook"));
        assert_eq!(plain.received().requests.len(), 0);
    });
}

#[test]
fn invalid_ca_file_is_reported_with_its_name() {
    run(async {
        let server = TlsServer::new();
        for (name, expected) in [("none.pem", "cannot be read"), ("ca.key", "contains no certificate")] {
            let path = server.folder.path().join(name);
            let config = WebhookConfig { ca_file: Some(path.clone()), ..config() };
            let breaker = CircuitBreaker::new(Clock::start(), disabled_breaker(), InvalidConfig::default(), 1);
            let error = Webhooks::new(Vec::new(), &config, actix::Actor::start(breaker)).unwrap_err();
            assert!(error.to_string().contains(name) && error.to_string().contains(expected), "{error}");
            assert!(matches!(&error.problems[..], [TargetProblem::CaFile { .. }]), "{error:?}");
        }
    });
}
