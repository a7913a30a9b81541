//! Renders the Markdown of runbooks as HTML: headings, paragraphs, lists, code, links and emphasis. Anything else in a
//! text is shown as it is written; a test looks for it.

/// Renders a text. Links to other runbooks lead below `folder`; those to other pages of the documentation are not
/// served, and become text.
pub(super) fn to_html(text: &str, folder: &str) -> String {
    let mut html = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        if line.starts_with("```") {
            html += "<pre><code>";
            for code in lines.by_ref().take_while(|code| !code.starts_with("```")) {
                html += &escape(code);
                html.push('\n');
            }
            html += "</code></pre>\n";
            continue;
        }
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        if let Some(title) = line[level..].strip_prefix(' ').filter(|_| (1..=6).contains(&level)) {
            html += &format!("<h{level}>{}</h{level}>\n", inline(title, folder));
            continue;
        }
        let Some((list, first)) = list_item(line) else {
            let mut paragraph = line.to_owned();
            while let Some(more) = lines.next_if(|next| !next.trim().is_empty() && list_item(next).is_none()) {
                paragraph = paragraph + " " + more.trim();
            }
            html += &format!("<p>{}</p>\n", inline(&paragraph, folder));
            continue;
        };
        let mut items = vec![first.to_owned()];
        while let Some(next) = lines.next_if(|next| !next.trim().is_empty() && !next.starts_with('#')) {
            match (list_item(next), items.last_mut()) {
                (Some((_, item)), _) => items.push(item.to_owned()),
                (None, Some(item)) => *item = format!("{item} {}", next.trim()),
                (None, None) => unreachable!("invariant: a list has a first item"),
            }
        }
        let items: String = items.iter().map(|item| format!("<li>{}</li>\n", inline(item, folder))).collect();
        html += &format!("<{list}>\n{items}</{list}>\n");
    }
    html
}

/// The kind of list, and the text of the item, if a line starts an item.
fn list_item(line: &str) -> Option<(&'static str, &str)> {
    if let Some(item) = line.strip_prefix("- ") {
        return Some(("ul", item));
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let item = line[digits..].strip_prefix(". ").filter(|_| digits > 0)?;
    Some(("ol", item))
}

/// Renders code, links and emphasis within a line.
fn inline(text: &str, folder: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[', '<']) {
        let (before, from) = rest.split_at(at);
        html += &escape(before);
        let (rendered, after) = element(from, folder).unwrap_or_else(|| (escape(&from[..1]), &from[1..]));
        html += &rendered;
        rest = after;
    }
    html + &escape(rest)
}

/// Renders the element at the start of a text, and returns what follows it.
fn element<'t>(text: &'t str, folder: &str) -> Option<(String, &'t str)> {
    if let Some(rest) = text.strip_prefix('`') {
        let (code, after) = rest.split_once('`')?;
        return Some((format!("<code>{}</code>", escape(code)), after));
    }
    if let Some(rest) = text.strip_prefix("**") {
        let (strong, after) = rest.split_once("**")?;
        return Some((format!("<strong>{}</strong>", inline(strong, folder)), after));
    }
    if let Some(rest) = text.strip_prefix('<') {
        let (url, after) = rest.split_once('>').filter(|(url, _)| url.starts_with("https://"))?;
        return Some((link(url, &escape(url)), after));
    }
    let (label, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (target, after) = rest.split_once(')')?;
    let label = inline(label, folder);
    let rendered = match target.strip_suffix(".md").filter(|name| !name.contains('/')) {
        Some(name) => link(&format!("{folder}/{name}"), &label),
        None if target.starts_with("https://") => link(target, &label),
        None => format!("{label} ({})", escape(target.trim_start_matches("../"))),
    };
    Some((rendered, after))
}

fn link(target: &str, label: &str) -> String {
    format!("<a href=\"{}\">{label}</a>", escape(target))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(text: &str) -> String {
        to_html(text, "/docs/runbooks")
    }

    #[test]
    fn blocks_are_rendered() {
        let text = "# Title\n\nTwo\nlines.\n\n- one\n  more\n- two\n\n1. first\n2. second\n\n```sh\na < b\n```\n";
        let expected = "<h1>Title</h1>\n<p>Two lines.</p>\n<ul>\n<li>one more</li>\n<li>two</li>\n</ul>\n<ol>\n\
             <li>first</li>\n<li>second</li>\n</ol>\n<pre><code>a &lt; b\n</code></pre>\n";
        assert_eq!(html(text), expected);
    }

    #[test]
    fn elements_of_a_line_are_rendered_and_the_rest_is_escaped() {
        for (text, expected) in [
            ("`a<b>` & **now**", "<code>a&lt;b&gt;</code> &amp; <strong>now</strong>"),
            ("[Down](GuildhallDown.md)", "<a href=\"/docs/runbooks/GuildhallDown\">Down</a>"),
            ("[time](../store.md#time)", "time (store.md#time)"),
            ("<https://a.example>", "<a href=\"https://a.example\">https://a.example</a>"),
            ("<script>1 * 2 [x]</script>", "&lt;script&gt;1 * 2 [x]&lt;/script&gt;"),
            ("[x](\"onclick=)", "x (&quot;onclick=)"),
        ] {
            assert_eq!(html(text), format!("<p>{expected}</p>\n"));
        }
    }
}
