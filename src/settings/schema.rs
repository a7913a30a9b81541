//! The declared settings, and how they are found by name. [`settings!`](super::declare::settings) declares them.

use std::sync::LazyLock;

use super::{Settings, declare::Section, kind::AnyKind};

/// Declaration of a setting.
pub(crate) struct Setting {
    /// `section.name`: in the file `name` under `[section]`, in the environment `GUILDHALL__SECTION__NAME`. A section
    /// may have subsections (`api.tls`), which come after the settings of the section itself.
    pub(crate) path: &'static str,
    pub(crate) kind: &'static dyn AnyKind,
    /// The default, written as in the file. `None`: the setting has no value unless it is set.
    pub(crate) default: Option<&'static str>,
    pub(crate) attributes: &'static [Attribute],
}

/// An attribute of a declaration.
pub(crate) enum Attribute {
    /// A line of the description.
    Doc(&'static str),
    /// A reload applies the setting to a running process; others need a restart.
    Reloadable,
}

/// What a declared struct consists of.
pub(crate) enum Item {
    Setting(Setting),
    Section(&'static [Item]),
}

/// All settings, in the order in which they are displayed.
pub(crate) static SCHEMA: LazyLock<Vec<&'static Setting>> = LazyLock::new(|| flatten(Settings::ITEMS).collect());

fn flatten(items: &'static [Item]) -> Box<dyn Iterator<Item = &'static Setting>> {
    Box::new(items.iter().flat_map(|item| match item {
        Item::Setting(setting) => Box::new(std::iter::once(setting)),
        Item::Section(items) => flatten(items),
    }))
}

/// Suffix of the name of a secret's file form.
const FILE_SUFFIX: &str = "_file";

/// A setting name, found in the schema.
#[derive(Clone, Copy)]
pub(crate) enum Named {
    /// The setting itself.
    Value(&'static Setting),
    /// The path of a file that contains the secret.
    SecretFile(&'static Setting),
}

impl Setting {
    /// Description of the setting.
    pub(crate) fn help(&self) -> String {
        let lines = self.attributes.iter().filter_map(|attribute| match attribute {
            Attribute::Doc(line) => Some(line.trim()),
            Attribute::Reloadable => None,
        });
        lines.collect::<Vec<_>>().join(" ")
    }

    /// Whether a reload applies it to a running process.
    pub(crate) fn reloads(&self) -> bool {
        self.attributes.iter().any(|attribute| matches!(attribute, Attribute::Reloadable))
    }

    /// Name of the file form, if the setting is a secret.
    pub(crate) fn file_form(&self) -> Option<String> {
        self.kind.is_secret().then(|| format!("{}{FILE_SUFFIX}", self.path))
    }

    /// The section, and the name in it.
    pub(crate) fn section_and_name(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').expect("invariant: every path in the schema is section.name")
    }
}

/// Returns the environment variable of a dotted path.
pub(crate) fn env_name(path: &str) -> String {
    format!("GUILDHALL__{}", path.to_uppercase().replace('.', "__"))
}

/// Finds a dotted path in the schema.
pub(crate) fn find(path: &str) -> Option<Named> {
    SCHEMA.iter().find_map(|setting| {
        if setting.path == path {
            Some(Named::Value(setting))
        } else if setting.file_form().is_some_and(|form| form == path) {
            Some(Named::SecretFile(setting))
        } else {
            None
        }
    })
}

/// Whether this is the name of a section or of a section with subsections.
pub(crate) fn is_section(name: &str) -> bool {
    let is_under = |path: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    SCHEMA.iter().any(|setting| is_under(setting.path))
}

/// Returns the known path that is most similar to an unknown one, if any is similar enough.
pub(crate) fn nearest(path: &str) -> Option<String> {
    let names = SCHEMA.iter().flat_map(|setting| [Some(setting.path.to_owned()), setting.file_form()]).flatten();
    nearest_of(path, names)
}

/// Returns the candidate that is most similar to `unknown`, if any is similar enough.
pub(crate) fn nearest_of(unknown: &str, candidates: impl Iterator<Item = String>) -> Option<String> {
    // Jaro-Winkler favours a common prefix, which fits typical typos; below 0.8 a suggestion misleads more than it
    // helps.
    candidates
        .map(|candidate| (strsim::jaro_winkler(unknown, &candidate), candidate))
        .filter(|(similarity, _)| *similarity >= 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_path_is_suggested_for_a_typo() {
        assert_eq!(nearest("discord.tokn").as_deref(), Some("discord.token"));
        assert_eq!(nearest("gatway.shards").as_deref(), Some("gateway.shards"));
        assert_eq!(nearest("zzz.qqq"), None);
    }

    #[test]
    fn sections_may_nest_and_are_contiguous() {
        for section in ["api", "api.tls", "log"] {
            assert!(is_section(section), "{section}");
        }
        for other in ["ap", "api.bind", "api.tl", "tls", ""] {
            assert!(!is_section(other), "{other}");
        }
        let mut sections: Vec<_> = SCHEMA.iter().map(|setting| setting.section_and_name().0).collect();
        sections.dedup();
        let begun = sections.len();
        sections.sort_unstable();
        sections.dedup();
        assert_eq!(sections.len(), begun, "a TOML file could not have them in this order");
    }

    #[test]
    fn a_secret_has_a_file_form_and_nothing_else_has() {
        let file_form = find("discord.token_file");
        assert!(matches!(file_form, Some(Named::SecretFile(setting)) if setting.path == "discord.token"));
        assert!(find("api.bind_file").is_none());
    }
}
