//! Typed calls that Guildhall itself makes. Any other builder of twilight goes through [`CallBuilder::build`].

use std::fmt;

use twilight_http::{
    Client,
    request::{
        TryIntoRequest,
        channel::{UpdateChannel, message::CreateMessage},
        guild::{CreateGuildChannel, GetAuditLog, role::CreateRole},
    },
};
use twilight_model::{
    channel::{
        Channel,
        message::{AllowedMentions, Component, Embed, Message},
    },
    gateway::connection_info::BotConnectionInfo,
    guild::{Role, audit_log::AuditLog},
    http::interaction::{InteractionResponse, InteractionResponseType},
    id::{
        Id,
        marker::{
            ApplicationMarker, ChannelMarker, GuildMarker, InteractionMarker, MessageMarker, RoleMarker, UserMarker,
        },
    },
};

use super::{
    call::{Call, CallError},
    nonce,
};

/// Selects the messages of a channel to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessagePage {
    /// The newest messages.
    #[default]
    Newest,
    /// The messages right after this one.
    After(Id<MessageMarker>),
    /// The messages right before this one.
    Before(Id<MessageMarker>),
}

/// Changes to the first response to an interaction. A field that is `None` stays unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct OriginalEdit<'a> {
    /// New text.
    pub content: Option<&'a str>,
    /// New embeds.
    pub embeds: Option<&'a [Embed]>,
    /// New components.
    pub components: Option<&'a [Component]>,
    /// Allowed mentions; none if absent.
    pub allowed_mentions: Option<&'a AllowedMentions>,
}

/// Builds and validates calls. It sends nothing: the twilight client inside has no token, no TLS and no reachable host;
/// only its builders are used. Messages mention no one unless they list allowed mentions.
///
/// ```
/// # use guildhall::discord::rest::CallBuilder;
/// # use twilight_model::id::Id;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let calls = CallBuilder::new(Id::new(5));
/// let call = calls.create_role(Id::new(1), |role| role.name("helpers").hoist(true)).unwrap();
/// let call = call.with_reason("requested").unwrap();
/// assert_eq!(call.request.path, "/guilds/1/roles");
/// # }
/// ```
pub struct CallBuilder {
    client: Client,
    application: Id<ApplicationMarker>,
}

impl fmt::Debug for CallBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallBuilder").field("application", &self.application).finish_non_exhaustive()
    }
}

impl CallBuilder {
    /// Returns a builder for the calls of this application. Must be called within a Tokio runtime.
    #[must_use]
    pub fn new(application: Id<ApplicationMarker>) -> Self {
        let client = Client::builder()
            // The builder has already started a rate limiter; this stops it.
            .ratelimiter(None)
            // `.invalid` is a reserved domain that never resolves.
            .proxy("nowhere.invalid".to_owned(), true)
            .default_allowed_mentions(AllowedMentions::default())
            .build();
        Self { client, application }
    }

    /// Returns twilight's client, for its builders. It cannot reach Discord.
    #[must_use]
    pub fn builders(&self) -> &Client {
        &self.client
    }

    /// Builds any call of twilight whose response contains a `T`.
    ///
    /// # Errors
    ///
    /// When Discord would reject a field. The other methods return the same error.
    pub fn build<T>(&self, builder: impl TryIntoRequest) -> Result<Call<T>, CallError> {
        Call::build(self.application, builder)
    }

    /// Returns the URL of the gateway, and the limit on connections to it.
    pub fn gateway_bot(&self) -> Result<Call<BotConnectionInfo>, CallError> {
        self.build(self.client.gateway().authed())
    }

    /// Creates a role.
    pub fn create_role<'a>(
        &'a self,
        guild: Id<GuildMarker>,
        with: impl FnOnce(CreateRole<'a>) -> CreateRole<'a>,
    ) -> Result<Call<Role>, CallError> {
        self.build(with(self.client.create_role(guild)))
    }

    /// Deletes a role.
    pub fn delete_role(&self, guild: Id<GuildMarker>, role: Id<RoleMarker>) -> Result<Call<()>, CallError> {
        self.build(self.client.delete_role(guild, role))
    }

    /// Adds a role to a member.
    pub fn add_member_role(
        &self,
        guild: Id<GuildMarker>,
        user: Id<UserMarker>,
        role: Id<RoleMarker>,
    ) -> Result<Call<()>, CallError> {
        self.build(self.client.add_guild_member_role(guild, user, role))
    }

