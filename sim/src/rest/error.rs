//! Discord's errors: a status, a code, a message, and for invalid forms a tree of errors by field.

use http::StatusCode;
use serde_json::{Map, Value, json};

/// An error response with Discord's code and message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: u32,
    pub(crate) message: &'static str,
    pub(crate) errors: Option<FormErrors>,
}

macro_rules! errors {
    ($($name:ident = $status:ident, $code:literal, $message:literal;)*) => {
        impl ApiError {
            $(pub(crate) const $name: ApiError =
                ApiError { status: StatusCode::$status, code: $code, message: $message, errors: None };)*
        }
    };
}

errors! {
    UNAUTHORIZED = UNAUTHORIZED, 0, "401: Unauthorized";
    NO_SUCH_ROUTE = NOT_FOUND, 0, "404: Not Found";
    METHOD_NOT_ALLOWED = METHOD_NOT_ALLOWED, 0, "405: Method Not Allowed";
    UNKNOWN_APPLICATION = NOT_FOUND, 10002, "Unknown Application";
    UNKNOWN_CHANNEL = NOT_FOUND, 10003, "Unknown Channel";
    UNKNOWN_GUILD = NOT_FOUND, 10004, "Unknown Guild";
    UNKNOWN_MEMBER = NOT_FOUND, 10007, "Unknown Member";
    UNKNOWN_MESSAGE = NOT_FOUND, 10008, "Unknown Message";
    UNKNOWN_OVERWRITE = NOT_FOUND, 10009, "Unknown Overwrite";
    UNKNOWN_ROLE = NOT_FOUND, 10011, "Unknown Role";
    UNKNOWN_USER = NOT_FOUND, 10013, "Unknown User";
    UNKNOWN_EMOJI = BAD_REQUEST, 10014, "Unknown Emoji";
    UNKNOWN_WEBHOOK = NOT_FOUND, 10015, "Unknown Webhook";
    UNKNOWN_INTERACTION = NOT_FOUND, 10062, "Unknown interaction";
    UNKNOWN_COMMAND = NOT_FOUND, 10063, "Unknown application command";
    NOT_YOUR_APPLICATION = FORBIDDEN, 20012, "You are not authorized to perform this action on this application";
    MAX_COMMANDS = BAD_REQUEST, 30032, "Maximum number of application commands reached (100)";
    MAX_ROLES = BAD_REQUEST, 30005, "Maximum number of guild roles reached (250)";
    MAX_REACTIONS = BAD_REQUEST, 30010, "Maximum number of reactions reached (20)";
    MAX_ATTACHMENTS = BAD_REQUEST, 30015, "Maximum number of attachments reached (10)";
    MAX_CHANNELS = BAD_REQUEST, 30013, "Maximum number of server channels reached (500)";
    MAX_PINS = BAD_REQUEST, 30003, "Maximum number of pins reached for the channel (250)";
    MAX_OVERWRITES = BAD_REQUEST, 30060, "Maximum number of channel permission overwrites reached (1000)";
    TOO_LARGE = PAYLOAD_TOO_LARGE, 40005, "Request entity too large. Try sending something smaller in size";
    ALREADY_ACKNOWLEDGED = BAD_REQUEST, 40060, "Interaction has already been acknowledged.";
    NO_USER_AGENT = FORBIDDEN, 40333, "internal network error";
    MISSING_ACCESS = FORBIDDEN, 50001, "Missing Access";
    CANNOT_SEND_TO_USER = FORBIDDEN, 50007, "Cannot send messages to this user";
    CANNOT_EDIT_OTHERS = FORBIDDEN, 50005, "Cannot edit a message authored by another user";
    EMPTY_MESSAGE = BAD_REQUEST, 50006, "Cannot send an empty message";
    NOT_TEXT_BASED = BAD_REQUEST, 50008, "Cannot send messages in a non-text channel";
    MISSING_PERMISSIONS = FORBIDDEN, 50013, "Missing Permissions";
    INVALID_WEBHOOK_TOKEN = UNAUTHORIZED, 50027, "Invalid Webhook Token";
    TOO_OLD_TO_DELETE = BAD_REQUEST, 50034, "You can only bulk delete messages that are under 14 days old.";
    WRONG_CHANNEL_TYPE = BAD_REQUEST, 50024, "Cannot execute action on this channel type";
    INVALID_ROLE = BAD_REQUEST, 50028, "Invalid Role";
    INVALID_JSON = BAD_REQUEST, 50109, "The request body contains invalid JSON.";
}

impl ApiError {
    /// An invalid form body (50035) with one error at `path`, parts separated by dots.
    pub(crate) fn form(path: &str, code: &str, message: &str) -> Self {
        let mut errors = FormErrors::default();
        errors.add(path, code, message);
        Self::invalid_form(errors)
    }

    pub(crate) fn invalid_form(errors: FormErrors) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: 50035, message: "Invalid Form Body", errors: Some(errors) }
    }

    /// The body as Discord sends it.
    pub(crate) fn body(&self) -> Value {
        match &self.errors {
            Some(errors) => json!({ "message": self.message, "code": self.code, "errors": errors.tree }),
            None => json!({ "message": self.message, "code": self.code }),
        }
    }
}

/// The tree of an invalid form: `{"name": {"_errors": [{"code", "message"}]}}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FormErrors {
    tree: Map<String, Value>,
}

impl FormErrors {
    /// Adds an error at `path`, parts separated by dots; `_` is the form itself.
    pub(crate) fn add(&mut self, path: &str, code: &str, message: &str) {
        let mut node = &mut self.tree;
        for part in path.split('.').filter(|part| *part != "_") {
            node = node
                .entry(part)
                .or_insert_with(|| Value::Object(Map::new()))
                .as_object_mut()
                .expect("invariant: inner nodes of the tree are objects");
        }
        node.entry("_errors")
            .or_insert_with(|| Value::Array(Vec::new()))
            .as_array_mut()
            .expect("invariant: `_errors` is a list")
            .push(json!({ "code": code, "message": message }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// `Ok(value)` if it is empty, the whole tree otherwise.
    pub(crate) fn into_result<T>(self, value: T) -> Result<T, ApiError> {
        if self.is_empty() { Ok(value) } else { Err(ApiError::invalid_form(self)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_several_fields_make_one_tree() {
        let mut errors = FormErrors::default();
        errors.add("name", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.");
        errors.add("permission_overwrites.0.type", "BASE_TYPE_CHOICES", "Value must be one of (0, 1).");
        let body = ApiError::invalid_form(errors).body();
        assert_eq!(body["code"], 50035);
        assert_eq!(body["errors"]["name"]["_errors"][0]["code"], "BASE_TYPE_BAD_LENGTH");
        assert_eq!(body["errors"]["permission_overwrites"]["0"]["type"]["_errors"][0]["code"], "BASE_TYPE_CHOICES");
    }
}
