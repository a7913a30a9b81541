//! TLS of outgoing connections. All of it uses `ring`: a second provider in the process would make others panic.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    WantsVerifier,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

/// Trusts the public certificate authorities.
pub(crate) fn public_authorities() -> ClientConfig {
    trusting(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
}

/// Trusts the public certificate authorities, and those in a file.
///
/// # Errors
///
/// If the file is invalid.
pub(crate) fn authorities(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let Some(path) = ca_file else { return Ok(public_authorities()) };
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut count = 0;
    for certificate in found {
        let certificate = certificate.map_err(|error| format!("is not a PEM file: {error}"))?;
        roots.add(certificate).map_err(|error| format!("contains an invalid certificate: {error}"))?;
        count += 1;
    }
    if count == 0 {
        return Err("contains no certificate".to_owned());
    }
    Ok(trusting(roots))
}

fn trusting(roots: RootCertStore) -> ClientConfig {
    builder(Arc::new(ring::default_provider())).with_root_certificates(roots).with_no_client_auth()
}

fn builder(provider: Arc<CryptoProvider>) -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("invariant: ring supports the default versions of TLS")
}

/// Trusts only a server that has the private key of the first certificate in this file, for any host name: the
/// certificate of a daemon on this machine is for the name that other machines use.
///
/// # Errors
///
/// If the file is invalid.
pub(crate) fn pinned_certificate(file: &Path) -> Result<ClientConfig, String> {
    match CertificateDer::from_pem_file(file) {
        Ok(certificate) => Ok(with_verifier(Some(certificate))),
        Err(error) => Err(format!("contains no valid certificate: {error}")),
    }
}

/// Trusts any server that has the private key of its certificate. Never send a secret over such a connection.
pub(crate) fn any_certificate() -> ClientConfig {
    with_verifier(None)
}

fn with_verifier(certificate: Option<CertificateDer<'static>>) -> ClientConfig {
    let provider = Arc::new(ring::default_provider());
    builder(Arc::clone(&provider))
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(KeyHolderVerifier { certificate, provider }))
        .with_no_client_auth()
}

/// Accepts a server that has the private key of this certificate; of any certificate if it is `None`.
#[derive(Debug)]
struct KeyHolderVerifier {
    certificate: Option<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for KeyHolderVerifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.certificate {
            Some(own) if own != presented => Err(CertificateError::ApplicationVerificationFailure.into()),
            Some(_) | None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
