//! Finds the bot's id: from its token, or from Discord.

use std::time::Duration;

use guildhall_actors::gate::{CallOutcome, Rest};
use guildhall_core::{lane::Lane, response::ResponseClass};
use twilight_model::{
    id::{
        Id,
        marker::{ApplicationMarker, UserMarker},
    },
    user::CurrentUser,
};

use super::discovery::DiscoveryError;
use crate::{
    api::ComponentHandle,
    discord::{application_id, rest::CallBuilder},
    settings::SecretValue,
};

/// Wait between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The bot, and the application that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BotIdentity {
    pub(crate) application: Id<ApplicationMarker>,
    pub(crate) bot: Id<UserMarker>,
}

/// The bot of this token. Discord's own tokens contain its id; for other tokens Discord is called until it responds,
/// and `part` reports that meanwhile.
pub(crate) async fn find(
    token: &SecretValue,
    rest: &dyn Rest,
    calls: &CallBuilder,
    part: &ComponentHandle,
) -> Result<BotIdentity, DiscoveryError> {
    let identity = |id: u64| BotIdentity { application: Id::new(id), bot: Id::new(id) };
    if let Some(id) = application_id(token) {
        return Ok(identity(id));
    }
    loop {
        let call = calls.build::<CurrentUser>(calls.builders().current_user());
        let call = call.expect("invariant: a call without fields is valid").with_lane(Lane::Interactive);
        let response_type = call.decoder;
        match rest.call(call.request).await {
            CallOutcome::Answered(response) => match (response_type.decode(&response), response.class) {
                (Ok(user), _) => return Ok(identity(user.id.get())),
                (Err(_), ResponseClass::Unauthorized) => return Err(DiscoveryError::Unauthorized),
                (Err(error), _) => part.not_ready(&format!("the bot's id is not known yet: {error}")),
            },
            CallOutcome::NotSent(not_sent) => part.not_ready(&format!("the bot's id is not known yet: {not_sent}")),
            CallOutcome::Unknown(unknown) => part.not_ready(&format!("the bot's id is not known yet: {unknown}")),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}
