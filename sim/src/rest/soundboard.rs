//! `/soundboard-default-sounds`: the sounds that every guild has.

use serde_json::{Value, json};

use super::call::{Call, Reply};
use super::error::ApiError;
use crate::world::World;

/// Names and emojis of the default sounds, whose ids count from 1.
const SOUNDS: [(&str, &str); 6] = [
    ("quack", "🦆"),
    ("airhorn", "🔊"),
    ("cricket", "🦗"),
    ("golf clap", "👏"),
    ("sad horn", "🎷"),
    ("ba dum tss", "🥁"),
];

pub(crate) fn defaults(_: &mut World, _: &Call<'_>) -> Result<Reply, ApiError> {
    let sound = |(id, (name, emoji)): (u32, &(&str, &str))| {
        json!({
            "name": name,
            "sound_id": id.to_string(),
            "volume": 1.0,
            "emoji_id": null,
            "emoji_name": emoji,
            "available": true,
        })
    };
    let sounds: Vec<Value> = (1..).zip(&SOUNDS).map(sound).collect();
    Ok(Reply::ok(&sounds))
}
