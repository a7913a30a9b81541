//! One connection to one server.

use std::sync::atomic::{AtomicBool, Ordering};

use ::redis::{
    Cmd, ErrorKind, ServerErrorKind, Value,
    aio::{ConnectionLike as _, MultiplexedConnection},
    cmd,
};

use super::{
    error::{RedisErrorReason, RedisFailure},
    script::Script,
};
use crate::settings::RedisNode;

/// A connection to a primary. Calls over it may overlap; each gets its own response, or none.
pub(super) struct RedisConnection {
    /// Identifies the connection within this process.
    pub(super) generation: u64,
    pub(super) node: RedisNode,
    /// The server's id of its current run. Everything in its memory is lost when it ends.
    pub(super) run_id: String,
    used: AtomicBool,
    wire: MultiplexedConnection,
}

impl RedisConnection {
    /// Takes a connection that has logged in, and identifies the server.
    pub(super) async fn handshake(
        generation: u64,
        node: RedisNode,
        wire: MultiplexedConnection,
    ) -> Result<Self, RedisFailure> {
        let mut connection = Self { generation, node, run_id: String::new(), used: AtomicBool::new(false), wire };
        let server = connection.info("server").await?;
        let replication = connection.info("replication").await?;
        match field(&replication, "role") {
            Some("master") => {}
            Some(_) => return Err(connection.replica_failure(&server, &replication)),
            None => {
                let message = format!(
                    "{} does not report that it is a primary; for sentinels, use redis+sentinel://",
                    connection.node
                );
                return Err(RedisFailure::new(RedisErrorReason::Error, message));
            }
        }
        let run_id = field(&server, "run_id").ok_or_else(|| {
            RedisFailure::new(
                RedisErrorReason::Error,
                "the server does not report its run_id in INFO, which is needed to detect a restart",
            )
        })?;
        connection.run_id = run_id.to_owned();
        // Only a label in CLIENT LIST: a server without it works as well.
        drop(connection.send(cmd("CLIENT").arg("SETNAME").arg("guildhall")).await);
        Ok(connection)
    }

    /// Returns a section of the server's INFO.
    pub(super) async fn info(&self, section: &str) -> Result<String, RedisFailure> {
        let response = self.send(cmd("INFO").arg(section)).await.map_err(|error| self.to_failure(&error))?;
        ::redis::from_redis_value(response).map_err(|_| {
            RedisFailure::new(
                RedisErrorReason::Error,
                "the response to INFO is not text; check that the server is \
                Redis",
            )
        })
    }

    /// A replica accepts no writes. In a cluster it knows its primary.
    fn replica_failure(&self, server: &str, replication: &str) -> RedisFailure {
        let message =
            format!("{} is a replica; use the address of its primary, or of sentinels that know it", self.node);
        let primary = || {
            let host = field(replication, "master_host")?.to_owned();
            let port = field(replication, "master_port")?.parse().ok()?;
            Some(RedisNode { host, port })
        };
        match primary() {
            Some(primary) if field(server, "redis_mode") == Some("cluster") => RedisFailure::moved(primary, message),
            _ => RedisFailure::new(RedisErrorReason::Replica, message),
        }
    }

    /// Runs a script: one round trip, and two more on a server that has not loaded it yet.
    pub(super) async fn run(&self, script: &Script, keys: &[String], args: &[Vec<u8>]) -> Result<Value, RedisFailure> {
        let mut call = cmd("EVALSHA");
        call.arg(script.sha()).arg(keys.len()).arg(keys).arg(args);
        let mut response = self.send(&call).await;
        if response.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            // Loaded, not sent with EVAL: newer servers may evict scripts that were sent with EVAL.
            response = self.send(cmd("SCRIPT").arg("LOAD").arg(script.text())).await;
            if response.is_ok() {
                response = self.send(&call).await;
            }
        }
        let value = response.map_err(|error| self.to_failure(&error))?;
        self.used.store(true, Ordering::Relaxed);
        Ok(value)
    }

    /// Subscribes to these channels. Messages arrive with the connection's pushes.
    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<(), RedisFailure> {
        if channels.is_empty() {
            return Ok(());
        }
        self.wire.clone().subscribe(channels).await.map_err(|error| self.to_failure(&error))
    }

    /// Sends a PING.
    pub(super) async fn ping(&self) -> Result<(), RedisFailure> {
        self.send(&cmd("PING")).await.map(drop).map_err(|error| self.to_failure(&error))
    }

    /// Whether any script call over it has succeeded.
    pub(super) fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    async fn send(&self, command: &Cmd) -> ::redis::RedisResult<Value> {
        self.wire.clone().req_packed_command(command).await?.extract_error()
    }

    fn to_failure(&self, error: &::redis::RedisError) -> RedisFailure {
        RedisFailure::of(error, &self.node)
    }
}

/// Returns the value of a line such as `role:master`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
