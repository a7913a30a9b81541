//! The TLS certificate of a listener: read from files, checked, and read again when they change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;

use crate::{
    api::events::{CertificateReloadFailed, CertificateReloaded},
    events::emit,
    settings::TlsSettings,
};

/// No certificate is this large; another file may be.
const FILE_MAX: u64 = 1024 * 1024;

/// TLS cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// A file cannot be read.
    #[error("{setting} names {}, which cannot be read: {source}; it must be a PEM file that this user can read", path.display())]
    Unreadable {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file contains no certificate.
    #[error("{setting} names {}, which holds no certificate; it must be PEM (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
    },
    /// A file contains no key.
    #[error("{setting} names {}, which holds no private key; it must be PEM (-----BEGIN PRIVATE KEY-----)", path.display())]
    NoKey {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
    },
    /// The content of a file is invalid.
    #[error("{setting} names {}, which is broken: {reason}; create it again", path.display())]
    Broken {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The key is encrypted.
    #[error(
        "{setting} names {path}, which is encrypted, and the daemon cannot prompt for its password; decrypt it: \
         openssl pkey -in {path} -out key.pem, and make that file readable for this user only", path = path.display()
    )]
    Encrypted {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
    },
    /// The key is of an unsupported kind.
    #[error("{setting} names {}, whose key cannot be used: {reason}; use RSA with 2048 bits or more, ECDSA or Ed25519", path.display())]
    UnusableKey {
        /// The setting that names it.
        setting: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: rustls::Error,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {section}.key_file ({}) does not belong to the first certificate in {section}.cert_file ({}); use a \
         matching pair, and put the server's own certificate before those of its authorities", key.display(), cert.display()
    )]
    Mismatch {
        /// The section of the settings.
        section: &'static str,
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The TLS library failed.
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] rustls::Error),
}

/// The certificate in use. Clones share the same one.
#[derive(Clone, Debug)]
pub struct Certificates {
    files: Arc<RwLock<TlsSettings>>,
    resolver: Arc<CertificateResolver>,
    config: Arc<ServerConfig>,
}

/// A certificate with its key that passed the checks.
#[derive(Debug)]
pub struct CheckedCertificate {
    files: TlsSettings,
    pair: Arc<CertifiedKey>,
}

#[derive(Debug)]
struct CertificateResolver(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When they do not contain a certificate with its key; the message says what to do.
    pub fn load(files: &TlsSettings) -> Result<Self, CertificatesError> {
        let resolver = Arc::new(CertificateResolver(RwLock::new(Arc::new(read(files)?))));
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&resolver) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { files: Arc::new(RwLock::new(files.clone())), resolver, config: Arc::new(config) })
    }

    /// Reads a certificate and its key, without using them yet.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn check(files: &TlsSettings) -> Result<CheckedCertificate, CertificatesError> {
        Ok(CheckedCertificate { files: files.clone(), pair: Arc::new(read(files)?) })
    }

    /// Whether the certificate in use is a different one.
    #[must_use]
    pub fn differs_from(&self, checked: &CheckedCertificate) -> bool {
        self.resolver.0.read().unwrap_or_else(PoisonError::into_inner).cert != checked.pair.cert
    }

    /// Uses this certificate for new connections, and watches its files from now on.
    pub fn show(&self, checked: CheckedCertificate) {
        *self.files.write().unwrap_or_else(PoisonError::into_inner) = checked.files;
        *self.resolver.0.write().unwrap_or_else(PoisonError::into_inner) = checked.pair;
    }

    fn files(&self) -> TlsSettings {
        self.files.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Checks the files at this interval, for ever, and uses what is new in them. Invalid files are logged, and not
    /// used.
    pub async fn follow(self, every: Duration) {
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = file_versions(&self.files());
        loop {
            tick.tick().await;
            let files = self.files();
            let now = file_versions(&files);
            if now == seen {
                continue;
            }
            seen = now;
            match read(&files) {
                Ok(new) => {
                    *self.resolver.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                    emit(CertificateReloaded { file: &files.cert_file });
                }
                Err(error) => emit(CertificateReloadFailed { error: &error }),
            }
        }
    }
}

/// Modification time and length of each file, which change with its content.
fn file_versions(files: &TlsSettings) -> [Option<(SystemTime, u64)>; 2] {
    [&files.cert_file, &files.key_file].map(|file| {
        let metadata = fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

fn read(files: &TlsSettings) -> Result<CertifiedKey, CertificatesError> {
    let TlsSettings { section, cert_file, key_file } = files;
    let [cert_setting, key_setting] = ["cert_file", "key_file"].map(|name| format!("{section}.{name}"));
    let chain = certificates(&cert_setting, cert_file)?;
    let key = key(&key_setting, key_file)?;
    let reason = |reason| CertificatesError::UnusableKey { setting: key_setting, path: key_file.clone(), reason };
    let key = ring::default_provider().key_provider.load_private_key(key).map_err(reason)?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(CertificatesError::Mismatch { section, cert: cert_file.clone(), key: key_file.clone() })
        }
        Err(error) => Err(broken(&cert_setting, cert_file, &error)),
    }
}

/// The certificates in a file, the server's own first.
///
/// # Errors
///
/// When there is none; the message says what to do.
fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificatesError> {
    let text = text(setting, file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match chain {
        Ok(chain) if chain.is_empty() => {
            Err(CertificatesError::NoCertificate { setting: setting.to_owned(), path: file.to_owned() })
        }
        Ok(chain) => Ok(chain),
        Err(error) => Err(broken(setting, file, &error)),
    }
}

fn key(setting: &str, file: &Path) -> Result<PrivateKeyDer<'static>, CertificatesError> {
    let text = text(setting, file)?;
    let is_encrypted = text.windows(b"ENCRYPTED".len()).any(|words| words == b"ENCRYPTED");
    let (name, path) = (setting.to_owned(), file.to_owned());
    match PrivateKeyDer::from_pem_slice(&text) {
        _ if is_encrypted => Err(CertificatesError::Encrypted { setting: name, path }),
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => Err(CertificatesError::NoKey { setting: name, path }),
        Err(error) => Err(broken(setting, file, &error)),
    }
}

fn text(setting: &str, file: &Path) -> Result<Vec<u8>, CertificatesError> {
    use io::Read as _;
    let mut text = Vec::new();
    let read = fs::File::open(file).and_then(|file| file.take(FILE_MAX).read_to_end(&mut text));
    let (setting, path) = (setting.to_owned(), file.to_owned());
    read.map_err(|source| CertificatesError::Unreadable { setting, path, source })?;
    Ok(text)
}

fn broken(setting: &str, file: &Path, reason: &impl ToString) -> CertificatesError {
    CertificatesError::Broken { setting: setting.to_owned(), path: file.to_owned(), reason: reason.to_string() }
}
