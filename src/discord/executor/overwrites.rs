//! Permission overwrites of channels.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::ProgressStep;
use guildhall_core::operation::payload::{
    Overwrite, OverwriteMode, OverwriteTarget, ReplaceOverwrites, UpdatePermissions,
};
use serde::Serialize;
use serde_json::json;
use twilight_model::guild::Permissions;
use twilight_model::http::permission_overwrite::{PermissionOverwrite, PermissionOverwriteType};
use twilight_model::id::Id;
use twilight_model::id::marker::{ChannelMarker, GenericMarker};

use super::execution_context::{ExecutionContext, id, named};
use super::execution_error::{ExecutionError, RepeatSafety};
use super::model::{DiscordChannel, DiscordOverwrite};
use super::verify::found_if;

/// An overwrite in the format of Discord's channel requests.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct OverwriteForm {
    id: Id<GenericMarker>,
    #[serde(rename = "type")]
    kind: u8,
    #[serde(serialize_with = "as_text")]
    allow: u64,
    #[serde(serialize_with = "as_text")]
    deny: u64,
}

fn as_text<S: serde::Serializer>(bits: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(bits)
}

impl OverwriteForm {
    fn of(overwrite: &Overwrite) -> Result<Self, ExecutionError> {
        let (id, kind) = match &overwrite.target {
            OverwriteTarget::Role(role) => (id(role)?, 0),
            OverwriteTarget::Member(user) => (named(*user)?, 1),
        };
        Ok(Self { id, kind, allow: overwrite.allow, deny: overwrite.deny })
    }

    /// Merges it over the existing overwrite: bits that it does not name stay unchanged.
    fn over(mut self, seen: &[DiscordOverwrite]) -> Self {
        if let Some(old) = seen.iter().find(|old| old.id == self.id.get()) {
            (self.allow, self.deny) = (self.allow | old.allow & !self.deny, self.deny | old.deny & !self.allow);
        }
        self
    }

    /// Whether a channel has it. An empty overwrite equals none.
    fn is_in(self, seen: &[DiscordOverwrite]) -> bool {
        match seen.iter().find(|old| old.id == self.id.get()) {
            Some(old) => *old == self.seen(),
            None => self.allow | self.deny == 0,
        }
    }

    /// The progress step that records it as set.
    fn step(self, channel: Id<ChannelMarker>) -> ProgressStep {
        let (channel_id, id) = (channel.get(), self.id.get());
        match self.kind {
            0 => ProgressStep::RoleOverwriteSet { channel_id, role_id: id },
            _ => ProgressStep::MemberOverwriteSet { channel_id, user_id: id },
        }
    }

    pub(crate) const fn seen(self) -> DiscordOverwrite {
        DiscordOverwrite { id: self.id.get(), kind: self.kind, allow: self.allow, deny: self.deny }
    }

    fn typed(self) -> PermissionOverwrite {
        PermissionOverwrite {
            allow: Some(Permissions::from_bits_retain(self.allow)),
            deny: Some(Permissions::from_bits_retain(self.deny)),
            id: self.id,
            kind: if self.kind == 0 { PermissionOverwriteType::Role } else { PermissionOverwriteType::Member },
        }
    }
}

/// Converts overwrites to Discord's format.
pub(crate) fn wired(overwrites: &[Overwrite]) -> Result<Vec<OverwriteForm>, ExecutionError> {
    overwrites.iter().map(OverwriteForm::of).collect()
}

/// Whether a channel has exactly these overwrites. The order does not matter, and an empty overwrite equals none.
pub(crate) fn same(wanted: &[OverwriteForm], seen: &[DiscordOverwrite]) -> bool {
    let sorted = |list: &mut dyn Iterator<Item = DiscordOverwrite>| {
        let mut kept: Vec<DiscordOverwrite> = list.filter(|one| one.allow | one.deny != 0).collect();
        kept.sort_unstable();
        kept
    };
    sorted(&mut wanted.iter().map(|wire| wire.seen())) == sorted(&mut seen.iter().copied())
}

