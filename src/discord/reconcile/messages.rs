//! Reconciles messages that may have been sent.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::payload::{EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{Failure, FailureClass, ManagedKind};
use twilight_model::id::Id;
use twilight_model::id::marker::{ChannelMarker, MessageMarker};

use crate::discord::executor::diff::Similarity;
use crate::discord::executor::execution_context::{ExecutionContext, id, named};
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::messages::{direct, get};
use crate::discord::executor::model::DiscordMessage;
use crate::discord::executor::result::ObjectOutcome;
use crate::discord::executor::{diff, result};
use crate::discord::rest::MessagePage;

/// Maximum number of messages in one page of Discord.
const PAGE: u16 = 100;

/// A message that the operation may have sent.
pub(crate) struct ExpectedMessage<'a> {
    pub(crate) channel: Id<ChannelMarker>,
    pub(crate) body: &'a MessageBody,
    pub(crate) reply_to: Option<Id<MessageMarker>>,
}

/// Result of a scan for a message.
#[derive(Debug)]
pub(crate) enum ScanResult {
    /// The message.
    Found(Box<DiscordMessage>),
    /// The message does not exist.
    Absent,
    /// Unknown, with the reason.
    Unclear(String),
}

impl ExpectedMessage<'_> {
    /// Scans the channel from before the intent on for a message of the bot with the same content that belongs to no
    /// other operation. Messages of other operations are known, so that equal messages are not confused.
    pub(crate) async fn scan(&self, errand: &ExecutionContext<'_>) -> Result<ScanResult, ExecutionError> {
        let first = errand.lowest_id(errand.config().clock_slack);
        let (mut same, mut alike): (Vec<DiscordMessage>, Vec<DiscordMessage>) = (Vec::new(), Vec::new());
        // One before the first, because Discord returns those after it.
        let mut after = first.saturating_sub(1).max(1);
        let (mut whole, mut empty) = (false, true);
        for _ in 0..errand.config().most_pages {
            let call = errand.calls().messages(self.channel, MessagePage::After(named(after)?), PAGE)?;
            let page: Vec<DiscordMessage> = errand.read(call.request).await?;
            let Some(newest) = page.iter().map(|message| message.id).max() else {
                whole = true;
                break;
            };
            (after, empty) = (newest, false);
            for message in page {
                match self.likeness(errand, &message) {
                    Similarity::Same => same.push(message),
                    Similarity::Alike => alike.push(message),
                    Similarity::Other => {}
                }
            }
        }
        if empty && !self.shows_history(errand, after).await? {
            return Ok(ScanResult::Unclear(format!(
                "the bot cannot read the history of channel {}: give it READ_MESSAGE_HISTORY, or check whether the \
                 message exists",
                self.channel
            )));
        }
        let same = self.strangers(errand, same).await?;
        let alike = self.strangers(errand, alike).await?;
        Ok(self.weigh(same, &alike, whole))
    }

    fn likeness(&self, errand: &ExecutionContext<'_>, message: &DiscordMessage) -> Similarity {
        let answers = message.message_reference.as_ref().and_then(|reference| reference.message_id);
        // Messages of a webhook or an interaction also have the bot as their author, but are never an operation's
        // message.
        if message.author.id != errand.bot() || message.webhook_id.is_some() || answers != self.reply_to.map(Id::get) {
            return Similarity::Other;
        }
        diff::of_message(self.body, message)
    }

    async fn strangers(
        &self,
        errand: &ExecutionContext<'_>,
        found: Vec<DiscordMessage>,
    ) -> Result<Vec<DiscordMessage>, ExecutionError> {
        let ids = found.iter().map(|message| message.id).collect();
        let free = errand.strangers(ManagedKind::Message, ids).await?;
        Ok(found.into_iter().filter(|message| free.contains(&message.id)).collect())
    }

    fn weigh(&self, mut same: Vec<DiscordMessage>, alike: &[DiscordMessage], whole: bool) -> ScanResult {
        let ids = |list: &[DiscordMessage]| {
            let shown: Vec<String> = list.iter().take(10).map(|message| message.id.to_string()).collect();
            shown.join(", ")
        };
        match (same.as_slice(), alike) {
            ([_], _) => ScanResult::Found(Box::new(same.remove(0))),
            ([], []) if whole => ScanResult::Absent,
            ([], []) => ScanResult::Unclear(format!(
                "channel {} has too many messages since then to scan: check whether the message exists",
                self.channel
            )),
            ([], alike) => ScanResult::Unclear(format!(
                "messages of channel {} are similar ({}) and may be the one that was sent: check whether the message \
                 exists",
                self.channel,
                ids(alike)
            )),
            (several, _) => ScanResult::Unclear(format!(
                "several messages of channel {} have the same content and belong to no operation ({}): check for \
                 duplicates",
                self.channel,
                ids(several)
            )),
        }
    }

    /// Whether an empty list means that there are no messages. Without the permission, Discord lists nothing, but
    /// rejects the request for a single message. No message has the id that is requested here.
    async fn shows_history(&self, errand: &ExecutionContext<'_>, none: u64) -> Result<bool, ExecutionError> {
        let asked = errand.look::<DiscordMessage>(errand.builders().message(self.channel, named(none)?)).await;
        match asked {
            Ok(_) => Ok(true),
            Err(stop) if stop.is_gone() => Ok(true),
            Err(ExecutionError::Failed(Failure { class: FailureClass::Forbidden, .. })) => Ok(false),
            Err(stop) => Err(stop),
        }
    }
}

