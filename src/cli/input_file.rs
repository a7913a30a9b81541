//! Reads the input of a command from a file, YAML or JSON, or from standard input.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use anyhow::anyhow;
use serde_json::Value;

/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Reads a file: JSON if its name ends in `.json`, else YAML, which includes JSON. `-` is standard input.
pub(super) fn read(path: &Path) -> anyhow::Result<Value> {
    let displayed = if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() };
    let text = read_text(path).map_err(|error| anyhow!("{displayed} cannot be read: {error}"))?;
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        return serde_json::from_str(&text).map_err(|error| anyhow!("{displayed} is not valid JSON: {error}"));
    }
    // Parses into YAML's own values first: they detect a field that is given twice.
    let value = yaml_serde::from_str(&text).and_then(|mut value: yaml_serde::Value| {
        value.apply_merge()?;
        Ok(value)
    });
    let value = value.map_err(|error| anyhow!("{displayed} is not valid YAML: {error}"))?;
    serde_json::to_value(value)
        .map_err(|error| anyhow!("{displayed} contains a value that JSON cannot represent: {error}"))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let source: Box<dyn io::Read> = if is_stdin(path) { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    source.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("the file is larger than {MAX_FILE_BYTES} bytes; check the path")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_are_read_and_duplicates_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(read(&path("a.yaml", "a: [1, x]\n")).unwrap(), json!({"a": [1, "x"]}));
        assert_eq!(read(&path("a", "{\"a\": \"1\"}")).unwrap(), json!({"a": "1"}));
        let error_of = |path: &Path| read(path).unwrap_err().to_string();
        assert!(error_of(&path("twice.yaml", "a: 1\na: 2\n")).contains("duplicate"));
        assert!(error_of(&path("a.json", "a: 1")).contains("is not valid JSON"));
        assert!(error_of(Path::new("/nowhere/a.yaml")).contains("cannot be read"));
    }
}
