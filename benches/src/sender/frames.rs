//! Events in the size and shape of Discord's. They differ only in their sequence numbers and ids.

use serde_json::{Value, json};

use super::wire;

/// Placeholders for the ids of the guild, its channel and its member.
const GUILD: &str = "<guild>";
const CHANNEL: &str = "<channel>";
const USER: &str = "<user>";

/// Content of a marked message.
pub(crate) const MARK: &str = "!hello";

/// A guild that events belong to.
#[derive(Clone, Debug)]
pub(crate) struct Guild {
    pub(crate) id: u64,
    pub(crate) channel: u64,
    pub(crate) user: u64,
}

/// The frames for one shard. The sequence number determines the frame.
#[derive(Debug)]
pub(super) struct Frames {
    kinds: Vec<FrameTemplate>,
    marked: FrameTemplate,
    guilds: Vec<[String; 3]>,
    /// One frame in this number is marked.
    mark_interval: Option<u64>,
}

/// A frame template, split at the placeholders.
#[derive(Debug)]
struct FrameTemplate {
    head: String,
    parts: Vec<(String, Option<usize>)>,
}

impl Frames {
    pub(super) fn new(guilds: &[Guild], marks: Option<u64>) -> Self {
        let kinds = [
            ("MESSAGE_CREATE", message("a line of a usual length, as people write them")),
            ("MESSAGE_CREATE", message(&"somebody has a long story to tell, and tells it. ".repeat(5))),
            ("GUILD_MEMBER_UPDATE", member_update()),
            ("MESSAGE_CREATE", message("ok")),
            ("MESSAGE_REACTION_ADD", reaction()),
        ];
        let ids = |guild: &Guild| [guild.id, guild.channel, guild.user].map(|id| id.to_string());
        Self {
            kinds: kinds.iter().map(|(t, data)| FrameTemplate::new(t, data)).collect(),
            marked: FrameTemplate::new("MESSAGE_CREATE", &message(MARK)),
            guilds: guilds.iter().map(ids).collect(),
            mark_interval: marks,
        }
    }

    /// Returns whether the shard has no guilds.
    pub(super) fn is_empty(&self) -> bool {
        self.guilds.is_empty()
    }

    /// Appends the frame with this sequence number.
    pub(super) fn append(&self, seq: u64, to: &mut Vec<u8>) {
        let mixed = mix(seq);
        let kind = match self.mark_interval {
            Some(marks) if seq.is_multiple_of(marks) => &self.marked,
            Some(_) | None => &self.kinds[mixed as usize % self.kinds.len()],
        };
        let ids = &self.guilds[(mixed >> 8) as usize % self.guilds.len()];
        self.write(kind, ids, seq, to);
    }

    /// Appends a frame of the guild at this index.
    pub(super) fn append_for_guild(&self, index: usize, seq: u64, to: &mut Vec<u8>) {
        self.write(&self.kinds[0], &self.guilds[index % self.guilds.len()], seq, to);
    }

    fn write(&self, kind: &FrameTemplate, ids: &[String; 3], seq: u64, to: &mut Vec<u8>) {
        let number = seq.to_string();
        let mut parts: [&[u8]; 16] = [&[]; 16];
        parts[0] = kind.head.as_bytes();
        parts[1] = number.as_bytes();
        let mut at = 2;
        for (text, id) in &kind.parts {
            parts[at] = text.as_bytes();
            at += 1;
            if let Some(id) = id {
                parts[at] = ids[*id].as_bytes();
                at += 1;
            }
        }
        wire::append_text(&parts[..at], to);
    }
}

