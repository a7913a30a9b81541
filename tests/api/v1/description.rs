//! Responses match the API description in every test of this binary. Also tests of the description itself.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{Response, TestApi, call, run, schema_validator::ApiDescription, send_raw};

static DESCRIPTION: LazyLock<ApiDescription> = LazyLock::new(ApiDescription::open);

/// The operation that the description has for a request.
fn find_operation(method: &str, path: &str) -> Option<&'static Value> {
    let path: Vec<&str> = path.split('?').next().unwrap_or_default().split('/').collect();
    let matches_path = |pattern: &str| {
        let pattern: Vec<&str> = pattern.split('/').collect();
        let is_open = pattern.last() == Some(&"{key}");
        (pattern.len() == path.len() || (is_open && pattern.len() < path.len()))
            && pattern.iter().zip(&path).all(|(part, given)| part.starts_with('{') || part == given)
    };
    let paths = DESCRIPTION.document()["paths"].as_object().unwrap();
    // Literal segments take precedence over parameters, as in the router.
    let mut matching: Vec<_> = paths.iter().filter(|(pattern, _)| matches_path(pattern)).collect();
    matching.sort_by_key(|(pattern, _)| pattern.matches('{').count());
    let found = matching.first().map(|(_, item)| &item[method.to_ascii_lowercase()]);
    found.filter(|operation| operation.is_object())
}

/// Asserts that a response matches the description.
pub(crate) fn check_response(method: &str, path: &str, response: &Response) {
    let Some(operation) = find_operation(method, path) else { return };
    // A malformed HTTP request never reaches the API.
    if response.status == 400 && response.body.is_empty() {
        return;
    }
    let expected = DESCRIPTION.resolve(&operation["responses"][response.status.to_string()]);
    assert!(expected.is_object(), "{method} {path} returned {}, which is not described: {response:?}", response.status);
    let kind = response.header("content-type");
    let content = kind.as_ref().and_then(|kind| expected["content"].get(kind.split(';').next()?));
    match (content, response.body.is_empty()) {
        (Some(content), false) if kind.as_ref().is_some_and(|kind| kind.contains("json")) => {
            let differences = DESCRIPTION.differences(&content["schema"], &response.json());
            assert!(
                differences.is_empty(),
                "{method} {path} does not match the description: {differences:#?}\n{response:?}"
            );
        }
        (Some(_), _) => {}
        (None, is_empty) => {
            let is_described = is_empty && expected["content"].is_null();
            assert!(
                is_described,
                "{method} {path} returned {} with {kind:?}, which is not described: {response:?}",
                response.status
            );
        }
    }
    for (name, header) in expected["headers"].as_object().into_iter().flatten() {
        let header = DESCRIPTION.resolve(header);
        let is_present = response.header(name).is_some() || header["required"] != true;
        assert!(is_present, "{method} {path} returned {} without {name}: {response:?}", response.status);
    }
}