/// Sets each overwrite with a call of its own, so that others stay unchanged. Merging skips those that are in place
/// already. Those that an earlier execution has set are not set again.
pub(crate) async fn update(
    errand: &ExecutionContext<'_>,
    payload: &UpdatePermissions,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = id(&payload.channel)?;
    let mut wanted = wired(&payload.overwrites)?;
    let before = wanted.len();
    wanted.retain(|wire| !errand.work.progress.steps().contains(&wire.step(channel)));
    let (mut changed, mut status) = (before - wanted.len(), 200);
    let wanted: Vec<OverwriteForm> = match payload.mode {
        OverwriteMode::Replace => wanted,
        OverwriteMode::Merge => {
            let seen: DiscordChannel = errand.look(errand.builders().channel(channel)).await?;
            let merged = wanted.into_iter().map(|wire| wire.over(&seen.permission_overwrites));
            merged.filter(|wire| !seen.permission_overwrites.contains(&wire.seen())).collect()
        }
    };
    for wire in wanted {
        let overwrite = wire.typed();
        let answered = errand.change(errand.builders().update_channel_permission(channel, &overwrite)).await?;
        (changed, status) = (changed + 1, answered.status.as_u16());
        errand.work.journal.step(wire.step(channel));
    }
    let result = json!({ "channel_id": channel, "changed": changed });
    Ok(ExecutionOutput { result, status: Some(status), ..ExecutionOutput::default() })
}

pub(crate) async fn replace(
    errand: &ExecutionContext<'_>,
    payload: &ReplaceOverwrites,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = id(&payload.channel)?;
    let body = json!({ "permission_overwrites": wired(&payload.overwrites)? });
    let request = errand.json(http::Method::PATCH, &format!("/channels/{channel}"), Some(&body))?;
    let answered = errand.send_marked(request, RepeatSafety::Harmless).await?;
    let result = json!({ "channel_id": channel });
    Ok(ExecutionOutput { result, status: Some(answered.status.as_u16()), ..ExecutionOutput::default() })
}

/// The overwrites of a channel; `None` if there is no such channel.
async fn overwrites_of(
    errand: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
) -> Result<Option<Vec<DiscordOverwrite>>, ExecutionError> {
    match errand.look::<DiscordChannel>(errand.builders().channel(channel)).await {
        Ok(seen) => Ok(Some(seen.permission_overwrites)),
        Err(stop) if stop.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

pub(crate) async fn verify_updated(
    errand: &ExecutionContext<'_>,
    payload: &UpdatePermissions,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = id(&payload.channel)?;
    let wanted = wired(&payload.overwrites)?;
    let Some(seen) = overwrites_of(errand, channel).await? else { return Ok(ReconcileResult::Absent) };
    let in_place = wanted.iter().all(|wire| match payload.mode {
        OverwriteMode::Replace => wire.is_in(&seen),
        OverwriteMode::Merge => wire.over(&seen).is_in(&seen),
    });
    Ok(found_if(in_place, || {
        let result = json!({ "channel_id": channel, "changed": wanted.len() });
        ExecutionOutput { result, status: Some(200), ..ExecutionOutput::default() }
    }))
}

pub(crate) async fn verify_replaced(
    errand: &ExecutionContext<'_>,
    payload: &ReplaceOverwrites,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = id(&payload.channel)?;
    let wanted = wired(&payload.overwrites)?;
    let Some(seen) = overwrites_of(errand, channel).await? else { return Ok(ReconcileResult::Absent) };
    Ok(found_if(same(&wanted, &seen), || ExecutionOutput {
        result: json!({ "channel_id": channel }),
        status: Some(200),
        ..ExecutionOutput::default()
    }))
}

#[cfg(test)]
mod tests {
    use guildhall_core::operation::Reference;

    use super::*;

    fn wire(role: u64, allow: u64, deny: u64) -> OverwriteForm {
        OverwriteForm::of(&Overwrite { target: OverwriteTarget::Role(Reference::Id(role)), allow, deny }).unwrap()
    }

    #[test]
    fn merging_lets_what_is_named_win_and_the_rest_stay() {
        let old = [wire(1, 0b0011, 0b1100).seen()];
        let merged = wire(1, 0b0100, 0b0001).over(&old);
        assert_eq!((merged.allow, merged.deny), (0b0110, 0b1001));
        let fresh = wire(2, 0b0100, 0b0001).over(&old);
        assert_eq!((fresh.allow, fresh.deny), (0b0100, 0b0001));
    }

    #[test]
    fn overwrites_are_the_same_in_any_order() {
        let seen = [wire(1, 1, 0).seen(), wire(2, 0, 4).seen(), wire(3, 0, 0).seen()];
        assert!(same(&[wire(2, 0, 4), wire(1, 1, 0)], &seen));
        assert!(!same(&[wire(2, 0, 4)], &seen));
        assert!(!same(&[wire(2, 0, 4), wire(1, 0, 1)], &seen));
        let written = serde_json::to_value(wire(2, 0, 1 << 50)).unwrap();
        assert_eq!(written, json!({ "id": "2", "type": 0, "allow": "0", "deny": "1125899906842624" }));
    }
}
