//! Webhooks over TLS: a server is identified by its certificate, whatever address its name resolves to.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use guildhall::webhook::{TargetProblem, WebhookConfig, Webhooks};
use guildhall_actors::circuit_breaker::CircuitBreaker;
use guildhall_actors::clock::Clock;
use guildhall_core::invalid::InvalidConfig;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

use crate::brain::{Act, Brain, says};
use crate::stage::{Names, SOON, ask, config, later, patient, run, target, webhooks_with};

/// A private CA, and a server with its certificate for `brain.test`.
struct Secured {
    folder: TempDir,
    acceptor: TlsAcceptor,
}

impl Secured {
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

    fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }
}

/// A webhook with that name, which resolves to this machine.
fn at(name: &str, brain: &Brain, config: &WebhookConfig) -> Webhooks {
    let url = format!("https://{name}:{}/hook", brain.address.port());
    webhooks_with(vec![target("greet", &url)], config, patient(), Names::at(&[&["127.0.0.1"]]))
}

#[test]
fn a_brain_is_known_by_its_name_and_its_certificate() {
    run(async {
        let secured = Secured::new();
        let brain = Brain::secured(secured.acceptor.clone(), says(200, "", "{}")).await;
        let trusting = WebhookConfig { ca_file: Some(secured.authority()), ..config() };
        ask(&at("brain.test", &brain, &trusting), "greet").await.unwrap();
        assert_eq!(brain.seen().names, [Some("brain.test".to_owned())]);
        assert!(brain.seen().requests[0].header("host").starts_with("brain.test:"));

        // Another name, and a CA that is not trusted.
        let (why, _) = later(ask(&at("other.test", &brain, &trusting), "greet").await);
        assert!(why.contains("cannot connect to the webhook") && why.contains("certificate"), "{why}");
        let (why, _) = later(ask(&at("brain.test", &brain, &config()), "greet").await);
        assert!(why.contains("certificate"), "{why}");
        assert_eq!(brain.seen().requests.len(), 1);
    });
}

#[test]
fn a_server_that_does_not_come_to_speak_tls_is_left_in_time() {
    run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://brain.test:{}/", listener.local_addr().unwrap().port());
        let soon = WebhookConfig { connect_timeout: SOON, ..config() };
        let names = Names::at(&[&["127.0.0.1"]]);
        let (why, _) = later(ask(&webhooks_with(vec![target("greet", &url)], &soon, patient(), names), "greet").await);
        assert!(why.contains("no connection within 150 ms"), "{why}");

        let plain = Brain::always(Act::SaysAndCloses(String::new())).await;
        let url = format!("https://127.0.0.1:{}/", plain.address.port());
        let webhooks = webhooks_with(vec![target("greet", &url)], &soon, patient(), Names::none());
        assert!(later(ask(&webhooks, "greet").await).0.contains("cannot connect to the webhook"));
        assert_eq!(plain.seen().requests.len(), 0);
    });
}

#[test]
fn a_file_of_authorities_that_is_none_is_an_error_that_names_it() {
    run(async {
        let secured = Secured::new();
        for (name, says) in [("none.pem", "cannot be read"), ("ca.key", "contains no certificate")] {
            let path = secured.folder.path().join(name);
            let config = WebhookConfig { ca_file: Some(path.clone()), ..config() };
            let breaker = CircuitBreaker::new(Clock::start(), patient(), InvalidConfig::default(), 1);
            let error = Webhooks::new(Vec::new(), &config, actix::Actor::start(breaker)).unwrap_err();
            assert!(error.to_string().contains(name) && error.to_string().contains(says), "{error}");
            assert!(matches!(&error.problems[..], [TargetProblem::Authorities { .. }]), "{error:?}");
        }
    });
}
