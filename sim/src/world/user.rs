//! Users: people and bots.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::id::Snowflake;

/// A person or a bot. Its JSON is Discord's user object; fields that the simulator does not vary are added on
/// serialization.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct User {
    pub(crate) id: Snowflake,
    pub(crate) username: String,
    pub(crate) bot: bool,
}

impl Serialize for User {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut user = serializer.serialize_struct("User", 11)?;
        user.serialize_field("id", &self.id)?;
        user.serialize_field("username", &self.username)?;
        user.serialize_field("discriminator", "0")?;
        user.serialize_field("global_name", &(!self.bot).then_some(&self.username))?;
        user.serialize_field("avatar", &())?;
        user.serialize_field("bot", &self.bot)?;
        user.serialize_field("public_flags", &0)?;
        user.serialize_field("flags", &0)?;
        user.serialize_field("banner", &())?;
        user.serialize_field("accent_color", &())?;
        user.serialize_field("primary_guild", &())?;
        user.end()
    }
}

/// A bot's view of itself, in `/users/@me` and READY.
#[derive(Debug, Serialize)]
pub(crate) struct OwnUser<'a> {
    #[serde(flatten)]
    user: &'a User,
    mfa_enabled: bool,
    locale: &'static str,
    verified: bool,
    email: (),
}

impl<'a> OwnUser<'a> {
    pub(crate) fn of(user: &'a User) -> Self {
        Self { user, mfa_enabled: true, locale: "en-US", verified: true, email: () }
    }
}