pub(crate) async fn sent(
    errand: &ExecutionContext<'_>,
    payload: &SendMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let reply_to = payload.reply_to.as_ref().map(id).transpose()?;
    let own = ExpectedMessage { channel: id(&payload.channel)?, body: &payload.body, reply_to };
    let scan = in_channel(errand, &own).await?;
    Ok(reconciled(&own, scan, payload.key.as_deref()))
}

pub(crate) async fn sent_to_user(
    errand: &ExecutionContext<'_>,
    payload: &SendDm,
) -> Result<ReconcileResult, ExecutionError> {
    // Opening the channel again changes nothing, and is not visible.
    let own = ExpectedMessage { channel: direct(errand, payload.user).await?, body: &payload.body, reply_to: None };
    let scan = in_channel(errand, &own).await?;
    Ok(reconciled(&own, scan, None))
}

/// A message that exists but is not pinned yet is incomplete. The next execution finds it and continues from there.
pub(crate) async fn ensured(
    errand: &ExecutionContext<'_>,
    payload: &EnsureMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let own = ExpectedMessage { channel: id(&payload.channel)?, body: &payload.body, reply_to: None };
    if let Some((message, home)) = errand.work.bound
        && home.is_none_or(|home| home == own.channel.get())
        && get(errand, own.channel, message).await?.is_some()
    {
        // It exists: nothing had to be sent, and nothing was.
        return Ok(ReconcileResult::Absent);
    }
    let scan = match in_channel(errand, &own).await? {
        ScanResult::Found(seen) if payload.pin == Some(true) && !seen.pinned => ScanResult::Absent,
        scan @ (ScanResult::Found(_) | ScanResult::Absent | ScanResult::Unclear(_)) => scan,
    };
    Ok(ensured_by(errand, payload, &own, scan))
}

/// The same for an operation that will not be sent again: a message that is not pinned yet is half done.
pub(crate) async fn sent_and_pinned(
    errand: &ExecutionContext<'_>,
    payload: &EnsureMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let own = ExpectedMessage { channel: id(&payload.channel)?, body: &payload.body, reply_to: None };
    let scan = match in_channel(errand, &own).await? {
        ScanResult::Found(seen) if payload.pin == Some(true) && !seen.pinned => ScanResult::Unclear(format!(
            "message {} was sent to channel {} but could not be pinned: pin it, or delete it before a redrive",
            seen.id, own.channel
        )),
        scan @ (ScanResult::Found(_) | ScanResult::Absent | ScanResult::Unclear(_)) => scan,
    };
    Ok(ensured_by(errand, payload, &own, scan))
}

fn ensured_by(
    errand: &ExecutionContext<'_>,
    payload: &EnsureMessage,
    own: &ExpectedMessage<'_>,
    scan: ScanResult,
) -> ReconcileResult {
    let mut reconciled = reconciled(own, scan, Some(&payload.key));
    if let (ReconcileResult::Found(ExecutionOutput { unbind, made, .. }), Some((gone, _))) =
        (&mut reconciled, errand.work.bound)
        && *made != Some(gone)
    {
        unbind.push((ManagedKind::Message, gone));
    }
    reconciled
}

/// The messages of a deleted channel are gone; sending there again fails by itself.
async fn in_channel(errand: &ExecutionContext<'_>, own: &ExpectedMessage<'_>) -> Result<ScanResult, ExecutionError> {
    match own.scan(errand).await {
        Err(stop) if stop.is_gone() => Ok(ScanResult::Absent),
        scan => scan,
    }
}

fn reconciled(own: &ExpectedMessage<'_>, scan: ScanResult, key: Option<&str>) -> ReconcileResult {
    match scan {
        ScanResult::Found(seen) => {
            ReconcileResult::Found(result::message(own.channel.get(), seen.id, ObjectOutcome::Found, key, 200))
        }
        ScanResult::Absent => ReconcileResult::Absent,
        ScanResult::Unclear(why) => ReconcileResult::Unclear(why),
    }
}
