//! Reconciles messages that may have been sent.

use guildhall_actors::ports::{ExecutionOutput, ReconcileResult};
use guildhall_core::operation::payload::{EnsureMessage, MessageBody, SendDm, SendMessage};
use guildhall_core::operation::{Failure, FailureClass, ManagedKind};
use twilight_model::id::Id;
use twilight_model::id::marker::{ChannelMarker, MessageMarker};

use crate::discord::executor::diff::Similarity;
use crate::discord::executor::execution_context::{ExecutionContext, reference_id, typed_id};
use crate::discord::executor::execution_error::ExecutionError;
use crate::discord::executor::messages::{get, open_dm};
use crate::discord::executor::model::DiscordMessage;
use crate::discord::executor::result::ObjectOutcome;
use crate::discord::executor::{diff, result};
use crate::discord::rest::MessagePage;

/// Maximum number of messages in one page of Discord.
const PAGE_SIZE: u16 = 100;

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
    pub(crate) async fn scan(&self, context: &ExecutionContext<'_>) -> Result<ScanResult, ExecutionError> {
        let first = context.lowest_id(context.config().clock_slack);
        let (mut same, mut alike): (Vec<DiscordMessage>, Vec<DiscordMessage>) = (Vec::new(), Vec::new());
        // One before the first, because Discord returns those after it.
        let mut after = first.saturating_sub(1).max(1);
        let (mut complete, mut empty) = (false, true);
        for _ in 0..context.config().max_pages {
            let call = context.calls().messages(self.channel, MessagePage::After(typed_id(after)?), PAGE_SIZE)?;
            let page: Vec<DiscordMessage> = context.read(call.request).await?;
            let Some(newest) = page.iter().map(|message| message.id).max() else {
                complete = true;
                break;
            };
            (after, empty) = (newest, false);
            for message in page {
                match self.similarity(context, &message) {
                    Similarity::Same => same.push(message),
                    Similarity::Alike => alike.push(message),
                    Similarity::Other => {}
                }
            }
        }
        if empty && !self.shows_history(context, after).await? {
            return Ok(ScanResult::Unclear(format!(
                "the bot cannot read the history of channel {}: give it READ_MESSAGE_HISTORY, or check whether the \
                 message exists",
                self.channel
            )));
        }
        let same = self.without_owner(context, same).await?;
        let alike = self.without_owner(context, alike).await?;
        Ok(self.decide(same, &alike, complete))
    }

    fn similarity(&self, context: &ExecutionContext<'_>, message: &DiscordMessage) -> Similarity {
        let reply_to = message.message_reference.as_ref().and_then(|reference| reference.message_id);
        // Messages of a webhook or an interaction also have the bot as their author, but are never an operation's
        // message.
        if message.author.id != context.bot() || message.webhook_id.is_some() || reply_to != self.reply_to.map(Id::get)
        {
            return Similarity::Other;
        }
        diff::compare_message(self.body, message)
    }

    async fn without_owner(
        &self,
        context: &ExecutionContext<'_>,
        found: Vec<DiscordMessage>,
    ) -> Result<Vec<DiscordMessage>, ExecutionError> {
        let ids = found.iter().map(|message| message.id).collect();
        let free = context.without_owner(ManagedKind::Message, ids).await?;
        Ok(found.into_iter().filter(|message| free.contains(&message.id)).collect())
    }

    fn decide(&self, mut same: Vec<DiscordMessage>, alike: &[DiscordMessage], complete: bool) -> ScanResult {
        let ids = |list: &[DiscordMessage]| {
            let displayed: Vec<String> = list.iter().take(10).map(|message| message.id.to_string()).collect();
            displayed.join(", ")
        };
        match (same.as_slice(), alike) {
            ([_], _) => ScanResult::Found(Box::new(same.remove(0))),
            ([], []) if complete => ScanResult::Absent,
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
    async fn shows_history(&self, context: &ExecutionContext<'_>, unused_id: u64) -> Result<bool, ExecutionError> {
        let result =
            context.fetch::<DiscordMessage>(context.builders().message(self.channel, typed_id(unused_id)?)).await;
        match result {
            Ok(_) => Ok(true),
            Err(error) if error.is_gone() => Ok(true),
            Err(ExecutionError::Failed(Failure { class: FailureClass::Forbidden, .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

pub(crate) async fn reconcile_message(
    context: &ExecutionContext<'_>,
    payload: &SendMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let reply_to = payload.reply_to.as_ref().map(reference_id).transpose()?;
    let expected = ExpectedMessage { channel: reference_id(&payload.channel)?, body: &payload.body, reply_to };
    let scan = scan_channel(context, &expected).await?;
    Ok(scan_to_result(&expected, scan, payload.key.as_deref()))
}

pub(crate) async fn reconcile_dm(
    context: &ExecutionContext<'_>,
    payload: &SendDm,
) -> Result<ReconcileResult, ExecutionError> {
    // Opening the channel again changes nothing, and is not visible.
    let expected =
        ExpectedMessage { channel: open_dm(context, payload.user).await?, body: &payload.body, reply_to: None };
    let scan = scan_channel(context, &expected).await?;
    Ok(scan_to_result(&expected, scan, None))
}

/// A message that exists but is not pinned yet is incomplete. The next execution finds it and continues from there.
pub(crate) async fn reconcile_ensured(
    context: &ExecutionContext<'_>,
    payload: &EnsureMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let expected = ExpectedMessage { channel: reference_id(&payload.channel)?, body: &payload.body, reply_to: None };
    if let Some((message, home)) = context.work.existing
        && home.is_none_or(|home| home == expected.channel.get())
        && get(context, expected.channel, message).await?.is_some()
    {
        // It exists: nothing had to be sent, and nothing was.
        return Ok(ReconcileResult::Absent);
    }
    let scan = match scan_channel(context, &expected).await? {
        ScanResult::Found(seen) if payload.pin == Some(true) && !seen.pinned => ScanResult::Absent,
        scan @ (ScanResult::Found(_) | ScanResult::Absent | ScanResult::Unclear(_)) => scan,
    };
    Ok(ensured_result(context, payload, &expected, scan))
}

/// The same for an operation that will not be sent again: a message that is not pinned yet is half done.
pub(crate) async fn verify_sent_and_pinned(
    context: &ExecutionContext<'_>,
    payload: &EnsureMessage,
) -> Result<ReconcileResult, ExecutionError> {
    let expected = ExpectedMessage { channel: reference_id(&payload.channel)?, body: &payload.body, reply_to: None };
    let scan = match scan_channel(context, &expected).await? {
        ScanResult::Found(seen) if payload.pin == Some(true) && !seen.pinned => ScanResult::Unclear(format!(
            "message {} was sent to channel {} but could not be pinned: pin it, or delete it before a redrive",
            seen.id, expected.channel
        )),
        scan @ (ScanResult::Found(_) | ScanResult::Absent | ScanResult::Unclear(_)) => scan,
    };
    Ok(ensured_result(context, payload, &expected, scan))
}

fn ensured_result(
    context: &ExecutionContext<'_>,
    payload: &EnsureMessage,
    expected: &ExpectedMessage<'_>,
    scan: ScanResult,
) -> ReconcileResult {
    let mut reconciled = scan_to_result(expected, scan, Some(&payload.key));
    if let (ReconcileResult::Found(ExecutionOutput { unbind, created: made, .. }), Some((gone, _))) =
        (&mut reconciled, context.work.existing)
        && *made != Some(gone)
    {
        unbind.push((ManagedKind::Message, gone));
    }
    reconciled
}

/// The messages of a deleted channel are gone; sending there again fails by itself.
async fn scan_channel(
    context: &ExecutionContext<'_>,
    expected: &ExpectedMessage<'_>,
) -> Result<ScanResult, ExecutionError> {
    match expected.scan(context).await {
        Err(error) if error.is_gone() => Ok(ScanResult::Absent),
        scan => scan,
    }
}

fn scan_to_result(expected: &ExpectedMessage<'_>, scan: ScanResult, key: Option<&str>) -> ReconcileResult {
    match scan {
        ScanResult::Found(seen) => ReconcileResult::Found(result::message_output(
            expected.channel.get(),
            seen.id,
            ObjectOutcome::Found,
            key,
            200,
        )),
        ScanResult::Absent => ReconcileResult::Absent,
        ScanResult::Unclear(reason) => ReconcileResult::Unclear(reason),
    }
}
