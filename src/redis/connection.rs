//! One connection to one server, from its first byte to its last.

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

/// A connection to a primary. Calls over it may overlap; each gets its own answer, or none.
pub(super) struct RedisConnection {
    /// Tells connections of this process apart.
    pub(super) generation: u64,
    pub(super) node: RedisNode,
    /// The server's own name for this run of itself. Whatever it held in memory is gone with it.
    pub(super) run_id: String,
    of_use: AtomicBool,
    wire: MultiplexedConnection,
}

impl RedisConnection {
    /// Takes a connection that has logged in, and finds out who the server is.
    pub(super) async fn greet(
        generation: u64,
        node: RedisNode,
        wire: MultiplexedConnection,
    ) -> Result<Self, RedisFailure> {
        let mut connection = Self { generation, node, run_id: String::new(), of_use: AtomicBool::new(false), wire };
        let server = connection.info("server").await?;
        let replication = connection.info("replication").await?;
        match field(&replication, "role") {
            Some("master") => {}
            Some(_) => return Err(connection.refuse_replica(&server, &replication)),
            None => {
                let says = format!(
                    "{} does not say that it is a primary; for sentinels, write redis+sentinel://",
                    connection.node
                );
                return Err(RedisFailure::new(RedisErrorReason::Error, says));
            }
        }
        let run_id = field(&server, "run_id").ok_or_else(|| {
            RedisFailure::new(
                RedisErrorReason::Error,
                "the server does not tell its run_id in INFO, and without it a restart would go unseen",
            )
        })?;
        connection.run_id = run_id.to_owned();
        // Only a name in CLIENT LIST: a server that has none to give is as good.
        drop(connection.send(cmd("CLIENT").arg("SETNAME").arg("guildhall")).await);
        Ok(connection)
    }

    /// What the server tells of itself.
    pub(super) async fn info(&self, section: &str) -> Result<String, RedisFailure> {
        let answer = self.send(cmd("INFO").arg(section)).await.map_err(|error| self.explain(&error))?;
        ::redis::from_redis_value(answer).map_err(|_| {
            RedisFailure::new(RedisErrorReason::Error, "the server's answer to INFO is not text; is it a Redis?")
        })
    }

    /// A replica takes no writes. In a cluster it knows who does.
    fn refuse_replica(&self, server: &str, replication: &str) -> RedisFailure {
        let says = format!("{} is a replica; name its primary, or sentinels that know it", self.node);
        let primary = || {
            let host = field(replication, "master_host")?.to_owned();
            let port = field(replication, "master_port")?.parse().ok()?;
            Some(RedisNode { host, port })
        };
        match primary() {
            Some(primary) if field(server, "redis_mode") == Some("cluster") => RedisFailure::moved(primary, says),
            _ => RedisFailure::new(RedisErrorReason::Replica, says),
        }
    }

    /// Runs a script: one round trip, and two more on a server that has not seen it yet.
    pub(super) async fn run(&self, script: &Script, keys: &[String], args: &[Vec<u8>]) -> Result<Value, RedisFailure> {
        let mut call = cmd("EVALSHA");
        call.arg(script.sha()).arg(keys.len()).arg(keys).arg(args);
        let mut answer = self.send(&call).await;
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            // Loaded, and not sent with EVAL: a newer server may forget the latter whenever it likes.
            answer = self.send(cmd("SCRIPT").arg("LOAD").arg(script.text())).await;
            if answer.is_ok() {
                answer = self.send(&call).await;
            }
        }
        let value = answer.map_err(|error| self.explain(&error))?;
        self.of_use.store(true, Ordering::Relaxed);
        Ok(value)
    }

    /// Asks for what is published on these channels. It arrives where the connection's pushes go.
    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<(), RedisFailure> {
        if channels.is_empty() {
            return Ok(());
        }
        self.wire.clone().subscribe(channels).await.map_err(|error| self.explain(&error))
    }

    /// Asks for nothing but an answer.
    pub(super) async fn ping(&self) -> Result<(), RedisFailure> {
        self.send(&cmd("PING")).await.map(drop).map_err(|error| self.explain(&error))
    }

    /// Whether anything was ever answered over it.
    pub(super) fn was_of_use(&self) -> bool {
        self.of_use.load(Ordering::Relaxed)
    }

    async fn send(&self, command: &Cmd) -> ::redis::RedisResult<Value> {
        self.wire.clone().req_packed_command(command).await?.extract_error()
    }

    fn explain(&self, error: &::redis::RedisError) -> RedisFailure {
        RedisFailure::of(error, &self.node)
    }
}

/// The value of a line such as `role:master`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
