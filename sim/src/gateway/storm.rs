//! A storm: many events in a short time, to test whether a reader keeps up.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::intents;
use crate::dispatch::Dispatch;
use crate::id::Snowflake;
use crate::state::{Core, Shared};
use crate::world::World;

/// Interval at which events are queued.
const TICK: Duration = Duration::from_millis(2);

/// Events queued while the lock is held once, so that connections get the lock in between.
const BATCH_SIZE: u64 = 512;

/// Events that wait for a reader when a storm is as fast as the reader; a smaller number stays in the processor's
/// caches.
const MAX_AHEAD: usize = 4_096;

/// A storm to run. It ends when its count or its time is reached, whichever comes first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StormSpec {
    /// Events per second, over all guilds; 0 means as fast as the slowest session is read.
    pub events_per_s: u32,
    /// Guilds that they are spread over, oldest first; 0 means all.
    pub guilds: u32,
    /// Maximum duration.
    pub seconds: f64,
    /// Maximum number of events.
    pub count: Option<u64>,
    /// Type of the events.
    pub event: StormEvent,
}

impl Default for StormSpec {
    fn default() -> Self {
        Self { events_per_s: 1_000, guilds: 0, seconds: 10.0, count: None, event: StormEvent::MessageCreate }
    }
}

/// The events that a storm can consist of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StormEvent {
    /// A member sends a message.
    #[default]
    MessageCreate,
    /// A member joins; the world stays unchanged.
    GuildMemberAdd,
    /// A member starts to type.
    TypingStart,
}

/// Result of a storm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StormReport {
    /// Events queued for the sessions of the guilds.
    pub sent: u64,
    /// Duration of the storm.
    pub seconds: f64,
    /// Events that should have been queued by the end and were not, because sessions had no room.
    pub behind: u64,
}

/// Runs a storm to its end. It never overruns a session: it waits for room instead.
pub(crate) async fn storm(shared: Arc<Shared>, spec: StormSpec) -> StormReport {
    let events = prepare(&shared.lock().world, &spec);
    let started = Instant::now();
    let duration = Duration::try_from_secs_f64(spec.seconds.clamp(0.0, 86_400.0)).unwrap_or_default();
    let max_events = spec.count.unwrap_or(u64::MAX);
    let mut report = StormReport::default();
    if events.is_empty() {
        return report;
    }
    let mut clock = tokio::time::interval(TICK);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let elapsed = started.elapsed().min(duration);
        let target = target_count(elapsed, spec.events_per_s).min(max_events);
        while report.sent < target {
            let queued = queue(&shared, &events, &spec, report.sent, target);
            report.sent += queued;
            if queued == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        let is_finished = report.sent >= max_events || started.elapsed() >= duration;
        if is_finished {
            report.seconds = started.elapsed().as_secs_f64();
            report.behind = if spec.events_per_s == 0 { 0 } else { target - report.sent };
            return report;
        }
    }
}

/// How many events a storm should have sent by then.
fn target_count(elapsed: Duration, events_per_s: u32) -> u64 {
    if events_per_s == 0 {
        return u64::MAX;
    }
    u64::try_from(elapsed.as_micros() * u128::from(events_per_s) / 1_000_000).unwrap_or(u64::MAX)
}

/// Queues a batch of events, as many as there is room for.
fn queue(shared: &Shared, events: &[Dispatch], spec: &StormSpec, sent: u64, target: u64) -> u64 {
    let mut core = shared.lock();
    let Core { world, gateway, .. } = &mut *core;
    let room = match (gateway.free_capacity(), spec.events_per_s) {
        (Some(room), 0) => room.saturating_sub(shared.config.gateway.replay_events.saturating_sub(MAX_AHEAD)),
        (Some(room), _) => room,
        // Without a session there is no reader to set the speed.
        (None, 0) => 0,
        (None, _) => usize::MAX,
    };
    let batch = BATCH_SIZE.min(target - sent).min(room as u64);
    let now = shared.now();
    for number in sent..sent + batch {
        let index = usize::try_from(number % events.len() as u64).expect(
            "invariant: a remainder of a length fits in a \
            usize",
        );
        gateway.dispatch_verbatim(world, &events[index], now);
    }
    batch
}

