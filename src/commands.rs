//! Reads the file of application commands, YAML or JSON, into `core`'s commands. Reports all errors of the file at
//! once.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use guildhall_core::command::{Commands, FieldError};
use serde_json::Value;

/// Maximum size of a commands file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Error that makes a commands file unusable.
#[derive(Debug, thiserror::Error)]
pub enum CommandsError {
    /// The file cannot be read.
    #[error("cannot read the commands in {}: {reason}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// The file is not valid YAML or JSON.
    #[error("{} is not valid {format}: {reason}", path.display())]
    InvalidSyntax {
        /// Path of the file.
        path: PathBuf,
        /// Format that the file's name implies.
        format: &'static str,
        /// Parse error, with its position.
        reason: String,
    },
    /// The file has invalid fields. All of them are listed.
    #[error("{}", ErrorList { path, problems })]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// The errors; never empty.
        problems: Vec<FieldError>,
    },
}

struct ErrorList<'a> {
    path: &'a Path,
    problems: &'a [FieldError],
}

impl fmt::Display for ErrorList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.problems.len() == 1 { "error" } else { "errors" };
        write!(f, "{} {noun} in the commands in {}:", self.problems.len(), self.path.display())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

/// Reads the commands of a file: JSON if its name ends in `.json`, else YAML. `-` is standard input.
///
/// # Errors
///
/// If the file cannot be read, or a field in it is invalid.
pub fn load(path: &Path) -> Result<Commands, CommandsError> {
    let text = read_text(path).map_err(|error| {
        let reason = error.to_string();
        CommandsError::Unreadable { path: path.to_owned(), reason }
    })?;
    let (form, value) = if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        ("JSON", serde_json::from_str(&text).map_err(|error| error.to_string()))
    } else {
        ("YAML", parse_yaml(&text).map_err(|error| error.to_string()))
    };
    let value = value.map_err(|reason| CommandsError::InvalidSyntax { path: path.to_owned(), format: form, reason })?;
    Commands::read(&value).map_err(|problems| CommandsError::Invalid { path: path.to_owned(), problems })
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let source: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    source.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "the file is larger than {MAX_FILE_BYTES} bytes; check that it is the right file"
        )));
    }
    Ok(text)
}

/// Parses into YAML's own values first: they detect a field that is given twice.
fn parse_yaml(text: &str) -> Result<Value, yaml_serde::Error> {
    let mut value: yaml_serde::Value = yaml_serde::from_str(text)?;
    value.apply_merge()?;
    serde_json::to_value(value).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn yaml_and_json_are_equivalent() {
        let (_one, yaml) = file(
            "commands.yaml",
            "about: &about\n  description: Says it\ncommands:\n- name: say\n  <<: *about\n  default_member_permissions: 8\n",
        );
        // Fields other than `commands` are rejected, also anchors: an anchor must be where it is first used.
        assert!(load(&yaml).unwrap_err().to_string().contains("`about` is not a known field"));
        let (_two, yaml) = file(
            "commands.yaml",
            "- &say\n  name: say\n  description: Says it\n  default_member_permissions: 8\n- <<: *say\n  name: tell\n",
        );
        let (_three, json) = file(
            "commands.json",
            r#"{"commands": [
                {"name": "say", "description": "Says it", "default_member_permissions": "8"},
                {"name": "tell", "description": "Says it", "default_member_permissions": "8"}
            ]}"#,
        );
        assert_eq!(load(&yaml).unwrap(), load(&json).unwrap());
    }

    #[test]
    fn unreadable_file_reports_reason_and_position() {
        let error_of = |name: &str, text: &str| {
            let (_folder, path) = file(name, text);
            load(&path).unwrap_err().to_string()
        };
        let twice = error_of("commands.yaml", "- name: a\n  name: b\n  description: x\n");
        assert!(
            twice.contains("is not valid YAML") && twice.contains("duplicate") && twice.contains("line 1"),
            "{twice}"
        );
        assert!(error_of("commands.yaml", "- name: [a\n").contains("is not valid YAML"));
        assert!(error_of("commands.json", "- name: a\n").contains("is not valid JSON"));
        let invalid = error_of("commands.yaml", "- name: Ban Them\n- nme: x\n");
        assert!(invalid.starts_with("5 errors in the commands in "), "{invalid}");
        assert!(invalid.contains("\n  `commands[0].name` must contain only letters"), "{invalid}");
        let missing = load(Path::new("/nowhere/commands.yaml")).unwrap_err().to_string();
        assert!(missing.contains("cannot read the commands in /nowhere/commands.yaml"), "{missing}");
    }
}
