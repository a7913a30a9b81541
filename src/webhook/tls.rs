//! TLS configuration with trusted certificate authorities.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Returns a TLS configuration that trusts the public certificate authorities, and those in a file.
///
/// # Errors
///
/// If the file is invalid.
pub(crate) fn trusted_tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca_file {
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
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("invariant: ring supports the default versions of TLS");
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