/// One event for each guild, encoded once for the whole storm.
fn prepare(world: &World, spec: &StormSpec) -> Vec<Dispatch> {
    let mut guilds: Vec<_> = world.bots.iter().flat_map(|bot| world.guilds_of(bot.application_id)).collect();
    guilds.sort_unstable();
    guilds.dedup();
    if spec.guilds > 0 {
        guilds.truncate(usize::try_from(spec.guilds).unwrap_or(usize::MAX));
    }
    guilds.into_iter().map(|guild| event(world, guild, spec.event)).collect()
}

fn event(world: &World, guild: Snowflake, event: StormEvent) -> Dispatch {
    let EventObjects { channel, user, member } = EventObjects::find(world, guild);
    let timestamp = guild.created_at().iso8601();
    match event {
        StormEvent::MessageCreate => Dispatch::guild(
            "MESSAGE_CREATE",
            guild,
            intents::GUILD_MESSAGES,
            &json!({
                "id": guild, "channel_id": channel, "guild_id": guild, "channel_type": 0, "type": 0,
                "content": "A member says something that nobody will remember in a moment.",
                "author": user, "member": member, "timestamp": timestamp, "edited_timestamp": null, "tts": false,
                "mention_everyone": false, "mentions": [], "mention_roles": [], "attachments": [], "embeds": [],
                "components": [], "pinned": false, "flags": 0, "nonce": guild,
            }),
        ),
        StormEvent::GuildMemberAdd => {
            let mut member = member;
            member["user"] = user;
            member["guild_id"] = json!(guild);
            Dispatch::guild("GUILD_MEMBER_ADD", guild, intents::GUILD_MEMBERS, &member)
        }
        StormEvent::TypingStart => {
            let mut full_member = member;
            let user_id = user["id"].clone();
            full_member["user"] = user;
            Dispatch::guild(
                "TYPING_START",
                guild,
                intents::GUILD_MESSAGE_TYPING,
                &json!({
                    "channel_id": channel, "guild_id": guild, "user_id": user_id,
                    "timestamp": guild.created_at().millis() / 1_000, "member": full_member,
                }),
            )
        }
    }
}

/// The objects of a guild's events: a member that is not a bot, and a text channel, if it has them.
struct EventObjects {
    channel: Value,
    user: Value,
    /// Without its user.
    member: Value,
}

impl EventObjects {
    fn find(world: &World, guild: Snowflake) -> Self {
        let guild_data = world.guild_create(guild).and_then(|data| serde_json::from_slice(&data).ok());
        let guild_data: Value = guild_data.unwrap_or_default();
        let list = |name: &str| guild_data[name].as_array().cloned().unwrap_or_default();
        let channel = list("channels").into_iter().find(|channel| channel["type"] == 0);
        let member = list("members").into_iter().find(|member| member["user"]["bot"] != true);
        let mut member = member.unwrap_or_else(|| {
            json!({
                "user": { "id": guild, "username": "someone", "discriminator": "0", "global_name": null, "avatar": null },
                "roles": [], "joined_at": guild.created_at().iso8601(), "flags": 0, "nick": null, "avatar": null,
                "deaf": false, "mute": false, "pending": false, "premium_since": null,
                "communication_disabled_until": null,
            })
        });
        let user = member.as_object_mut().and_then(|member| member.remove("user")).unwrap_or_default();
        Self { channel: channel.map_or_else(|| json!(guild), |channel| channel["id"].clone()), user, member }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storm_follows_its_rate() {
        assert_eq!(target_count(Duration::from_millis(250), 1_000), 250);
        assert_eq!(target_count(Duration::ZERO, 1_000), 0);
        assert_eq!(target_count(Duration::from_secs(1), 0), u64::MAX);
    }

    #[test]
    fn spec_has_defaults_and_rejects_unknown_fields() {
        let spec: StormSpec = serde_json::from_value(json!({"events_per_s": 5, "event": "TYPING_START"})).unwrap();
        assert_eq!(spec, StormSpec { events_per_s: 5, event: StormEvent::TypingStart, ..StormSpec::default() });
        assert!(serde_json::from_value::<StormSpec>(json!({"rate": 5})).is_err());
    }
}
