//! Makes connections: resolves the address, sets up TLS and logs in.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, cmd,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::time::timeout;

use super::{
    RedisConfigError,
    connection::RedisConnection,
    connection_slot::{ConnectionSlot, pushes},
    error::{RedisErrorReason, RedisFailure},
};
use crate::settings::{RedisNode, RedisTarget, RedisUrl, SecretValue};

/// Timeout of all steps together: DNS, TCP, TLS, sentinels, login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a connection may be idle before TCP keepalive probes it.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Makes one connection after the other.
pub(super) struct Connector {
    url: RedisUrl,
    /// Certificate authorities to trust instead of the public ones, as PEM.
    ca: Option<Vec<u8>>,
    /// Index of the sentinel to query first.
    first: usize,
    generation: u64,
}

impl Connector {
    pub(super) fn new(url: RedisUrl, ca_file: Option<PathBuf>) -> Result<Self, RedisConfigError> {
        Ok(Self { url, ca: ca_file.map(read_ca).transpose()?, first: 0, generation: 0 })
    }

    /// Connects to a primary: to `node` if given, else to the target of the URL.
    pub(super) async fn connect(
        &mut self,
        link: &Arc<ConnectionSlot>,
        node: Option<RedisNode>,
    ) -> Result<RedisConnection, RedisFailure> {
        self.generation += 1;
        link.router.begin(self.generation);
        let made = timeout(CONNECT_TIMEOUT, self.try_connect(link, node)).await.unwrap_or_else(|_| {
            Err(RedisFailure::new(
                RedisErrorReason::Timeout,
                format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()),
            ))
        });
        made.map_err(|failure| {
            link.router.end(self.generation);
            // Another sentinel may have newer information.
            self.first = self.first.wrapping_add(1);
            self.redact(failure)
        })
    }

    async fn try_connect(
        &self,
        link: &Arc<ConnectionSlot>,
        node: Option<RedisNode>,
    ) -> Result<RedisConnection, RedisFailure> {
        let node = match (node, &self.url.place) {
            (Some(node), _) => node,
            (None, RedisTarget::Server(node)) => node.clone(),
            (None, RedisTarget::Sentinels { nodes, service }) => self.primary_of(service, nodes).await?,
        };
        let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(self.url.db);
        if let Some(username) = &self.url.username {
            login = login.set_username(username.expose());
        }
        if let Some(password) = &self.url.password {
            login = login.set_password(password.expose());
        }
        let config = patient().set_push_sender(pushes(link, self.generation));
        let connected =
            async { self.client(&node, login)?.get_multiplexed_async_connection_with_config(&config).await };
        let wire = connected.await.map_err(|error| unreachable(&error, &node))?;
        let connection = RedisConnection::greet(self.generation, node, wire).await?;
        connection.subscribe(&link.router.wanted()).await?;
        Ok(connection)
    }

    /// Queries the sentinels in turn for the primary.
    async fn primary_of(&self, service: &str, sentinels: &[RedisNode]) -> Result<RedisNode, RedisFailure> {
        let mut failure = None;
        for number in 0..sentinels.len() {
            let sentinel = &sentinels[(self.first % sentinels.len() + number) % sentinels.len()];
            match self.ask(sentinel, service).await {
                Ok(Some((host, port))) => return Ok(RedisNode { host, port }),
                Ok(None) => {
                    let says = format!("the sentinel at {sentinel} knows no primary for the service {service:?}");
                    failure = Some(RedisFailure::new(RedisErrorReason::Unreachable, says));
                }
                Err(error) => failure = Some(unreachable(&error, sentinel)),
            }
        }
        Err(failure.expect("invariant: there is at least one sentinel"))
    }

    async fn ask(&self, sentinel: &RedisNode, service: &str) -> RedisResult<Option<(String, u16)>> {
        let client = self.client(sentinel, RedisConnectionInfo::default())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&patient()).await?;
        cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service).query_async(&mut connection).await
    }

    fn client(&self, node: &RedisNode, login: RedisConnectionInfo) -> RedisResult<Client> {
        let RedisNode { host, port } = node.clone();
        let address = if self.url.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        let info: ConnectionInfo = address.into_connection_info()?.set_redis_settings(login).set_tcp_settings(tcp);
        if self.url.tls {
            Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: self.ca.clone() })
        } else {
            Client::open(info)
        }
    }

    /// Removes the password from the message: some servers repeat input that they did not understand.
    fn redact(&self, mut failure: RedisFailure) -> RedisFailure {
        if let Some(password) =
            self.url.password.as_ref().map(SecretValue::expose).filter(|password| !password.is_empty())
        {
            failure.says = failure.says.replace(password, "(redacted)");
        }
        failure
    }
}

fn read_ca(path: PathBuf) -> Result<Vec<u8>, RedisConfigError> {
    let pem = match fs::read(&path) {
        Ok(pem) => pem,
        Err(error) => return Err(RedisConfigError::CaFile { path, error }),
    };
    match CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        Ok(_) | Err(_) => Err(RedisConfigError::NoCertificate { path }),
    }
}

/// Disables the timeouts of the library. Each call and each connection attempt has a timeout of our own.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Describes an error that occurred before there was a connection.
fn unreachable(error: &RedisError, node: &RedisNode) -> RedisFailure {
    let failure = RedisFailure::of(error, node);
    let why = match failure.why {
        RedisErrorReason::Disconnected => RedisErrorReason::Unreachable,
        why => why,
    };
    let mut says = format!("{node}: {}", failure.says);
    if says.contains("certificate") {
        says.push_str("; if the certificate is from a private authority, set redis.ca_file");
    }
    RedisFailure { why, says, ..failure }
}
