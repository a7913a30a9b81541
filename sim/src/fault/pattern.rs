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
        let open = |part: &str| part == "*";
        Self {
            method: (!open(method)).then(|| method.to_ascii_uppercase()),
            parts: (!open(path.trim())).then(|| path.trim().split('/').map(str::to_owned).collect()),
        }
    }

    /// Whether it matches a call to `path`, which belongs to this template.
    pub(crate) fn fits(&self, method: &str, template: &str, path: &str) -> bool {
        self.fits_method(method)
            && self.fits_parts(template, |index, part, of_template| {
                is_open(part) && (part == "*" || is_open(of_template)) || path.split('/').nth(index) == Some(part)
            })
    }

    /// Whether it can match any call of the route.
    pub(crate) fn could_fit(&self, route: &Route) -> bool {
        self.fits_method(route.method.as_str())
            && self.fits_parts(route.template, |_, part, of_template| {
                is_open(part) || is_open(of_template) || part == of_template
            })
    }

    fn fits_method(&self, method: &str) -> bool {
        self.method.as_deref().is_none_or(|own| own == method)
    }

    fn fits_parts(&self, template: &str, fits: impl Fn(usize, &str, &str) -> bool) -> bool {
        let Some(parts) = &self.parts else { return true };
        let mut of_template = template.split('/');
        for (index, part) in parts.iter().enumerate() {
            if part == "**" {
                return true;
            }
            match of_template.next() {
                Some(other) if fits(index, part, other) => {}
                _ => return false,
            }
        }
        of_template.next().is_none()
    }
}

fn is_open(part: &str) -> bool {
    part == "*" || part.starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_fits_by_template_by_star_and_by_id() {
        let template = "/channels/{channel.id}/messages";
        let fits = |text: &str| Pattern::parse(text).fits("POST", template, "/channels/7/messages");
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
    fn a_parameter_in_a_pattern_fits_no_literal_part() {
        let pattern = Pattern::parse("GET /users/{user.id}");
        assert!(!pattern.fits("GET", "/users/@me", "/users/@me"));
        assert!(pattern.fits("GET", "/users/{user.id}", "/users/5"));
    }
}