impl FrameTemplate {
    fn new(t: &str, data: &Value) -> Self {
        let data = data.to_string();
        let mut parts = Vec::new();
        let mut rest = format!(r#","op":0,"d":{data}}}"#);
        let next = |rest: &str| {
            let placeholders = [GUILD, CHANNEL, USER].into_iter().enumerate();
            placeholders.filter_map(|(id, name)| Some((rest.find(name)?, id, name.len()))).min()
        };
        while let Some((at, id, len)) = next(&rest) {
            let tail = rest.split_off(at + len);
            rest.truncate(at);
            parts.push((rest, Some(id)));
            rest = tail;
        }
        parts.push((rest, None));
        Self { head: format!(r#"{{"t":"{t}","s":"#), parts }
    }
}

/// Maps a sequence number to a pseudo-random number, always the same one.
fn mix(seq: u64) -> u64 {
    let mixed = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ mixed >> 32
}

fn user() -> Value {
    json!({
        "id": USER, "username": "someone.or.other", "global_name": "Someone Or Other", "discriminator": "0",
        "avatar": "8342729096ea3675442027381ff50dfe", "avatar_decoration_data": null, "clan": null,
        "primary_guild": null, "public_flags": 256, "collectibles": null, "display_name_styles": null,
    })
}

fn member() -> Value {
    json!({
        "roles": ["1300000000000000101", "1300000000000000102"], "premium_since": null, "pending": false, "nick": null,
        "mute": false, "joined_at": "2024-01-16T12:34:56.789000+00:00", "flags": 0, "deaf": false, "banner": null,
        "communication_disabled_until": null, "avatar": null,
    })
}

fn message(content: &str) -> Value {
    json!({
        "type": 0, "tts": false, "timestamp": "2026-01-16T12:34:56.789000+00:00", "pinned": false, "nonce": "1300000000000000555",
        "mentions": [], "mention_roles": [], "mention_everyone": false, "member": member(), "id": "1300000000000000999",
        "flags": 0, "embeds": [], "edited_timestamp": null, "content": content, "components": [], "channel_type": 0,
        "channel_id": CHANNEL, "author": user(), "attachments": [], "guild_id": GUILD,
    })
}

fn member_update() -> Value {
    let mut data = member();
    data["user"] = user();
    data["guild_id"] = GUILD.into();
    data
}

fn reaction() -> Value {
    let mut member = member();
    member["user"] = user();
    json!({
        "user_id": USER, "type": 0, "message_id": "1300000000000000999", "member": member,
        "emoji": { "name": "👍", "id": null }, "channel_id": CHANNEL, "burst": false, "guild_id": GUILD,
        "message_author_id": "1300000000000000777",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(marks: Option<u64>) -> Vec<Value> {
        let guilds = [1, 2, 3].map(|id| Guild { id, channel: id + 10, user: id + 20 });
        let frames = Frames::new(&guilds, marks);
        let read = |seq| {
            let mut written = Vec::new();
            frames.append(seq, &mut written);
            assert!((300..1_500).contains(&written.len()), "{}", written.len());
            let json = written.iter().position(|byte| *byte == b'{');
            serde_json::from_slice(&written[json.unwrap_or_default()..]).expect("a frame is JSON")
        };
        (1..=200).map(read).collect()
    }

    #[test]
    fn each_frame_has_its_sequence_and_the_ids_of_one_guild() {
        for (seq, frame) in (1..).zip(frames(None)) {
            let guild: u64 = frame["d"]["guild_id"].as_str().and_then(|id| id.parse().ok()).unwrap_or_default();
            assert!((1..=3).contains(&guild));
            assert_eq!((&frame["s"], &frame["op"]), (&json!(seq), &json!(0)));
            assert!(frame["d"].get("channel_id").is_none_or(|id| id.as_str() == Some(&(guild + 10).to_string())));
            assert!(frame.to_string().contains(&format!("\"{}\"", guild + 20)));
        }
    }

    #[test]
    fn one_frame_in_twenty_is_marked() {
        let marked = frames(Some(20)).iter().filter(|frame| frame["d"]["content"] == MARK).count();
        assert_eq!(marked, 10);
        assert!(frames(None).iter().all(|frame| frame["d"]["content"] != MARK));
    }
}
