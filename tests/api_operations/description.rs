//! Responses match the API description in every test of this binary. Also tests of the description itself.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{Answer, Api, call, raw, run, schema::Book};

static BOOK: LazyLock<Book> = LazyLock::new(Book::open);

/// The operation that the description has for a request.
fn described(method: &str, path: &str) -> Option<&'static Value> {
    let path: Vec<&str> = path.split('?').next().unwrap_or_default().split('/').collect();
    let fits = |pattern: &str| {
        let pattern: Vec<&str> = pattern.split('/').collect();
        let is_open = pattern.last() == Some(&"{key}");
        (pattern.len() == path.len() || (is_open && pattern.len() < path.len()))
            && pattern.iter().zip(&path).all(|(part, given)| part.starts_with('{') || part == given)
    };
    let paths = BOOK.document()["paths"].as_object().unwrap();
    // Literal segments take precedence over parameters, as in the router.
    let mut fitting: Vec<_> = paths.iter().filter(|(pattern, _)| fits(pattern)).collect();
    fitting.sort_by_key(|(pattern, _)| pattern.matches('{').count());
    let found = fitting.first().map(|(_, item)| &item[method.to_ascii_lowercase()]);
    found.filter(|operation| operation.is_object())
}

/// Asserts that a response matches the description.
pub(crate) fn hold(method: &str, path: &str, answer: &Answer) {
    let Some(operation) = described(method, path) else { return };
    // A malformed HTTP request never reaches the API.
    if answer.status == 400 && answer.body.is_empty() {
        return;
    }
    let told = BOOK.resolve(&operation["responses"][answer.status.to_string()]);
    assert!(told.is_object(), "{method} {path} returned {}, which is not described: {answer:?}", answer.status);
    let kind = answer.header("content-type");
    let content = kind.as_ref().and_then(|kind| told["content"].get(kind.split(';').next()?));
    match (content, answer.body.is_empty()) {
        (Some(content), false) if kind.as_ref().is_some_and(|kind| kind.contains("json")) => {
            let differs = BOOK.differs(&content["schema"], &answer.json());
            assert!(differs.is_empty(), "{method} {path} does not match the description: {differs:#?}\n{answer:?}");
        }
        (Some(_), _) => {}
        (None, is_empty) => {
            let fine = is_empty && told["content"].is_null();
            assert!(
                fine,
                "{method} {path} returned {} with {kind:?}, which is not described: {answer:?}",
                answer.status
            );
        }
    }
    for (name, header) in told["headers"].as_object().into_iter().flatten() {
        let header = BOOK.resolve(header);
        let is_there = answer.header(name).is_some() || header["required"] != true;
        assert!(is_there, "{method} {path} returned {} without {name}: {answer:?}", answer.status);
    }
}

#[test]
fn every_example_fits_what_it_is_an_example_of() {
    let mut count = 0;
    for (path, item) in BOOK.document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let answers = operation["responses"].as_object().unwrap().values();
            let parts = answers.map(|answer| BOOK.resolve(answer)).chain([&operation["requestBody"]]);
            let contents = parts.flat_map(|part| part["content"].as_object().into_iter().flat_map(|all| all.values()));
            for content in contents {
                for (name, example) in content["examples"].as_object().into_iter().flatten() {
                    let differs = BOOK.differs(&content["schema"], &example["value"]);
                    assert!(differs.is_empty(), "{method} {path}, {name}: {differs:#?}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count} examples");
}

#[test]
fn a_value_that_differs_is_told_from_one_that_does_not() {
    let told = |value: Value| BOOK.differs(&json!({"$ref": "#/components/schemas/GuildStanding"}), &value).len();
    let right = json!({
        "guild_id": "1", "paused": false, "all_paused": false, "depth": 1, "depth_is_more": false, "pending": {"queued": 1},
    });
    assert_eq!(told(right.clone()), 0);
    for (field, wrong) in
        [("paused", json!("no")), ("depth", json!(-1)), ("pending", json!({"queued": "1"})), ("more", json!(1))]
    {
        let mut spoilt = right.clone();
        spoilt[field] = wrong;
        assert_eq!(told(spoilt), 1, "{field}");
    }
    assert_eq!(told(json!({})), 6);
}

#[test]
fn the_description_and_its_page_need_no_key_and_are_not_sent_twice() {
    run(async {
        let api = Api::start();
        for (path, kind) in [
            ("/openapi.json", "application/json"),
            ("/docs", "text/html; charset=utf-8"),
            ("/docs/page.css", "text/css; charset=utf-8"),
            ("/docs/page.js", "text/javascript; charset=utf-8"),
            ("/docs/elements.js", "text/javascript; charset=utf-8"),
            ("/docs/schemas.js", "text/javascript; charset=utf-8"),
            ("/docs/trial.js", "text/javascript; charset=utf-8"),
        ] {
            let none = [("Authorization", "none")];
            let first = call(api.address(), "GET", path, &none, "").await;
            assert_eq!((first.status, first.header("content-type").as_deref()), (200, Some(kind)), "{path}");
            assert!(!first.body.is_empty(), "{path}");
            let tag = first.header("etag").unwrap();
            for known in [tag.clone(), format!("\"other\", W/{tag}"), "*".to_owned()] {
                let again = call(api.address(), "GET", path, &[("If-None-Match", &known)], "").await;
                assert_eq!((again.status, again.body.as_str()), (304, ""), "{path} {known}");
                assert_eq!(again.header("etag").as_ref(), Some(&tag), "{path}");
            }
            let other = call(api.address(), "GET", path, &[("If-None-Match", "\"other\"")], "").await;
            assert_eq!(other.status, 200, "{path}");
            let head = format!("HEAD {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            assert_eq!(raw(api.address(), head.as_bytes()).await.status, 200, "{path}");
            let wrong = call(api.address(), "POST", path, &none, "{}").await;
            wrong.is_problem(405, "method-not-allowed");
            assert_eq!(wrong.header("allow").as_deref(), Some("GET, HEAD"), "{path}");
        }
    });
}

#[test]
fn the_page_may_load_nothing_from_elsewhere_and_does_not_try_to() {
    run(async {
        let api = Api::start();
        for path in
            ["/docs", "/docs/page.css", "/docs/page.js", "/docs/elements.js", "/docs/schemas.js", "/docs/trial.js"]
        {
            let answer = api.get(path).await;
            let policy = answer.header("content-security-policy").unwrap();
            for rule in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"] {
                assert!(policy.contains(rule), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
            assert_eq!(answer.header("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
            for elsewhere in ["http://", "https://", "\"//", "'//", "@import", " url("] {
                assert!(!answer.body.contains(elsewhere), "{path} has {elsewhere}");
            }
            for inline in
                ["style=", "onclick=", "onload=", "<style", "innerHTML", "localStorage", "sessionStorage", "cookie"]
            {
                assert!(!answer.body.contains(inline), "{path} has {inline}");
            }
        }
    });
}

#[test]
fn what_is_served_is_what_is_printed() {
    run(async {
        let api = Api::start();
        assert_eq!(api.get("/openapi.json").await.json(), *BOOK.document());
    });
}

#[test]
fn every_described_path_outside_the_api_is_there() {
    run(async {
        let api = Api::start();
        let paths = BOOK.document()["paths"].as_object().unwrap().keys().filter(|path| !path.starts_with("/v1/"));
        for path in paths {
            let answer = call(api.address(), "GET", path, &[("Authorization", "none")], "").await;
            assert!(matches!(answer.status, 200 | 503), "{path}: {answer:?}");
        }
    });
}
