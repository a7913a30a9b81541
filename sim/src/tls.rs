//! TLS with a certificate that is generated at the start: for clients that speak HTTPS only.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::TlsAcceptor;

/// Accepts TLS connections.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// The authority that clients must trust, in PEM.
    pub(crate) authority: String,
}

impl Tls {
    /// Generates an authority, and a certificate for `address` and `localhost`. Two certificates, because some clients
    /// do not accept one that is both.
    pub(crate) fn generate(address: SocketAddr) -> io::Result<Self> {
        let authority_key = KeyPair::generate().map_err(io::Error::other)?;
        let mut authority = named_params("Guildhall simulator, generated authority", Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = authority.self_signed(&authority_key).map_err(io::Error::other)?;

        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), address.ip().to_string()];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = named_params("Guildhall simulator", names)?
            .signed_by(&key, &authority, &authority_key)
            .map_err(io::Error::other)?;
        let chain = vec![certificate.der().clone(), authority.der().clone()];
        let private_key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private_key.into()))
            .map_err(io::Error::other)?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), authority: authority.pem() })
    }
}

fn named_params(name: &str, names: Vec<String>) -> io::Result<CertificateParams> {
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
