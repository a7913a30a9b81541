//! The tables of the store as SeaORM entities, one for each table; `migrations` defines their columns and indexes.
//!
//! Columns have types that both engines share: times are milliseconds since 1970, and numbers and switches are `i64`.

#![allow(dead_code, reason = "an entity describes its whole table, whatever part of it is used")]

/// What SeaORM needs besides the columns, for a table without relations.
macro_rules! plain_entity {
    () => {
        #[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
        pub(crate) enum Relation {}

        impl ActiveModelBehavior for ActiveModel {}
    };
}

pub(super) mod api_keys;
pub(super) mod applied_migrations;
pub(super) mod audit;
pub(super) mod budget_spend;
pub(super) mod channel_guilds;
pub(super) mod crashed_inputs;
pub(super) mod dead_letters;
pub(super) mod generated_admin_key;
pub(super) mod guild_names;
pub(super) mod guild_queues;
pub(super) mod handled;
pub(super) mod idempotency;
pub(super) mod identifies;
pub(super) mod inbox;
pub(super) mod instances;
pub(super) mod intents;
pub(super) mod leases;
pub(super) mod limit_shares;
pub(super) mod managed_objects;
pub(super) mod marks;
pub(super) mod operation_attempts;
pub(super) mod operation_refs;
pub(super) mod operations;
pub(super) mod process_ends;
pub(super) mod received_interactions;
pub(super) mod seaql_migrations;
pub(super) mod sessions;
pub(super) mod shard_owners;
pub(super) mod state;
pub(super) mod switches;
pub(super) mod usage;
