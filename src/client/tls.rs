//! Certificate verification for a daemon on this machine, whose certificate is for another host name.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

/// Trusts only a server that has the private key of the first certificate in this file.
///
/// # Errors
///
/// If the file is invalid.
pub(super) fn pinned(file: &Path) -> Result<ClientConfig, String> {
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
    ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("invariant: ring supports the default versions of TLS")
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
