//! How events are addressed: routing keys, partitions and priorities.
//!
//! ```text
//!  interaction.command.ban          ─▶ the queue of interactions, by priority
//!  member.join.p07                  ─▶ the queue of partition 7, in order
//! ```

use guildhall_actors::ports::BrokerEvent;
use sha2::{Digest as _, Sha256};

/// The partition of a lane: the first 8 bytes of the SHA-256 of its decimal number, as a big-endian number, modulo the
/// number of partitions. It is documented, and must not change.
pub(super) fn partition(lane: u64, partitions: u16) -> u16 {
    let digest = Sha256::digest(lane.to_string().as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    let number = u64::from_be_bytes(first) % u64::from(partitions.max(1));
    u16::try_from(number).expect("invariant: it is less than the number of partitions")
}

/// The last word of the routing keys of a partition: `p07`.
pub(super) fn partition_word(partition: u16) -> String {
    format!("p{partition:02}")
}

/// The routing key of an event.
pub(super) fn routing_key(event: &BrokerEvent, partitions: u16) -> String {
    if event.is_interaction {
        // A button may be named like a partition. Its interactions must not be delivered as events of that partition.
        let is_partition = event.name.rsplit('.').next().is_some_and(|word| {
            word.strip_prefix('p').is_some_and(|n| n.len() >= 2 && n.bytes().all(|byte| byte.is_ascii_digit()))
        });
        return if is_partition { format!("{}_", event.name) } else { event.name.clone() };
    }
    format!("{}.{}", event.name, partition_word(partition(event.lane, partitions)))
}

/// The priority of an event, from 0 to 10. Only the queue of interactions orders by it.
pub(super) fn priority(name: &str) -> u8 {
    let mut words = name.split('.');
    match (words.next(), words.next()) {
        (Some("interaction"), Some("command")) => 10,
        (Some("interaction"), _) => 8,
        (Some("member"), Some("join" | "leave")) | (Some("gateway"), _) => 5,
        (Some("message" | "voice" | "typing" | "presence"), _) => 1,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use guildhall_core::event::EventOrigin;
    use guildhall_core::event::handler::trace;
    use guildhall_core::time::UnixMs;

    use super::*;

    fn event(name: &str, lane: u64, is_interaction: bool) -> BrokerEvent {
        let origin = EventOrigin { session: "s".into(), shard: 0, seq: 1 };
        BrokerEvent {
            handler: "bus".into(),
            id: "s-1".to_owned(),
            name: name.to_owned(),
            trace: trace(&origin),
            origin,
            is_interaction,
            lane,
            guild: None,
            received_at: UnixMs::new(1),
            position: None,
            json: Arc::from("{}"),
        }
    }

    #[test]
    fn partition_of_a_guild_never_changes() {
        for (lane, of_32, of_7) in [(0, 24, 3), (1, 1, 2), (41_771_983_423_143_937, 7, 5)] {
            assert_eq!((partition(lane, 32), partition(lane, 7)), (of_32, of_7), "{lane}");
        }
        let mut used: Vec<u16> = (0..1_000).map(|lane| partition(lane << 22, 32)).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), 32, "all partitions are used");
        assert!((0..1_000).all(|lane| partition(lane, 1) == 0));
    }

    #[test]
    fn routing_key_names_the_event_and_the_partition() {
        assert_eq!(routing_key(&event("member.join", 0, false), 32), "member.join.p24");
        assert_eq!(routing_key(&event("interaction.command.ban", 7, true), 32), "interaction.command.ban");
        assert_eq!(routing_key(&event("interaction.button.p07", 7, true), 32), "interaction.button.p07_");
        assert_eq!(routing_key(&event("interaction.button.p7", 7, true), 32), "interaction.button.p7");
    }

    #[test]
    fn users_who_wait_come_first() {
        for (name, expected) in [
            ("interaction.command.ban", 10),
            ("interaction.button.vote", 8),
            ("interaction.modal.form", 8),
            ("member.join", 5),
            ("member.leave", 5),
            ("member.update", 3),
            ("role.create", 3),
            ("message.create", 1),
        ] {
            assert_eq!(priority(name), expected, "{name}");
        }
    }
}
