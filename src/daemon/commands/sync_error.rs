//! Converts Discord's errors about commands to messages that say what to do.

use std::{fmt, time::Duration};

use guildhall_actors::gate::RestResponse;
use guildhall_core::command::{CommandScope, FieldError};
use http::StatusCode;
use serde_json::Value;

use crate::daemon::command_gate::CommandGateError;
use crate::daemon::discovery::DiscoveryError;

/// More than 200 commands were created in a day.
pub(crate) const DAILY_CREATES: u32 = 30_034;
/// A field is invalid.
const INVALID_FORM: u32 = 50_035;
/// Maximum number of Discord's field errors that are reported.
const MAX_FIELD_ERRORS: usize = 50;

/// Why the commands were not synchronized.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// Calls to Discord cannot be made.
    #[error(transparent)]
    Gate(#[from] CommandGateError),
    /// Discord refused the token.
    #[error("{}", DiscoveryError::Unauthorized)]
    Unauthorized,
    /// The application may not have commands in this scope.
    #[error(
        "Discord does not allow this application to have commands {} (403{}); invite it with the scope \
         applications.commands, and check that the token belongs to that application",
        ScopeDisplay(*scope),
        CodeDisplay(*code)
    )]
    Forbidden {
        /// Scope of the commands.
        scope: CommandScope,
        /// Discord's error code.
        code: Option<u32>,
    },
    /// The guild does not exist, or the application is not in it.
    #[error(
        "Discord did not find the application or the guild for commands {} (404{}); check --guild, and that the bot is \
         a member of the guild",
        ScopeDisplay(*scope),
        CodeDisplay(*code)
    )]
    NotFound {
        /// Scope of the commands.
        scope: CommandScope,
        /// Discord's error code.
        code: Option<u32>,
    },
    /// Too many commands were created today.
    #[error(
        "the limit of 200 new commands a day {} is used up (code 30034); nothing was changed. Try again tomorrow. A \
         command that keeps its name is not new: change commands instead of renaming them",
        ScopeDisplay(*scope)
    )]
    DailyCreates {
        /// Scope of the commands.
        scope: CommandScope,
    },
    /// Discord reports errors that the local validation did not find.
    #[error("{}", FieldErrorsDisplay(.0))]
    Invalid(
        /// Each field, and Discord's message about it.
        Vec<FieldError>,
    ),
    /// Any other error.
    #[error("Discord refused the commands ({}{}): {message}", status.as_u16(), CodeDisplay(*code))]
    Refused {
        /// The status.
        status: StatusCode,
        /// Discord's error code.
        code: Option<u32>,
        /// Discord's message.
        message: String,
    },
    /// Discord did not respond in time.
    #[error("Discord did not respond in time: {reason}{}", RetryInDisplay(*retry_after))]
    NoResponse {
        /// The last failure.
        reason: String,
        /// When to try again, if Discord reported it.
        retry_after: Option<Duration>,
    },
    /// The response is not one of Discord's.
    #[error("the response is not from Discord; check discord.api_url")]
    Unreadable,
}

struct ScopeDisplay(CommandScope);

impl fmt::Display for ScopeDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CommandScope::Global => f.write_str("everywhere"),
            CommandScope::Guild(guild) => write!(f, "in guild {guild}"),
        }
    }
}

struct CodeDisplay(Option<u32>);

impl fmt::Display for CodeDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |code| write!(f, ", code {code}"))
    }
}

struct FieldErrorsDisplay<'a>(&'a [FieldError]);

impl fmt::Display for FieldErrorsDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Discord refused the commands (code 50035); nothing was changed:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  `{}`: {}", error.field, error.message))
    }
}

struct RetryInDisplay(Option<Duration>);

impl fmt::Display for RetryInDisplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(wait) => write!(f, "; try again in {} s", wait.as_secs() + 1),
            None => f.write_str("; try again later"),
        }
    }
}

/// Converts an error response.
pub(crate) fn response_error(response: &RestResponse, scope: CommandScope) -> SyncError {
    let (status, code) = (response.status, response.code);
    let body: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match (status, code) {
        (_, Some(DAILY_CREATES)) => SyncError::DailyCreates { scope },
        (_, Some(INVALID_FORM)) => {
            let mut errors = Vec::new();
            collect_errors("commands", &body["errors"], &mut errors);
            if errors.is_empty() {
                let message = body["message"].as_str().unwrap_or("no message").to_owned();
                return SyncError::Refused { status, code, message };
            }
            SyncError::Invalid(errors)
        }
        (StatusCode::UNAUTHORIZED, _) => SyncError::Unauthorized,
        (StatusCode::FORBIDDEN, _) => SyncError::Forbidden { scope, code },
        (StatusCode::NOT_FOUND, _) => SyncError::NotFound { scope, code },
        (_, _) => {
            let message = body["message"].as_str().unwrap_or("no message").to_owned();
            SyncError::Refused { status, code, message }
        }
    }
}

/// Converts Discord's tree of errors to a list, each with its path in the file.
fn collect_errors(path: &str, node: &Value, errors: &mut Vec<FieldError>) {
    for (name, children) in node.as_object().into_iter().flatten() {
        if errors.len() >= MAX_FIELD_ERRORS {
            return;
        }
        if name == "_errors" {
            for error in children.as_array().into_iter().flatten() {
                let message = error["message"].as_str().unwrap_or("is invalid").to_owned();
                errors.push(FieldError { field: path.to_owned(), message });
            }
            continue;
        }
        let is_index = name.bytes().all(|byte| byte.is_ascii_digit());
        let path = if is_index { format!("{path}[{name}]") } else { format!("{path}.{name}") };
        collect_errors(&path, children, errors);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use guildhall_core::response::ResponseClass;
    use http::HeaderMap;

    use super::*;

    fn message(status: u16, body: &str) -> String {
        let code =
            serde_json::from_str::<Value>(body).unwrap()["code"].as_u64().map(|code| u32::try_from(code).unwrap());
        let response = RestResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            stream: None,
            class: ResponseClass::Rejected,
            code,
            elapsed: Duration::ZERO,
        };
        response_error(&response, CommandScope::Guild(7)).to_string()
    }

    #[test]
    fn each_error_says_what_to_do() {
        assert!(message(401, "{}").contains("GUILDHALL__DISCORD__TOKEN"));
        let forbidden = message(403, r#"{"code": 50001}"#);
        assert!(forbidden.contains("in guild 7") && forbidden.contains("applications.commands"), "{forbidden}");
        assert!(message(404, r#"{"code": 10004}"#).contains("check --guild"));
        assert!(message(400, r#"{"code": 30034}"#).contains("tomorrow"));
        assert!(message(400, r#"{"code": 30032, "message": "Too many"}"#).contains("(400, code 30032): Too many"));
    }

    #[test]
    fn field_errors_name_the_path_in_the_file() {
        let body = r#"{"code": 50035, "errors": {"2": {
            "options": {"0": {"name": {"_errors": [{"code": "X", "message": "Odd name"}]}}},
            "_errors": [{"code": "Y", "message": "Too long"}]}}}"#;
        let message = message(400, body);
        assert!(message.contains("\n  `commands[2]`: Too long"), "{message}");
        assert!(message.contains("\n  `commands[2].options[0].name`: Odd name"), "{message}");
    }
}
