//! The parts of a daemon: everything whose end must be noticed.

/// What `/readyz` reports on: several parts form one component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The control API, the listeners for interactions and of the REST proxy, and the process itself.
    Api,
    /// The message broker.
    Broker,
    /// Events and their handlers.
    Events,
    /// The REST gate: rate limits, breakers, budgets.
    Gate,
    /// Shards.
    Gateway,
    /// Operations.
    Operations,
    /// State shared over Redis.
    Redis,
    /// The store.
    Store,
}

impl Component {
    /// Name in `/readyz`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Broker => "broker",
            Self::Events => "events",
            Self::Gate => "gate",
            Self::Gateway => "gateway",
            Self::Operations => "operations",
            Self::Redis => "redis",
            Self::Store => "store",
        }
    }
}

/// Consequence of the end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Its supervisor restarts it, within a budget of restarts.
    Restart,
    /// The process ends.
    EndProcess,
}

macro_rules! parts {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $component:ident, $policy:ident;)*) => {
        /// An actor, task or thread that the daemon needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Part {
            $($(#[$doc])* $variant,)*
        }

        impl Part {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name in logs, metrics and failpoints.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Component in `/readyz`.
            #[must_use]
            pub const fn component(self) -> Component {
                match self {
                    $(Self::$variant => Component::$component,)*
                }
            }

            /// Consequence of its end.
            #[must_use]
            pub const fn policy(self) -> Policy {
                match self {
                    $(Self::$variant => Policy::$policy,)*
                }
            }
        }
    };
}

parts! {
    /// The future that `serve` runs.
    Main = "main", Api, EndProcess;
    /// The thread that waits for SIGTERM and SIGINT.
    Signals = "signals", Api, EndProcess;
    /// The listener of the control API.
    ApiListener = "api_listener", Api, EndProcess;
    /// The listener for interactions.
    InteractionsListener = "interactions_listener", Api, EndProcess;
    /// The listener of the REST proxy.
    EgressListener = "egress_listener", Api, EndProcess;
    /// Reloads the certificate of the API when it changes.
    Certificates = "certificates", Api, EndProcess;
    /// Runs the upkeep of the metrics recorder.
    MetricsUpkeep = "metrics_upkeep", Api, EndProcess;
    /// Exports spans to a collector.
    SpanExporter = "span_exporter", Api, EndProcess;
    /// Wakes API callers that wait for the final state of operations.
    CompletionWaiters = "completion_waiters", Api, EndProcess;
    /// Looks up API keys in the store.
    KeyLookup = "key_lookup", Api, EndProcess;

    /// The token bucket.
    TokenBucket = "token_bucket", Gate, EndProcess;
    /// The circuit breaker.
    CircuitBreaker = "circuit_breaker", Gate, EndProcess;
    /// The named budgets.
    Budgets = "budgets", Gate, EndProcess;
    /// Requests to the shared store of named budgets.
    BudgetRequests = "budget_requests", Gate, EndProcess;
    /// Saves the spend of named budgets to the store.
    BudgetSpend = "budget_spend", Gate, EndProcess;
    /// Follows whether calls can be sent.
    GateHealth = "gate_health", Gate, EndProcess;
    /// Saves the state of the gate for the next process.
    GateSnapshot = "gate_snapshot", Gate, EndProcess;

    /// The supervisor of operations.
    OperationSupervisor = "operation_supervisor", Operations, EndProcess;
    /// The thread on which guilds execute operations.
    OperationThread = "operation_thread", Operations, EndProcess;
    /// An actor that executes the operations of one queue.
    OperationGuild = "operation_guild", Operations, Restart;
    /// Forwards notifications of other processes.
    StoreNotices = "store_notices", Operations, EndProcess;
    /// Counts queued work, for the gauges.
    DepthGauges = "depth_gauges", Operations, EndProcess;
    /// Compares the clocks, and stores what the next process needs for that.
    ClockWatch = "clock_watch", Store, EndProcess;
    /// Deletes what has exceeded its retention period.
    Sweeper = "sweeper", Operations, EndProcess;
    /// Takes a share of the work once the gate is open.
    Arrival = "arrival", Operations, EndProcess;

    /// The router of events.
    EventRouter = "event_router", Events, EndProcess;
    /// The thread of the router.
    RouterThread = "router_thread", Events, EndProcess;
    /// The supervisor of guilds that handle events.
    EventSupervisor = "event_supervisor", Events, EndProcess;
    /// The thread on which guilds handle events.
    EventThread = "event_thread", Events, EndProcess;
    /// An actor that handles the events of one guild.
    EventGuild = "event_guild", Events, Restart;
    /// Stores which interactions were received.
    InteractionRecorder = "interaction_recorder", Events, EndProcess;

    /// Writes to the store.
    StoreWriter = "store_writer", Store, EndProcess;
    /// Renews the lease of this process.
    Heartbeat = "heartbeat", Store, EndProcess;
    /// Listens for notifications of other processes.
    StoreListener = "store_listener", Store, EndProcess;
    /// Follows whether the store is available.
    StoreHealth = "store_health", Store, EndProcess;

    /// Maintains the connection to Redis.
    RedisConnection = "redis_connection", Redis, EndProcess;
    /// Shares breakers and the budget of invalid requests.
    RedisState = "redis_state", Redis, EndProcess;
    /// Writes idempotency keys to Redis.
    RedisIdempotency = "redis_idempotency", Redis, EndProcess;
    /// Follows the mode in which this process shares the limit.
    RedisHealth = "redis_health", Redis, EndProcess;
    /// Reports crashed processes of this machine.
    DeadProcesses = "dead_processes", Redis, EndProcess;

    /// Maintains the connection to RabbitMQ.
    BrokerConnection = "broker_connection", Broker, EndProcess;

    /// Claims shards and releases them.
    ShardClaims = "shard_claims", Gateway, EndProcess;
    /// A thread on which shards run.
    ShardThread = "shard_thread", Gateway, EndProcess;
    /// One shard.
    Shard = "shard", Gateway, EndProcess;
    /// Records the guilds that the bot is in.
    GuildRecorder = "guild_recorder", Gateway, EndProcess;
    /// Lets shards identify one by one.
    Identify = "identify", Gateway, EndProcess;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_parts_are_unique() {
        let names: BTreeSet<&str> = Part::ALL.iter().map(|part| part.name()).collect();
        assert_eq!(names.len(), Part::ALL.len());
    }

    #[test]
    fn only_guild_actors_are_restarted() {
        let restarted: Vec<Part> = Part::ALL.iter().copied().filter(|part| part.policy() == Policy::Restart).collect();
        assert_eq!(restarted, [Part::OperationGuild, Part::EventGuild]);
    }
}