#[test]
fn every_example_matches_its_schema() {
    let mut count = 0;
    for (path, item) in DESCRIPTION.document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap().values();
            let parts = responses.map(|response| DESCRIPTION.resolve(response)).chain([&operation["requestBody"]]);
            let contents = parts.flat_map(|part| part["content"].as_object().into_iter().flat_map(|all| all.values()));
            for content in contents {
                for (name, example) in content["examples"].as_object().into_iter().flatten() {
                    let differences = DESCRIPTION.differences(&content["schema"], &example["value"]);
                    assert!(differences.is_empty(), "{method} {path}, {name}: {differences:#?}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count} examples");
}

#[test]
fn schema_mismatches_are_found() {
    let count_differences =
        |value: Value| DESCRIPTION.differences(&json!({"$ref": "#/components/schemas/GuildStatus"}), &value).len();
    let valid = json!({
        "guild_id": "1", "name": null, "paused": false, "all_paused": false, "depth": 1, "depth_is_more": false, "pending": {"queued": 1},
    });
    assert_eq!(count_differences(valid.clone()), 0);
    for (field, invalid_value) in
        [("paused", json!("no")), ("depth", json!(-1)), ("pending", json!({"queued": "1"})), ("more", json!(1))]
    {
        let mut changed = valid.clone();
        changed[field] = invalid_value;
        assert_eq!(count_differences(changed), 1, "{field}");
    }
    assert_eq!(count_differences(json!({})), 7);
}

#[test]
fn description_and_docs_need_no_key_and_support_etags() {
    run(async {
        let api = TestApi::start();
        for (path, kind) in [
            ("/openapi.json", "application/json"),
            ("/docs", "text/html; charset=utf-8"),
            ("/docs/page.css", "text/css; charset=utf-8"),
            ("/docs/page.js", "text/javascript; charset=utf-8"),
            ("/docs/elements.js", "text/javascript; charset=utf-8"),
            ("/docs/schemas.js", "text/javascript; charset=utf-8"),
            ("/docs/trial.js", "text/javascript; charset=utf-8"),
            ("/docs/runbooks", "text/html; charset=utf-8"),
            ("/docs/runbooks.css", "text/css; charset=utf-8"),
            ("/docs/runbooks/GuildhallStoreDown", "text/html; charset=utf-8"),
            ("/docs/runbooks/GuildhallStoreDown.md", "text/markdown; charset=utf-8"),
        ] {
            let none = [("Authorization", "none")];
            let first = call(api.address(), "GET", path, &none, "").await;
            assert_eq!((first.status, first.header("content-type").as_deref()), (200, Some(kind)), "{path}");
            assert!(!first.body.is_empty(), "{path}");
            let tag = first.header("etag").unwrap();
            for etags in [tag.clone(), format!("\"other\", W/{tag}"), "*".to_owned()] {
                let cached = call(api.address(), "GET", path, &[("If-None-Match", &etags)], "").await;
                assert_eq!((cached.status, cached.body.as_str()), (304, ""), "{path} {etags}");
                assert_eq!(cached.header("etag").as_ref(), Some(&tag), "{path}");
            }
            let other = call(api.address(), "GET", path, &[("If-None-Match", "\"other\"")], "").await;
            assert_eq!(other.status, 200, "{path}");
            let head = format!("HEAD {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
            assert_eq!(send_raw(api.address(), head.as_bytes()).await.status, 200, "{path}");
            let rejected = call(api.address(), "POST", path, &none, "{}").await;
            rejected.assert_problem(405, "method-not-allowed");
            assert_eq!(rejected.header("allow").as_deref(), Some("GET, HEAD"), "{path}");
        }
    });
}

#[test]
fn runbooks_have_a_strict_policy_and_unknown_ones_are_not_found() {
    run(async {
        let api = TestApi::start();
        let index = api.get("/docs/runbooks").await;
        assert!(index.body.contains("href=\"/docs/runbooks/GuildhallStoreDown\""), "{}", index.body);
        let page = api.get("/docs/runbooks/GuildhallStoreDown").await;
        assert!(page.body.contains("<h1>GuildhallStoreDown</h1>"), "{}", page.body);
        for response in [&index, &page] {
            let policy = response.header("content-security-policy").unwrap();
            assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
            assert_eq!(response.header("x-content-type-options").as_deref(), Some("nosniff"));
            assert_eq!(response.header("referrer-policy").as_deref(), Some("no-referrer"));
        }
        let text = api.get("/docs/runbooks/GuildhallStoreDown.md").await;
        assert!(text.body.starts_with("# GuildhallStoreDown\n"), "{}", text.body);
        for path in ["/docs/runbooks/GuildhallUnknown", "/docs/runbooks/", "/docs/runbooks/../../etc/passwd"] {
            api.get(path).await.assert_problem(404, "not-found");
        }
    });
}

#[test]
fn docs_page_loads_nothing_from_other_hosts() {
    run(async {
        let api = TestApi::start();
        for path in
            ["/docs", "/docs/page.css", "/docs/page.js", "/docs/elements.js", "/docs/schemas.js", "/docs/trial.js"]
        {
            let response = api.get(path).await;
            let policy = response.header("content-security-policy").unwrap();
            for rule in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"] {
                assert!(policy.contains(rule), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
            assert_eq!(response.header("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
            for elsewhere in ["http://", "https://", "\"//", "'//", "@import", " url("] {
                assert!(!response.body.contains(elsewhere), "{path} has {elsewhere}");
            }
            for inline in
                ["style=", "onclick=", "onload=", "<style", "innerHTML", "localStorage", "sessionStorage", "cookie"]
            {
                assert!(!response.body.contains(inline), "{path} has {inline}");
            }
        }
    });
}

#[test]
fn served_description_is_the_printed_one() {
    run(async {
        let api = TestApi::start();
        assert_eq!(api.get("/openapi.json").await.json(), *DESCRIPTION.document());
    });
}

#[test]
fn every_described_path_outside_v1_exists() {
    run(async {
        let api = TestApi::start();
        let paths =
            DESCRIPTION.document()["paths"].as_object().unwrap().keys().filter(|path| !path.starts_with("/v1/"));
        for path in paths {
            let response = call(api.address(), "GET", path, &[("Authorization", "none")], "").await;
            assert!(matches!(response.status, 200 | 503), "{path}: {response:?}");
        }
    });
}
