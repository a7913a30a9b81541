//! Monitoring of Guildhall: metrics, alerts, runbooks and dashboards are consistent.
//!
//! `scripts/test` runs promtool to check the rules themselves, and that each alert fires when it should.

mod daemon;
mod files;
mod promql;
mod series;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use guildhall::metrics;
use guildhall_actors::telemetry::{Metric, MetricType};
use guildhall_testkit::program::text;

/// URL of the runbooks: below the external URL, or the scraped address, or the default one for alerts about several
/// processes.
const RUNBOOKS: &str = concat!(
    "{{ or $externalLabels.guildhall_url (printf \"http://%s\" (or $labels.instance \"127.0.0.1:8080\")) }}",
    "/docs/runbooks"
);
/// Labels that Prometheus adds to every series, and the label of buckets.
const COMMON_LABELS: [&str; 3] = ["job", "instance", "le"];
/// Series that Prometheus creates itself.
const BUILTIN_SERIES: [&str; 2] = ["up", "ALERTS"];

/// The metric of a series.
fn metric_of(series: &str) -> Option<&'static Metric> {
    let find = |name: &str, histogram: bool| {
        metrics::all().find(|metric| metric.name == name && (metric.kind == MetricType::Histogram) == histogram)
    };
    let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| series.strip_suffix(part));
    find(series, false).or_else(|| find(part?, true))
}

/// The errors of an expression.
fn expression_errors(expression: &str) -> Vec<String> {
    let names = promql::parse_expression(expression);
    let mut errors = Vec::new();
    let mut labels: BTreeSet<&str> = COMMON_LABELS.into();
    for series in &names.metrics {
        match metric_of(series) {
            Some(metric) => labels.extend(metric.labels()),
            None if BUILTIN_SERIES.contains(&series.as_str()) => labels.extend(["alertname", "alertstate", "severity"]),
            None => errors.push(format!("no metric {series}")),
        }
    }
    for (series, label) in &names.matched {
        let metric_labels = metric_of(series).map_or_else(Vec::new, Metric::labels);
        if !metric_labels.contains(&label.as_str()) && !COMMON_LABELS.contains(&label.as_str()) && series != "ALERTS" {
            errors.push(format!("{series} has no label {label}"));
        }
    }
    for label in &names.grouped {
        if !labels.contains(label.as_str()) {
            errors.push(format!("nothing in it has a label {label}"));
        }
    }
    if names.metrics.is_empty() {
        errors.push("it has no metric".to_owned());
    }
    errors
}

