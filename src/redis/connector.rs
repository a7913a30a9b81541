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
    connection_slot::{ConnectionSlot, push_handler},
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
    first_sentinel: usize,
    generation: u64,
}

impl Connector {
    pub(super) fn new(url: RedisUrl, ca_file: Option<PathBuf>) -> Result<Self, RedisConfigError> {
        Ok(Self { url, ca: ca_file.map(read_ca).transpose()?, first_sentinel: 0, generation: 0 })
    }

    /// Connects to a primary: to `node` if given, else to the target of the URL.
    pub(super) async fn connect(
        &mut self,
        slot: &Arc<ConnectionSlot>,
        node: Option<RedisNode>,
    ) -> Result<RedisConnection, RedisFailure> {
        self.generation += 1;
        slot.router.start_connection(self.generation);
        let result = timeout(CONNECT_TIMEOUT, self.try_connect(slot, node)).await.unwrap_or_else(|_| {
            Err(RedisFailure::new(
                RedisErrorReason::Timeout,
                format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()),
            ))
        });
        result.map_err(|failure| {
            slot.router.end_connection(self.generation);
            // Another sentinel may have newer information.
            self.first_sentinel = self.first_sentinel.wrapping_add(1);
            self.redact(failure)
        })
    }

    async fn try_connect(
        &self,
        slot: &Arc<ConnectionSlot>,
        node: Option<RedisNode>,
    ) -> Result<RedisConnection, RedisFailure> {
        let node = match (node, &self.url.target) {
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
        let config = connection_config().set_push_sender(push_handler(slot, self.generation));
        let connected =
            async { self.client(&node, login)?.get_multiplexed_async_connection_with_config(&config).await };
        let wire = connected.await.map_err(|error| connect_failure(&error, &node))?;
        let connection = RedisConnection::handshake(self.generation, node, wire).await?;
        connection.subscribe(&slot.router.take_pending()).await?;
        Ok(connection)
    }

    /// Queries the sentinels in turn for the primary.
    async fn primary_of(&self, service: &str, sentinels: &[RedisNode]) -> Result<RedisNode, RedisFailure> {
        let mut failure = None;
        for number in 0..sentinels.len() {
            let sentinel = &sentinels[(self.first_sentinel % sentinels.len() + number) % sentinels.len()];
            match self.query_sentinel(sentinel, service).await {
                Ok(Some((host, port))) => return Ok(RedisNode { host, port }),
                Ok(None) => {
                    let message = format!("the sentinel at {sentinel} knows no primary for the service {service:?}");
                    failure = Some(RedisFailure::new(RedisErrorReason::Unreachable, message));
                }
                Err(error) => failure = Some(connect_failure(&error, sentinel)),
            }
        }
        Err(failure.expect("invariant: there is at least one sentinel"))
    }

    async fn query_sentinel(&self, sentinel: &RedisNode, service: &str) -> RedisResult<Option<(String, u16)>> {
        let client = self.client(sentinel, RedisConnectionInfo::default())?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&connection_config()).await?;
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
            failure.message = failure.message.replace(password, "(redacted)");
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
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Describes an error that occurred before there was a connection.
fn connect_failure(error: &RedisError, node: &RedisNode) -> RedisFailure {
    let failure = RedisFailure::of(error, node);
    let reason = match failure.reason {
        RedisErrorReason::Disconnected => RedisErrorReason::Unreachable,
        reason => reason,
    };
    let mut message = format!("{node}: {}", failure.message);
    if message.contains("certificate") {
        message.push_str("; if the certificate is from a private authority, set redis.ca_file");
    }
    RedisFailure { reason, message, ..failure }
}
