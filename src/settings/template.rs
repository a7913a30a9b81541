//! The settings file with all settings, each commented out with its default.

use std::fmt::Write as _;

use super::schema::SCHEMA;

/// Returns the text that `guildhall config template` prints. `config/guildhall.toml` is this text.
pub fn template() -> String {
    let mut text = String::from(
        "# Guildhall's settings. Every setting is listed, commented out with its default.\n\
         # The environment (GUILDHALL__SECTION__NAME) overrides this file, and flags override both.\n\
         # `guildhall config check` prints the effective settings and where they came from.\n",
    );
    let mut section = "";
    for setting in SCHEMA.iter() {
        let (its_section, name) = setting.section_and_name();
        if its_section != section {
            section = its_section;
            push(&mut text, format_args!("\n[{section}]\n"));
        }
        push(&mut text, format_args!("\n"));
        for line in wrap(&format!("{} Allowed: {}.", setting.help(), setting.kind.allowed()), 100) {
            push(&mut text, format_args!("# {line}\n"));
        }
        push(&mut text, format_args!("#{name} = {}\n", setting.default.unwrap_or("\"\"")));
        if setting.file_form().is_some() {
            push(&mut text, format_args!("#{name}_file = \"\"\n"));
        }
    }
    text
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("invariant: writing to a String cannot fail");
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
