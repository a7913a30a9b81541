//! The parts that the tests kill, each after so many messages, or after so many ticks of 10 ms if it has no messages.

use guildhall_actors::supervision::Part;

/// In one process: the gate, operations and the API.
pub const GATE_AND_OPERATIONS: &[(Part, u64)] = &[
    (Part::TokenBucket, 12),
    (Part::CircuitBreaker, 12),
    (Part::Budgets, 1),
    (Part::GateSnapshot, 0),
    (Part::GateHealth, 0),
    (Part::OperationSupervisor, 3),
    (Part::OperationThread, 20),
    (Part::Arrival, 0),
    (Part::CompletionWaiters, 1),
    (Part::BudgetSpend, 0),
    (Part::Sweeper, 0),
    (Part::ApiListener, 20),
    (Part::KeyLookup, 0),
    (Part::Signals, 40),
    (Part::Main, 40),
];

/// In one process: the store, events and the gateway.
pub const STORE_AND_GATEWAY: &[(Part, u64)] = &[
    // First, because the others resume its session.
    (Part::Identify, 0),
    (Part::StoreWriter, 15),
    (Part::StoreHealth, 0),
    (Part::DepthGauges, 0),
    (Part::ClockWatch, 0),
    (Part::ShardClaims, 0),
    (Part::GuildRecorder, 0),
    (Part::Shard, 12),
    (Part::ShardThread, 20),
    (Part::InteractionRecorder, 1),
    (Part::EventRouter, 1),
    (Part::RouterThread, 20),
    (Part::EventThread, 20),
    (Part::MetricsUpkeep, 0),
];

/// In one process that shares its limits over Redis.
pub const REDIS: &[(Part, u64)] = &[
    (Part::RedisConnection, 40),
    (Part::RedisState, 1),
    (Part::RedisIdempotency, 2),
    (Part::RedisHealth, 1),
    (Part::DeadProcesses, 0),
    (Part::BudgetRequests, 1),
];

/// In one of three processes.
pub const FLEET: &[(Part, u64)] = &[
    (Part::Heartbeat, 3),
    (Part::StoreWriter, 40),
    (Part::TokenBucket, 8),
    (Part::StoreListener, 3),
    (Part::StoreNotices, 3),
    (Part::OperationSupervisor, 2),
];

/// Under a load of events.
pub const EVENTS: &[(Part, u64)] = &[(Part::EventRouter, 100), (Part::EventSupervisor, 40), (Part::ShardClaims, 0)];
