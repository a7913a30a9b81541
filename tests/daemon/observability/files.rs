//! The files for operators: alerts, their tests, and dashboards.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// A file or folder of the repository.
pub(crate) fn repo_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The contents of the files in a folder with this suffix, by name without the suffix.
pub(crate) fn read_files(folder: &str, suffix: &str) -> BTreeMap<String, String> {
    let found = fs::read_dir(repo_path(folder)).unwrap().map(|entry| entry.unwrap().path());
    let found = found.filter_map(|path| {
        let name = path.file_name()?.to_str()?.strip_suffix(suffix)?.to_owned();
        Some((name, fs::read_to_string(path).unwrap()))
    });
    let found: BTreeMap<_, _> = found.collect();
    assert!(!found.is_empty(), "no {suffix} in {folder}");
    found
}

/// An alerting rule.
#[derive(Debug, Default)]
pub(crate) struct Alert {
    pub(crate) name: String,
    /// `expr`, `for`, and the fields of `labels` and `annotations`.
    pub(crate) fields: BTreeMap<String, String>,
}

/// Every alerting rule. promtool validates the files as YAML; this reads only the form that we write.
pub(crate) fn alerts() -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    for text in read_files("config/prometheus/rules", ".yml").values() {
        // The name of a field whose value is folded over the next lines, and its indentation.
        let mut folded: Option<(String, usize)> = None;
        for line in text.lines() {
            let (indent, line) = (line.len() - line.trim_start().len(), line.trim_start());
            if let Some(name) = line.strip_prefix("- alert: ") {
                alerts.push(Alert { name: name.to_owned(), ..Alert::default() });
                folded = None;
                continue;
            }
            let Some(alert) = alerts.last_mut() else { continue };
            if let Some((name, _)) = folded.as_ref().filter(|(_, above)| indent > *above) {
                let value = alert.fields.get_mut(name).unwrap();
                value.push(' ');
                value.push_str(line);
                continue;
            }
            folded = None;
            let Some((name, value)) = line.split_once(": ").filter(|_| !line.starts_with('#')) else { continue };
            if value == ">-" {
                folded = Some((name.to_owned(), indent));
            }
            alert.fields.insert(name.to_owned(), value.trim_start_matches(">-").trim_matches('"').to_owned());
        }
    }
    alerts
}

/// What promtool tests expect of an alert.
#[derive(Debug, Default)]
pub(crate) struct AlertTests {
    /// Number of tests in which it fires.
    pub(crate) fires: usize,
    /// Number of tests in which it does not fire.
    pub(crate) silent: usize,
}

/// The promtool tests of each alert.
pub(crate) fn alert_tests() -> BTreeMap<String, AlertTests> {
    let mut tests: BTreeMap<String, AlertTests> = BTreeMap::new();
    for text in read_files("config/prometheus/tests", ".yml").values() {
        let mut alert = None;
        for line in text.lines().map(str::trim_start) {
            if let Some(name) = line.strip_prefix("alertname: ") {
                alert = Some(name.to_owned());
            } else if let Some(expected) = line.strip_prefix("exp_alerts:") {
                let test = tests.entry(alert.take().unwrap()).or_default();
                match expected.trim() {
                    "" => test.fires += 1,
                    "[]" => test.silent += 1,
                    other => panic!("exp_alerts: {other}"),
                }
            }
        }
    }
    tests
}

/// Every dashboard, by the name of its file.
pub(crate) fn dashboards() -> BTreeMap<String, Value> {
    let read = |(name, text): (String, String)| {
        let board = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, board)
    };
    read_files("config/grafana/dashboards", ".json").into_iter().map(read).collect()
}

/// The panels of a dashboard, including those in rows, without the rows.
pub(crate) fn panels(board: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        match panel["type"].as_str().unwrap() {
            "row" => found.extend(panel["panels"].as_array().into_iter().flatten()),
            _ => found.push(panel),
        }
    }
    found
}

/// The queries of a dashboard, each with its panel or variable.
pub(crate) fn queries(board: &Value) -> Vec<(String, String)> {
    let targets = panels(board).into_iter().flat_map(|panel| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap();
        targets.iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    });
    let variables = board["templating"]["list"].as_array().unwrap().iter().filter(|one| one["type"] == "query");
    let variables = variables.map(|one| {
        // `label_values(metric{…}, label)` is a function of Grafana, not PromQL.
        let query = one["query"]["query"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").and_then(|query| query.strip_suffix(')')).unwrap();
        let (metric, _label) = inner.rsplit_once(',').unwrap();
        (one["name"].as_str().unwrap().to_owned(), metric.to_owned())
    });
    targets.chain(variables).collect()
}
