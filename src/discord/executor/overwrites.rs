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

use super::execution_context::{ExecutionContext, reference_id, typed_id};
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
            OverwriteTarget::Role(role) => (reference_id(role)?, 0),
            OverwriteTarget::Member(user) => (typed_id(*user)?, 1),
        };
        Ok(Self { id, kind, allow: overwrite.allow, deny: overwrite.deny })
    }

    /// Merges it over the existing overwrite: bits that it does not name stay unchanged.
    fn merged_over(mut self, seen: &[DiscordOverwrite]) -> Self {
        if let Some(old) = seen.iter().find(|old| old.id == self.id.get()) {
            (self.allow, self.deny) = (self.allow | old.allow & !self.deny, self.deny | old.deny & !self.allow);
        }
        self
    }

    /// Whether a channel has it. An empty overwrite equals none.
    fn is_in(self, seen: &[DiscordOverwrite]) -> bool {
        match seen.iter().find(|old| old.id == self.id.get()) {
            Some(old) => *old == self.to_model(),
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

    pub(crate) const fn to_model(self) -> DiscordOverwrite {
        DiscordOverwrite { id: self.id.get(), kind: self.kind, allow: self.allow, deny: self.deny }
    }

    fn to_twilight(self) -> PermissionOverwrite {
        PermissionOverwrite {
            allow: Some(Permissions::from_bits_retain(self.allow)),
            deny: Some(Permissions::from_bits_retain(self.deny)),
            id: self.id,
            kind: if self.kind == 0 { PermissionOverwriteType::Role } else { PermissionOverwriteType::Member },
        }
    }
}

/// Converts overwrites to Discord's format.
pub(crate) fn to_forms(overwrites: &[Overwrite]) -> Result<Vec<OverwriteForm>, ExecutionError> {
    overwrites.iter().map(OverwriteForm::of).collect()
}

/// Whether a channel has exactly these overwrites. The order does not matter, and an empty overwrite equals none.
pub(crate) fn same_overwrites(desired: &[OverwriteForm], seen: &[DiscordOverwrite]) -> bool {
    let sorted = |list: &mut dyn Iterator<Item = DiscordOverwrite>| {
        let mut present: Vec<DiscordOverwrite> = list.filter(|one| one.allow | one.deny != 0).collect();
        present.sort_unstable();
        present
    };
    sorted(&mut desired.iter().map(|form| form.to_model())) == sorted(&mut seen.iter().copied())
}

/// Sets each overwrite with a call of its own, so that others stay unchanged. Merging skips those that are in place
/// already. Those that an earlier execution has set are not set again.
pub(crate) async fn update(
    context: &ExecutionContext<'_>,
    payload: &UpdatePermissions,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let mut desired = to_forms(&payload.overwrites)?;
    let before = desired.len();
    desired.retain(|form| !context.work.progress.steps().contains(&form.step(channel)));
    let (mut changed, mut status) = (before - desired.len(), 200);
    let desired: Vec<OverwriteForm> = match payload.mode {
        OverwriteMode::Replace => desired,
        OverwriteMode::Merge => {
            let seen: DiscordChannel = context.fetch(context.builders().channel(channel)).await?;
            let merged = desired.into_iter().map(|form| form.merged_over(&seen.permission_overwrites));
            merged.filter(|form| !seen.permission_overwrites.contains(&form.to_model())).collect()
        }
    };
    for form in desired {
        let overwrite = form.to_twilight();
        let response = context.change(context.builders().update_channel_permission(channel, &overwrite)).await?;
        (changed, status) = (changed + 1, response.status.as_u16());
        context.work.journal.add_step(form.step(channel));
    }
    let result = json!({ "channel_id": channel, "changed": changed });
    Ok(ExecutionOutput { result, status: Some(status), ..ExecutionOutput::default() })
}

pub(crate) async fn replace(
    context: &ExecutionContext<'_>,
    payload: &ReplaceOverwrites,
) -> Result<ExecutionOutput, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let body = json!({ "permission_overwrites": to_forms(&payload.overwrites)? });
    let request = context.json(http::Method::PATCH, &format!("/channels/{channel}"), Some(&body))?;
    let response = context.send_marked(request, RepeatSafety::Harmless).await?;
    let result = json!({ "channel_id": channel });
    Ok(ExecutionOutput { result, status: Some(response.status.as_u16()), ..ExecutionOutput::default() })
}

/// The overwrites of a channel; `None` if there is no such channel.
async fn overwrites_of(
    context: &ExecutionContext<'_>,
    channel: Id<ChannelMarker>,
) -> Result<Option<Vec<DiscordOverwrite>>, ExecutionError> {
    match context.fetch::<DiscordChannel>(context.builders().channel(channel)).await {
        Ok(seen) => Ok(Some(seen.permission_overwrites)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn verify_updated(
    context: &ExecutionContext<'_>,
    payload: &UpdatePermissions,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let desired = to_forms(&payload.overwrites)?;
    let Some(seen) = overwrites_of(context, channel).await? else { return Ok(ReconcileResult::Absent) };
    let in_place = desired.iter().all(|form| match payload.mode {
        OverwriteMode::Replace => form.is_in(&seen),
        OverwriteMode::Merge => form.merged_over(&seen).is_in(&seen),
    });
    Ok(found_if(in_place, || {
        let result = json!({ "channel_id": channel, "changed": desired.len() });
        ExecutionOutput { result, status: Some(200), ..ExecutionOutput::default() }
    }))
}

pub(crate) async fn verify_replaced(
    context: &ExecutionContext<'_>,
    payload: &ReplaceOverwrites,
) -> Result<ReconcileResult, ExecutionError> {
    let channel: Id<ChannelMarker> = reference_id(&payload.channel)?;
    let desired = to_forms(&payload.overwrites)?;
    let Some(seen) = overwrites_of(context, channel).await? else { return Ok(ReconcileResult::Absent) };
    Ok(found_if(same_overwrites(&desired, &seen), || ExecutionOutput {
        result: json!({ "channel_id": channel }),
        status: Some(200),
        ..ExecutionOutput::default()
    }))
}

#[cfg(test)]
mod tests {
    use guildhall_core::operation::Reference;

    use super::*;

    fn form(role: u64, allow: u64, deny: u64) -> OverwriteForm {
        OverwriteForm::of(&Overwrite { target: OverwriteTarget::Role(Reference::Id(role)), allow, deny }).unwrap()
    }

    #[test]
    fn merging_changes_only_the_named_bits() {
        let old = [form(1, 0b0011, 0b1100).to_model()];
        let merged = form(1, 0b0100, 0b0001).merged_over(&old);
        assert_eq!((merged.allow, merged.deny), (0b0110, 0b1001));
        let fresh = form(2, 0b0100, 0b0001).merged_over(&old);
        assert_eq!((fresh.allow, fresh.deny), (0b0100, 0b0001));
    }

    #[test]
    fn overwrites_are_the_same_in_any_order() {
        let seen = [form(1, 1, 0).to_model(), form(2, 0, 4).to_model(), form(3, 0, 0).to_model()];
        assert!(same_overwrites(&[form(2, 0, 4), form(1, 1, 0)], &seen));
        assert!(!same_overwrites(&[form(2, 0, 4)], &seen));
        assert!(!same_overwrites(&[form(2, 0, 4), form(1, 0, 1)], &seen));
        let written = serde_json::to_value(form(2, 0, 1 << 50)).unwrap();
        assert_eq!(written, json!({ "id": "2", "type": 0, "allow": "0", "deny": "1125899906842624" }));
    }
}
