//! `docs/cli.md`: its commands are valid, and it is complete.

use std::collections::BTreeSet;

use clap::{Command, CommandFactory as _, Parser as _};
use guildhall::cli::Cli;

const PAGE: &str = include_str!("../../../docs/cli.md");

/// The commands of the page, as a shell would pass them.
fn example_commands() -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for block in PAGE.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap().replace("\\\n", " ");
        for line in block.lines().filter_map(|line| line.trim_start().strip_prefix("$ ")) {
            // Pipes and redirections are left to the shell.
            for command in line.split(['|', '>', '<']).map(str::trim) {
                let command = command.split("KEY=").last().unwrap();
                if command.starts_with("guildhall ") {
                    commands.push(split_words(command));
                }
            }
        }
    }
    commands
}

/// The words of a command, split as a shell does.
fn split_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    assert_eq!(quote, None, "unterminated quote in {line}");
    words.extend(word);
    words
}

#[test]
fn every_command_of_the_page_is_valid() {
    let commands = example_commands();
    assert!(commands.len() > 30, "the page has too few examples: {}", commands.len());
    for words in commands {
        if let Err(error) = Cli::try_parse_from(&words) {
            panic!("{words:?}: {error}");
        }
    }
}

fn leaf_commands(command: &Command, path: &[String], found: &mut BTreeSet<String>) {
    let subcommands: Vec<_> =
        command.get_subcommands().filter(|subcommands| subcommands.get_name() != "help").collect();
    if subcommands.is_empty() || !command.is_subcommand_required_set() && !path.is_empty() {
        found.insert(path.join(" "));
    }
    for one in subcommands {
        leaf_commands(one, &[path, &[one.get_name().to_owned()]].concat(), found);
    }
}

#[test]
fn every_command_is_on_the_page() {
    let mut all = BTreeSet::new();
    leaf_commands(&Cli::command(), &[], &mut all);
    all.remove("");
    let commands: Vec<String> = example_commands().into_iter().map(|words| words[1..].join(" ")).collect();
    let missing: Vec<_> =
        all.iter().filter(|path| !commands.iter().any(|commands| commands.starts_with(path.as_str()))).collect();
    assert!(missing.is_empty(), "docs/cli.md does not show {missing:?}");
}

#[test]
fn every_option_of_api_commands_is_on_the_page() {
    let mut options = BTreeSet::new();
    let mut queue: Vec<Command> = Cli::command().get_subcommands().cloned().collect();
    queue.retain(|command| {
        matches!(
            command.get_name(),
            "ops"
                | "status"
                | "events"
                | "dlq"
                | "guilds"
                | "shards"
                | "limits"
                | "egress"
                | "breakers"
                | "budgets"
                | "keys"
                | "audit"
                | "instances"
        )
    });
    assert_eq!(queue.len(), 13);
    while let Some(command) = queue.pop() {
        options.extend(command.get_arguments().filter_map(|arg| arg.get_long().map(|long| format!("--{long}"))));
        queue.extend(command.get_subcommands().cloned());
    }
    let missing: Vec<_> = options.iter().filter(|option| !PAGE.contains(option.as_str())).collect();
    assert!(missing.is_empty(), "docs/cli.md does not mention {missing:?}");
}
