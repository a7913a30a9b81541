//! The effective values of all settings.

use std::{path::PathBuf, str::FromStr};

use serde_json::Value as Json;

use super::{
    error::SettingsProblem,
    kind::{Checked, FromValue, Kind},
    schema::{self, Setting},
    secret::SecretValue,
    source::{Raw, SettingOrigin},
    validate::validate,
};

/// The effective value of a setting: a line of the output of `config check`.
#[derive(Clone)]
pub struct EffectiveSetting {
    pub(crate) setting: &'static Setting,
    /// The value as it was written. `None` if it was not set and has no default.
    raw: Option<Raw>,
    /// Its value; null if it has none, a placeholder if it is a secret.
    pub value: Json,
    secrets: Vec<SecretValue>,
    pub(crate) source: SettingOrigin,
    /// Path of the file that a secret was read from, if any.
    pub(crate) secret_file: Option<String>,
}

impl EffectiveSetting {
    pub(crate) fn new(setting: &'static Setting, raw: Raw, (value, secrets): Checked, source: SettingOrigin) -> Self {
        Self { setting, raw: Some(raw), value, secrets, source, secret_file: None }
    }

    pub(crate) fn unset(setting: &'static Setting) -> Self {
        let (value, secrets, source) = (Json::Null, Vec::new(), SettingOrigin::Default);
        Self { setting, raw: None, value, secrets, source, secret_file: None }
    }

    /// The setting, as a dotted path.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.setting.path
    }

    /// Where the value came from.
    #[must_use]
    pub fn origin(&self) -> String {
        match &self.secret_file {
            Some(path) => format!("{}, read from {path}", self.source),
            None => self.source.to_string(),
        }
    }

    /// The file that contains its value, if that is a secret.
    pub(crate) fn file_with_secret(&self) -> Option<PathBuf> {
        match (&self.secret_file, &self.source) {
            (Some(path), _) => Some(path.into()),
            (None, SettingOrigin::File { path, .. }) => (!self.secrets.is_empty()).then(|| path.clone()),
            (None, SettingOrigin::Default | SettingOrigin::Environment(_) | SettingOrigin::Flag(_)) => None,
        }
    }

    /// Whether another value is the same, including secrets.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        let text = |value: &Self| value.raw.as_ref().and_then(Raw::text).map(str::to_owned);
        self.value == other.value && (!self.setting.kind.is_secret() || text(self) == text(other))
    }
}

/// The effective values of all settings, without the invalid ones: their problems are reported.
#[derive(Clone)]
pub(crate) struct Values(Vec<EffectiveSetting>);

impl Values {
    pub(crate) fn new(values: Vec<EffectiveSetting>) -> Self {
        Self(values)
    }

    /// Returns the values if nothing is set.
    pub(crate) fn defaults() -> Self {
        validate(Vec::new()).expect("invariant: the defaults are valid")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &EffectiveSetting> {
        self.0.iter()
    }

    /// Finds a setting. It is missing if it is invalid.
    pub(crate) fn find(&self, path: &str) -> Option<&EffectiveSetting> {
        debug_assert!(schema::find(path).is_some(), "{path} is not a setting");
        self.0.iter().find(|value| value.setting.path == path)
    }

    /// Returns the typed value of a setting, if it has one.
    pub(crate) fn get<K: Kind, T: FromValue<K::Value>>(&self, path: &str, kind: &K) -> Option<T> {
        let raw = self.find(path)?.raw.as_ref()?;
        kind.parse(raw).ok().map(T::from_value)
    }

    /// Returns everything that no log line may contain.
    pub(crate) fn secrets(&self) -> Vec<SecretValue> {
        self.0.iter().flat_map(|setting| setting.secrets.clone()).collect()
    }

    /// Returns whole numbers, if all of them are valid.
    pub(crate) fn numbers<const N: usize>(&self, paths: [&str; N]) -> Option<[u64; N]> {
        let numbers: Option<Vec<_>> = paths.iter().map(|path| self.find(path)?.value.as_u64()).collect();
        numbers?.try_into().ok()
    }

    /// Returns the text of a setting as it is displayed, unless it is empty.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.find(path)?.value.as_str().filter(|text| !text.is_empty())
    }

    /// Parses the text of a setting as it is displayed.
    pub(crate) fn parsed<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Creates a problem with the first of these settings, with the origin of the first one that is not a default.
    pub(crate) fn problem(&self, paths: &[&str], message: String) -> SettingsProblem {
        let mut origins = paths.iter().filter_map(|path| Some(&self.find(path)?.source));
        let origin = origins.find(|origin| **origin != SettingOrigin::Default).cloned();
        SettingsProblem { key: paths[0].to_owned(), origin, message }
    }
}
