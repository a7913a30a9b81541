//! The metrics and labels in a PromQL expression. It reads what our own files contain, not the whole language.

use std::collections::BTreeSet;

/// Words that are neither a metric nor a function.
const KEYWORDS: [&str; 7] = ["and", "or", "unless", "bool", "offset", "inf", "nan"];
/// Words before a list of labels.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// The names in an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpressionNames {
    pub(crate) metrics: BTreeSet<String>,
    /// Labels in the selector of a metric.
    pub(crate) matched: BTreeSet<(String, String)>,
    /// Labels in a grouping.
    pub(crate) grouped: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text,
    Sign(char),
}

/// Parses an expression.
pub(crate) fn parse_expression(expression: &str) -> ExpressionNames {
    let tokens = tokens(expression);
    let mut names = ExpressionNames::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        let Token::Word(word) = token else { continue };
        let is_call = tokens.get(at) == Some(&Token::Sign('('));
        if BEFORE_LABELS.contains(&word.as_str()) && is_call {
            let list = tokens[at..].iter().take_while(|token| **token != Token::Sign(')'));
            names.grouped.extend(list.filter_map(word_of));
            at += tokens[at..].iter().position(|token| *token == Token::Sign(')')).unwrap() + 1;
        } else if !is_call
            && !KEYWORDS.contains(&word.to_lowercase().as_str())
            && !BEFORE_LABELS.contains(&word.as_str())
        {
            // `sum by (x) (y)`: the function is before `by`, not before a bracket.
            if matches!(tokens.get(at), Some(Token::Word(next)) if BEFORE_LABELS.contains(&next.as_str())) {
                continue;
            }
            names.metrics.insert(word.clone());
            if tokens.get(at) == Some(&Token::Sign('{')) {
                let end = at + tokens[at..].iter().position(|token| *token == Token::Sign('}')).unwrap();
                let labels = tokens[at..end].iter().filter_map(word_of);
                names.matched.extend(labels.map(|label| (word.clone(), label)));
                at = end + 1;
            }
        }
    }
    names
}

fn word_of(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) => Some(word.clone()),
        Token::Text | Token::Sign(_) => None,
    }
}

fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(first) = rest.next() {
        match first {
            '"' => {
                while let Some(next) = rest.next() {
                    match next {
                        '\\' => drop(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                tokens.push(Token::Text);
            }
            // A range: a duration, or a Grafana variable.
            '[' => drop(rest.by_ref().find(|next| *next == ']')),
            '$' => while rest.next_if(|next| next.is_alphanumeric() || *next == '_').is_some() {},
            '0'..='9' => while rest.next_if(|next| next.is_alphanumeric() || *next == '.').is_some() {},
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let mut word = String::from(first);
                while let Some(next) = rest.next_if(|next| next.is_alphanumeric() || matches!(next, '_' | ':')) {
                    word.push(next);
                }
                tokens.push(Token::Word(word));
            }
            sign if sign.is_whitespace() => {}
            sign => tokens.push(Token::Sign(sign)),
        }
    }
    tokens
}

#[test]
fn metrics_and_labels_are_separated_from_functions() {
    let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let parsed = parse_expression(
        r#"histogram_quantile(0.99, sum by (job, le) (rate(a_bucket{x=~"y(z)", w!="{"}[$__rate_interval]))) > 75e6
           and on (job) max(b{job="$job"} offset 5m) unless c or sum(d) by (shard) * 2"#,
    );
    assert_eq!(parsed.metrics, set(&["a_bucket", "b", "c", "d"]));
    assert_eq!(parsed.grouped, set(&["job", "le", "shard"]));
    let matched = [("a_bucket", "x"), ("a_bucket", "w"), ("b", "job")];
    assert_eq!(parsed.matched, matched.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect());
}