    /// Removes a role from a member.
    pub fn remove_member_role(
        &self,
        guild: Id<GuildMarker>,
        user: Id<UserMarker>,
        role: Id<RoleMarker>,
    ) -> Result<Call<()>, CallError> {
        self.build(self.client.remove_guild_member_role(guild, user, role))
    }

    /// Creates a channel.
    pub fn create_channel<'a>(
        &'a self,
        guild: Id<GuildMarker>,
        name: &'a str,
        with: impl FnOnce(CreateGuildChannel<'a>) -> CreateGuildChannel<'a>,
    ) -> Result<Call<Channel>, CallError> {
        self.build(with(self.client.create_guild_channel(guild, name)))
    }

    /// Changes a channel. A change of the name or the topic has a rate limit of its own.
    pub fn modify_channel<'a>(
        &'a self,
        channel: Id<ChannelMarker>,
        with: impl FnOnce(UpdateChannel<'a>) -> UpdateChannel<'a>,
    ) -> Result<Call<Channel>, CallError> {
        self.build(with(self.client.update_channel(channel)))
    }

    /// Deletes a channel.
    pub fn delete_channel(&self, channel: Id<ChannelMarker>) -> Result<Call<Channel>, CallError> {
        self.build(self.client.delete_channel(channel))
    }

    /// Sends a message. If the same nonce is sent again within a few minutes, Discord returns the first message
    /// instead.
    pub fn create_message<'a>(
        &'a self,
        channel: Id<ChannelMarker>,
        nonce: &str,
        with: impl FnOnce(CreateMessage<'a>) -> CreateMessage<'a>,
    ) -> Result<Call<Message>, CallError> {
        let mut call = self.build(with(self.client.create_message(channel)))?;
        nonce::with_nonce(&mut call.request, nonce)?;
        Ok(call)
    }

    /// Returns one message.
    pub fn message(&self, channel: Id<ChannelMarker>, message: Id<MessageMarker>) -> Result<Call<Message>, CallError> {
        self.build(self.client.message(channel, message))
    }

    /// Lists 1 to 100 messages of a channel, newest first.
    pub fn messages(
        &self,
        channel: Id<ChannelMarker>,
        page: MessagePage,
        limit: u16,
    ) -> Result<Call<Vec<Message>>, CallError> {
        let messages = self.client.channel_messages(channel);
        match page {
            MessagePage::Newest => self.build(messages.limit(limit)),
            MessagePage::After(message) => self.build(messages.after(message).limit(limit)),
            MessagePage::Before(message) => self.build(messages.before(message).limit(limit)),
        }
    }

    /// Returns a guild's audit log.
    pub fn audit_log<'a>(
        &'a self,
        guild: Id<GuildMarker>,
        with: impl FnOnce(GetAuditLog<'a>) -> GetAuditLog<'a>,
    ) -> Result<Call<AuditLog>, CallError> {
        self.build(with(self.client.audit_log(guild)))
    }

    /// Sends the first response to an interaction.
    pub fn interaction_callback(
        &self,
        interaction: Id<InteractionMarker>,
        token: &str,
        response: &InteractionResponse,
    ) -> Result<Call<()>, CallError> {
        let mut response = response.clone();
        // Twilight applies the default allowed mentions everywhere except here.
        if matches!(
            response.kind,
            InteractionResponseType::ChannelMessageWithSource | InteractionResponseType::UpdateMessage
        ) && let Some(data) = &mut response.data
        {
            data.allowed_mentions.get_or_insert_default();
        }
        let interactions = self.client.interaction(self.application);
        self.build(interactions.create_response(interaction, token, &response))
    }

    /// Edits the first response to an interaction.
    pub fn edit_original(&self, token: &str, edit: OriginalEdit<'_>) -> Result<Call<Message>, CallError> {
        let interactions = self.client.interaction(self.application);
        let mut call = interactions.update_response(token);
        if edit.content.is_some() {
            call = call.content(edit.content);
        }
        if edit.embeds.is_some() {
            call = call.embeds(edit.embeds);
        }
        if edit.components.is_some() {
            call = call.components(edit.components);
        }
        if edit.allowed_mentions.is_some() {
            call = call.allowed_mentions(edit.allowed_mentions);
        }
        self.build(call)
    }
}

#[cfg(test)]
mod tests;
