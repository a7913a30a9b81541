//! The hash of a migration's SQL. It covers what the engine executes, not how it is formatted.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// SHA-256 of these statements, in hexadecimal. Comments and white space are not included.
pub(crate) fn of(statements: &[String]) -> String {
    let mut hash = Sha256::new();
    for statement in statements {
        let statement = normalized(statement);
        // Prefixed with its length, so that two statements never equal one.
        hash.update((statement.len() as u64).to_be_bytes());
        hash.update(statement);
    }
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The statement without comments, and with one space for each run of white space. Quoted text stays unchanged.
fn normalized(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let (taken, normalized_part) = match quoted_len(rest) {
            Some(length) => (length, &rest[..length]),
            None => match blank_len(rest) {
                Some(length) => (length, " "),
                None => (first.len_utf8(), &rest[..first.len_utf8()]),
            },
        };
        if normalized_part != " " || !(out.is_empty() || out.ends_with(' ')) {
            out.push_str(normalized_part);
        }
        rest = &rest[taken..];
    }
    out.truncate(out.trim_end_matches([' ', ';']).len());
    out
}

/// Length of the quoted text at the start: `'…'`, `"…"`, `$$…$$` or `$name$…$name$`.
fn quoted_len(sql: &str) -> Option<usize> {
    let quote = sql.chars().next()?;
    let tag = match quote {
        // A doubled quote ends one quoted text and starts the next: together they stay unchanged.
        '\'' | '"' => &sql[..1],
        '$' => {
            let name = &sql[1..=sql[1..].find('$')?];
            if !name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_') {
                return None;
            }
            &sql[..name.len() + 2]
        }
        _ => return None,
    };
    let body = &sql[tag.len()..];
    Some(body.find(tag).map_or(sql.len(), |end| 2 * tag.len() + end))
}

/// Length of the white space or the comment at the start.
fn blank_len(sql: &str) -> Option<usize> {
    if sql.starts_with("--") {
        return Some(sql.find('\n').unwrap_or(sql.len()));
    }
    if let Some(comment) = sql.strip_prefix("/*") {
        return Some(comment.find("*/").map_or(sql.len(), |end| end + 4));
    }
    let length = sql.len() - sql.trim_start().len();
    (length > 0).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(sql: &str) -> String {
        of(&[sql.to_owned()])
    }

    #[test]
    fn comments_and_white_space_do_not_count() {
        let plain = one("CREATE TABLE a (b TEXT, c TEXT)");
        for same in [
            "CREATE  TABLE a\n    (b TEXT,\tc TEXT)\n",
            "-- why\nCREATE TABLE a (b TEXT, -- what it is\n c TEXT)",
            "/* why */ CREATE TABLE a (b TEXT, /* both */ c TEXT);",
        ] {
            assert_eq!(one(same), plain, "{same}");
        }
        assert_ne!(one("CREATE TABLE a (b TEXT, c TEXT NOT NULL)"), plain);
    }

    #[test]
    fn quoted_text_counts_as_it_is() {
        for (a, b) in [
            ("INSERT INTO a VALUES ('x  y')", "INSERT INTO a VALUES ('x y')"),
            ("INSERT INTO a VALUES ('--x')", "INSERT INTO a VALUES ('--y')"),
            ("INSERT INTO a VALUES ('it''s /* x */')", "INSERT INTO a VALUES ('it''s')"),
            ("SELECT \"a  b\"", "SELECT \"a b\""),
            ("DO $$ a  b $$", "DO $$ a b $$"),
            ("DO $x$ a  $$ b $x$", "DO $x$ a $$ b $x$"),
        ] {
            assert_ne!(one(a), one(b), "{a}");
        }
        // A parameter is not quoted text.
        assert_eq!(one("SELECT $1,  $2"), one("SELECT $1, $2"));
    }

    #[test]
    fn two_statements_are_not_one() {
        let (a, b) = ("DROP TABLE a".to_owned(), "DROP TABLE b".to_owned());
        assert_ne!(of(&[a.clone(), b.clone()]), of(&[format!("{a}{b}")]));
        assert_ne!(of(&[a.clone(), b.clone()]), of(&[b, a]));
    }
}
