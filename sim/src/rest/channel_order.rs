//! `PATCH /guilds/{guild.id}/channels`: sets the positions of several channels.

use serde_json::{Value, json};

use super::access;
use super::call::{Call, Effect, Reply, Verb};
use super::channels;
use super::error::ApiError;
use super::form::{Field, Form};
use crate::id::Snowflake;
use crate::world::World;
use crate::world::channel::MAX_CHANNELS;
use crate::world::guild::Guild;
use crate::world::permissions::MANAGE_CHANNELS;

/// One entry of a bulk reorder.
struct Move {
    id: Snowflake,
    position: Field<u32>,
    parent: Field<Snowflake>,
    lock: bool,
}

pub(crate) fn reorder(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let guild_access = access::in_guild(world, call)?;
    guild_access.require(MANAGE_CHANNELS)?;
    let moves = moves(call.list()?, access::guild(world, guild_access.guild)?)?;
    let mut changed = Vec::new();
    for Move { id, position, parent, lock } in moves {
        let guild = access::guild_mut(world, guild_access.guild)?;
        let old = guild.channels.get(&id).ok_or(ApiError::UNKNOWN_CHANNEL)?;
        let mut new = old.clone();
        position.update(&mut new.position);
        parent.update_or_clear(&mut new.parent_id);
        if lock && let Some(category) = new.parent_id.and_then(|category| guild.channels.get(&category)) {
            new.permission_overwrites.clone_from(&category.permission_overwrites);
        }
        if new != *old {
            guild.channels.insert(id, new.clone());
            changed.push(new);
        }
    }
    let mut reply = Reply::no_content();
    if let Some(first) = changed.first() {
        reply =
            reply.with_effect(Effect::new(Verb::Update, "channel_positions", Some(guild_access.guild), first.id, ""));
    }
    for channel in &changed {
        channels::notify_update(world, channel);
    }
    Ok(reply)
}

fn moves(body: &Value, guild: &Guild) -> Result<Vec<Move>, ApiError> {
    let wrap = json!({ "list": body });
    let mut form = Form::new(wrap.as_object().expect("invariant: built as an object"));
    let mut moves = Vec::new();
    let mut unknown = false;
    for (index, item) in form.list("list", MAX_CHANNELS).value().unwrap_or_default().iter().enumerate() {
        let read = form.nested(&index.to_string(), item, |item| {
            let id = item.snowflake("id");
            let id = item.required("id", id);
            let (position, parent) = (item.small("position", 0..=10_000), item.snowflake("parent_id"));
            let lock = item.boolean("lock_permissions").value().unwrap_or(false);
            let Some(channel) = guild.channels.get(&id?) else {
                unknown = true;
                return None;
            };
            if let Field::Given(category) = parent {
                channels::check_parent(item, "parent_id", channel.kind, guild, category, id);
            }
            Some(Move { id: channel.id, position, parent, lock })
        });
        moves.extend(read.flatten());
    }
    form.finish()?;
    if unknown { Err(ApiError::UNKNOWN_CHANNEL) } else { Ok(moves) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::testing::RestFixture;

    #[test]
    fn reorder_moves_channels_and_can_lock_permissions() {
        let mut fixture = RestFixture::new();
        let path = fixture.guild_path("/channels");
        let overwrites = json!([{ "id": fixture.guild, "type": 0, "allow": "0", "deny": "2048" }]);
        let category =
            fixture.post(&path, json!({ "name": "cup", "type": 4, "permission_overwrites": overwrites })).id();
        let entry = json!({ "id": fixture.channel, "position": 7, "parent_id": category, "lock_permissions": true });
        let moved = fixture.patch(&path, json!([entry]));
        assert_eq!((moved.status, moved.events.as_slice()), (204, &["CHANNEL_UPDATE"][..]));
        let channel = fixture.get(&fixture.channel_path("")).json;
        assert_eq!((&channel["position"], &channel["parent_id"]), (&json!(7), &json!(category)));
        assert_eq!(channel["permission_overwrites"], overwrites);
        assert_eq!(fixture.patch(&path, json!([{ "id": "5", "position": 1 }])).code(), 10003);
    }
}
