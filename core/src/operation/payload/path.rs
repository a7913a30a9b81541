//! Paths of calls. The path decides what a call may do and which limits apply, so it must be unambiguous.

use serde_json::Value;

use super::validation::FieldContext;

/// Maximum length of a path with its query.
pub(super) const MAX_PATH_BYTES: usize = 2048;

/// A path below the API's version, with its query.
pub(super) fn path(value: &Value, at: &mut FieldContext<'_>) -> Option<String> {
    let Some(path) = value.as_str() else {
        return at.invalid("must be a path, such as \"/guilds/1/roles\"");
    };
    match path_error(path) {
        None => Some(path.to_owned()),
        Some(flaw) => at.invalid(flaw),
    }
}

fn path_error(path: &str) -> Option<&'static str> {
    if path.len() > MAX_PATH_BYTES {
        return Some("must be a path of at most 2048 characters");
    }
    if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Some("must contain only printable ASCII without `#`; percent-encode anything else");
    }
    let path = path.split_once('?').map_or(path, |(path, _)| path).to_ascii_lowercase();
    let Some(below) = path.strip_prefix('/') else {
        return Some("must start with a slash, relative to the API version, such as /users/@me");
    };
    // Some servers decode twice.
    if ["\\", "%2f", "%5c", "%252f", "%255c"].iter().any(|slash| path.contains(slash)) {
        return Some("must not contain an encoded slash or a backslash");
    }
    for segment in below.split('/') {
        let decoded = segment.replace("%25", "%").replace("%2e", ".");
        if decoded.is_empty() {
            return Some("must not contain an empty segment: no two slashes in a row, and none at the end");
        }
        if decoded == "." || decoded == ".." {
            return Some("must not contain a `.` or `..` segment, plain or encoded");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_path_is_rejected_with_the_reason() {
        for (path, reason) in [
            ("", "start with a slash"),
            ("users/@me", "start with a slash"),
            ("?a=/", "start with a slash"),
            ("https://elsewhere/", "start with a slash"),
            ("/guilds/../users/@me", "`..` segment"),
            ("/guilds/./1", "`..` segment"),
            ("/guilds/%2e%2E/1", "`..` segment"),
            ("/guilds/%252e./1", "`..` segment"),
            ("/guilds/1%2Froles", "encoded slash"),
            ("/guilds/1%255croles", "encoded slash"),
            ("/guilds\\1", "encoded slash"),
            ("//elsewhere/x", "empty segment"),
            ("/guilds/1/", "empty segment"),
            ("/", "empty segment"),
            ("/a b", "printable"),
            ("/a\r\nx: y", "printable"),
            ("/a#b", "printable"),
            ("/ü", "printable"),
            (&format!("/{}", "a".repeat(2048)), "2048"),
        ] {
            assert!(path_error(path).is_some_and(|flaw| flaw.contains(reason)), "{path}: {:?}", path_error(path));
        }
        for path in ["/users/@me", "/guilds/1/audit-logs?before=..%2F", "/a/...", "/a/b.c?d=/../"] {
            assert_eq!(path_error(path), None, "{path}");
        }
    }
}