#[test]
fn alerts_and_panels_use_existing_metrics_and_labels() {
    let mut errors = Vec::new();
    for alert in files::alerts() {
        let expression = &alert.fields["expr"];
        errors.extend(
            expression_errors(expression).iter().map(|error| format!("alert {}: {error} in {expression}", alert.name)),
        );
    }
    for (name, board) in files::dashboards() {
        for (panel, expression) in files::queries(&board) {
            errors.extend(
                expression_errors(&expression).iter().map(|error| format!("{name}, {panel}: {error} in {expression}")),
            );
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn unknown_metrics_and_labels_are_found() {
    for expression in [
        "rate(guildhall_nothing_total[5m])",
        "guildhall_ready_bucket",
        "guildhall_ready{shard=\"0\"}",
        "sum by (guild) (guildhall_ready)",
        "1 + 1",
    ] {
        assert!(!expression_errors(expression).is_empty(), "{expression}");
    }
    let fine = "sum by (le, route) (rate(guildhall_rest_request_seconds_bucket{status_class=\"2xx\"}[5m]))";
    assert_eq!(expression_errors(fine), Vec::<String>::new());
}

#[test]
fn every_alert_has_texts_a_runbook_and_tests() {
    let alerts = files::alerts();
    let mut runbooks = files::read_files("docs/runbooks", ".md");
    let mut tests = files::alert_tests();
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    for alert in &alerts {
        *rules.entry(&alert.name).or_default() += 1;
        assert!(["critical", "warning"].contains(&alert.fields["severity"].as_str()), "{alert:?}");
        assert!(
            alert.fields["description"].contains("First step: "),
            "{}: it may be read while all is down",
            alert.name
        );
        for field in ["summary", "description"] {
            assert!(alert.fields[field].trim().ends_with('.'), "{}: {field} is not a sentence", alert.name);
        }
        assert_eq!(alert.fields["runbook_url"].trim_matches('\''), format!("{RUNBOOKS}/{}", alert.name));
    }
    for (name, count) in rules {
        let runbook = runbooks.remove(name).unwrap_or_else(|| panic!("no docs/runbooks/{name}.md"));
        assert!(runbook.starts_with(&format!("# {name}\n")), "{name}: the runbook starts with its name");
        for part in
            ["## What it means", "## What users feel", "## What to look at", "## What to do", "## When it goes away"]
        {
            assert!(runbook.contains(&format!("\n{part}\n")), "{name}: the runbook has no section {part:?}");
        }
        let test = tests.remove(name).unwrap_or_else(|| panic!("{name} has no promtool test"));
        assert!(test.fires >= count && test.silent > 0, "{name} has {count} rules, and its tests {test:?}");
    }
    runbooks.remove("README");
    assert!(runbooks.is_empty(), "runbooks without an alert: {:?}", runbooks.keys());
    assert!(tests.is_empty(), "tests without an alert: {:?}", tests.keys());
}

#[test]
fn runbooks_use_existing_metrics() {
    for (name, text) in files::read_files("docs/runbooks", ".md") {
        let words = text.split(|next: char| !(next.is_alphanumeric() || next == '_'));
        for series in words.filter(|word| word.starts_with("guildhall_") || word.starts_with("process_")) {
            let found = metric_of(series).or_else(|| metrics::all().find(|metric| metric.name == series));
            assert!(found.is_some(), "{name}: no metric {series}");
        }
    }
}

#[test]
fn dashboards_are_valid_and_panels_are_described() {
    let boards = files::dashboards();
    assert_eq!(boards.keys().collect::<Vec<_>>(), ["gate", "gateway", "operations", "overview"]);
    for (name, board) in &boards {
        assert_eq!(board["uid"], format!("guildhall-{name}"));
        assert!(board["schemaVersion"].as_u64().unwrap() >= 39 && board["id"].is_null(), "{name}");
        let variables = board["templating"]["list"].as_array().unwrap();
        let named = variables.iter().map(|one| one["name"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(named, ["datasource", "instance"], "{name}");
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in files::panels(board) {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: {title} has the id of another panel");
            let grid = &panel["gridPos"];
            let (x, y) = (grid["x"].as_u64().unwrap(), grid["y"].as_u64().unwrap());
            for (dx, dy) in
                (0..grid["w"].as_u64().unwrap()).flat_map(|dx| (0..grid["h"].as_u64().unwrap()).map(move |dy| (dx, dy)))
            {
                assert!(x + dx < 24 && cells.insert((x + dx, y + dy)), "{name}: {title} overlaps another panel");
            }
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{name}: {title} has no description");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{name}: {title} has no unit");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}: {title}");
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                assert!(
                    expression.contains("$instance") || expression.contains("ALERTS"),
                    "{name}: {title} does not select an instance"
                );
            }
        }
    }
}

#[test]
fn every_dashboard_query_is_valid_promql() {
    let mut rules = String::from("groups:\n- name: panels\n  rules:\n");
    let boards = files::dashboards();
    let queries: Vec<_> = boards.values().flat_map(files::queries).collect();
    for (n, (_, expression)) in queries.iter().enumerate() {
        // As Grafana would substitute them.
        let expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
        assert!(!expression.contains('$'), "{expression}");
        rules.push_str(&format!("  - record: panel_{n}\n    expr: {}\n", serde_json::to_string(&expression).unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("panels.yml");
    fs::write(&file, rules).unwrap();
    let output = Command::new("promtool").args(["check", "rules", "--lint=none"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// The tables of metrics for the documentation, by section and name.
fn metric_tables() -> String {
    let mut declared: Vec<&Metric> = metrics::all().collect();
    declared.sort_by_key(|metric| (metric.section, metric.name));
    let mut tables = String::new();
    for section in declared.chunk_by(|one, next| one.section == next.section) {
        let title = section[0].section.title();
        tables.push_str(&format!("\n### {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"));
        for metric in section {
            let labels = metric.labels().iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            let (name, kind, help) = (metric.name, metric.kind.name(), metric.help);
            tables.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
        }
    }
    tables + "\n"
}

#[test]
fn documentation_lists_the_declared_metrics() {
    const START: &str = "<!-- Generated: UPDATE_DOCS=1 cargo test --test observability documentation -->\n";
    const END: &str = "<!-- End of the generated tables -->\n";
    let path = files::repo_path("docs/observability.md");
    let docs = fs::read_to_string(&path).unwrap();
    let (before, rest) = docs.split_once(START).unwrap();
    let (tables, after) = rest.split_once(END).unwrap();
    let expected = metric_tables();
    if tables != expected && std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, [before, START, &expected, END, after].concat()).unwrap();
        return;
    }
    assert_eq!(
        tables, expected,
        "the tables in docs/observability.md are not those of the declarations; update them:\n{START}"
    );
}

#[test]
fn metrics_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for metric in metrics::all() {
        assert!(names.insert(metric.name), "{} is declared twice", metric.name);
    }
}

#[test]
fn compose_uses_existing_settings_and_files() {
    let compose = fs::read_to_string(files::repo_path("config/compose.yaml")).unwrap();
    let settings = fs::read_to_string(files::repo_path("docs/configuration.md")).unwrap();
    let named = compose.lines().filter_map(|line| line.trim().split_once(':').map(|(name, _)| name));
    let named: Vec<_> = named.filter(|name| name.starts_with("GUILDHALL__")).collect();
    assert!(named.len() >= 4, "{named:?}");
    for name in named {
        assert!(settings.contains(&format!("| `{name}` |")), "{name} is not a setting");
    }
    let mounted = compose.lines().filter_map(|line| line.trim().strip_prefix("- ./")?.split_once(':'));
    for (path, _) in mounted {
        assert!(files::repo_path("config").join(path).exists(), "config/{path} does not exist");
    }
    // Every secret is a file that scripts/secrets creates, except the token.
    let script = fs::read_to_string(files::repo_path("scripts/secrets")).unwrap();
    for path in compose.lines().filter_map(|line| line.trim().strip_prefix("file: ./secrets/")) {
        assert!(
            script.contains(&format!("keep {path} ")) || path == "discord_token",
            "scripts/secrets does not create {path}"
        );
    }
}
