//! Which interactions an operation responds to.

use super::{
    DeferReply, EditOriginal, Payload, Read, Request, SendFollowup,
    location::{LocationError, decoded, parse_id},
};
use crate::interaction::TokenDigest;

/// An interaction that an operation responds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InteractionTarget {
    /// Its id, unless the path names the application instead.
    pub id: Option<u64>,
    /// The application that the path names instead of the id.
    pub application: Option<u64>,
    /// The digest of its token.
    pub token: TokenDigest,
}

impl Payload {
    /// The interactions that the operation responds to: by its kind, or by a path `/interactions/{id}/{token}` or
    /// `/webhooks/{application}/{token}`, in any encoding. A token in a path is compared as it is written.
    ///
    /// # Errors
    ///
    /// When the path has an id that is not plain digits.
    pub fn interaction_targets(&self, application: Option<u64>) -> Result<Vec<InteractionTarget>, LocationError> {
        let by_id =
            |id: u64, token: &str| InteractionTarget { id: Some(id), application: None, token: TokenDigest::of(token) };
        match self {
            Self::DeferReply(DeferReply { interaction, token, .. })
            | Self::SendFollowup(SendFollowup { interaction, token, .. })
            | Self::EditOriginal(EditOriginal { interaction, token, .. }) => Ok(vec![by_id(*interaction, token)]),
            Self::Read(Read { path }) | Self::Request(Request { path, .. }) => in_path(path, application),
            Self::CreateRole(_)
            | Self::DeleteRole(_)
            | Self::AssignRole(_)
            | Self::RemoveRole(_)
            | Self::CreateChannel(_)
            | Self::DeleteChannel(_)
            | Self::UpdatePermissions(_)
            | Self::SetMemberRoles(_)
            | Self::EnsureRole(_)
            | Self::EnsureChannel(_)
            | Self::ReplaceOverwrites(_)
            | Self::Reorder(_)
            | Self::EnsureMessage(_)
            | Self::SendMessage(_)
            | Self::EditMessage(_)
            | Self::DeleteMessage(_)
            | Self::SendDm(_) => Ok(Vec::new()),
        }
    }
}

/// Without a known application, every webhook with a token may belong to an interaction.
fn in_path(path: &str, own: Option<u64>) -> Result<Vec<InteractionTarget>, LocationError> {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let mut found = Vec::new();
    for window in segments.windows(3) {
        let [resource, owner, token] = window else { continue };
        let resource = decoded(resource).to_ascii_lowercase();
        let token = TokenDigest::of(token);
        if resource == "interactions" {
            found.push(InteractionTarget { id: Some(parse_id(&decoded(owner))?), application: None, token });
        } else if resource == "webhooks" {
            let application = parse_id(&decoded(owner))?;
            if own.is_none_or(|own| own == application) {
                found.push(InteractionTarget { id: None, application: Some(application), token });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operation::OperationKind;

    fn request(path: &str) -> Result<Vec<InteractionTarget>, LocationError> {
        let payload = json!({"method": "POST", "path": path, "body": {}});
        Payload::parse(OperationKind::Request, &payload, None).unwrap().interaction_targets(Some(9))
    }

    #[test]
    fn interaction_kinds_address_their_interaction() {
        let payload = json!({"interaction_id": "7", "interaction_token": "tok", "content": "hi"});
        let expected = InteractionTarget { id: Some(7), application: None, token: TokenDigest::of("tok") };
        for kind in [OperationKind::SendFollowup, OperationKind::EditOriginal] {
            let parsed = Payload::parse(kind, &payload, Some(1)).unwrap();
            assert_eq!(parsed.interaction_targets(None), Ok(vec![expected]), "{kind:?}");
        }
        let defer = json!({"interaction_id": "7", "interaction_token": "tok"});
        let defer = Payload::parse(OperationKind::DeferReply, &defer, Some(1)).unwrap();
        assert_eq!(defer.interaction_targets(None), Ok(vec![expected]));
    }

    #[test]
    fn paths_address_interactions_in_any_encoding() {
        let token = TokenDigest::of("tok");
        let by_id = InteractionTarget { id: Some(7), application: None, token };
        let by_application = InteractionTarget { id: None, application: Some(9), token };
        for (path, expected) in [
            ("/interactions/7/tok/callback", by_id),
            ("/%69nteractions/%37/tok/callback?with_response=true", by_id),
            ("/Interactions/7/tok/callback", by_id),
            ("/webhooks/9/tok", by_application),
            ("/WEBHOOKS/9/tok/messages/@original", by_application),
            ("/w%65bhooks/%39/tok/messages/1", by_application),
        ] {
            assert_eq!(request(path), Ok(vec![expected]), "{path}");
        }
        let encoded = request("/webhooks/9/t%6Fk").unwrap();
        assert_ne!(encoded, [by_application], "a token has one spelling");
        assert_eq!(encoded.len(), 1);
    }

    #[test]
    fn other_paths_address_no_interaction() {
        for path in ["/webhooks/8/tok", "/webhooks/9", "/channels/7/messages", "/guilds/9/webhooks", "/interactions/7"]
        {
            assert_eq!(request(path), Ok(vec![]), "{path}");
        }
        assert_eq!(request("/interactions/x/tok/callback"), Err(LocationError::NotAnId));
        let hook = json!({"path": "/webhooks/8/tok"});
        let hook = Payload::parse(OperationKind::Read, &hook, None).unwrap();
        assert_eq!(hook.interaction_targets(None).unwrap().len(), 1, "the application is not known");
    }
}
