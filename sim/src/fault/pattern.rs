//! Patterns that select the calls of a fault.

use crate::rest::route::Route;

/// A method and a path, each of which may be a wildcard.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    method: Option<String>,
    /// `None` matches every path.
    parts: Option<Vec<String>>,
}

impl Pattern {
    /// Parses `METHOD /path`, `/path` or `*`. Every text is a pattern; not every pattern matches a route.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim();
        let (method, path) =
            text.split_once(' ').unwrap_or(if text.starts_with('/') { ("*", text) } else { (text, "*") });
        let is_wildcard = |part: &str| part == "*";
        Self {
            method: (!is_wildcard(method)).then(|| method.to_ascii_uppercase()),
            parts: (!is_wildcard(path.trim())).then(|| path.trim().split('/').map(str::to_owned).collect()),
        }
    }

    /// Whether it matches a call to `path`, which belongs to this template.
    pub(crate) fn matches(&self, method: &str, template: &str, path: &str) -> bool {
        self.matches_method(method)
            && self.matches_parts(template, |index, part, template_part| {
                is_wildcard_part(part) && (part == "*" || is_wildcard_part(template_part))
                    || path.split('/').nth(index) == Some(part)
            })
    }

    /// Whether it can match any call of the route.
    pub(crate) fn could_match(&self, route: &Route) -> bool {
        self.matches_method(route.method.as_str())
            && self.matches_parts(route.template, |_, part, template_part| {
                is_wildcard_part(part) || is_wildcard_part(template_part) || part == template_part
            })
    }

    fn matches_method(&self, method: &str) -> bool {
        self.method.as_deref().is_none_or(|expected| expected == method)
    }

    fn matches_parts(&self, template: &str, fits: impl Fn(usize, &str, &str) -> bool) -> bool {
        let Some(parts) = &self.parts else { return true };
        let mut template_parts = template.split('/');
        for (index, part) in parts.iter().enumerate() {
            if part == "**" {
                return true;
            }
            match template_parts.next() {
                Some(other) if fits(index, part, other) => {}
                _ => return false,
            }
        }
        template_parts.next().is_none()
    }
}

fn is_wildcard_part(part: &str) -> bool {
    part == "*" || part.starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_by_template_wildcard_and_id() {
        let template = "/channels/{channel.id}/messages";
        let fits = |text: &str| Pattern::parse(text).matches("POST", template, "/channels/7/messages");
        for text in
            ["*", "POST", "post *", "POST /channels/{channel.id}/messages", "/channels/*/messages", "* /channels/**"]
        {
            assert!(fits(text), "{text}");
        }
        assert!(fits("POST /channels/7/messages"));
        for text in ["GET", "POST /channels/8/messages", "/channels/*", "/guilds/**", "POST /channels/*/messages/*"] {
            assert!(!fits(text), "{text}");
        }
    }

    #[test]
    fn parameter_in_a_pattern_matches_no_literal_part() {
        let pattern = Pattern::parse("GET /users/{user.id}");
        assert!(!pattern.matches("GET", "/users/@me", "/users/@me"));
        assert!(pattern.matches("GET", "/users/{user.id}", "/users/5"));
    }
}
