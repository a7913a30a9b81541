use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn commands(value: &Value) -> Commands {
    Commands::read(value).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// The errors: field and message.
fn errors_of(value: &Value) -> Vec<(String, String)> {
    let errors = Commands::read(value).unwrap_err();
    errors.into_iter().map(|error| (error.field, error.message)).collect()
}

/// Asserts that exactly these fields are invalid, and that each message contains this text.
#[track_caller]
fn expect_errors(value: &Value, expected: &[(&str, &str)]) {
    let mut found = errors_of(value);
    for (field, expected_message) in expected {
        let at = found.iter().position(|(at, message)| at == field && message.contains(expected_message));
        let at = at.unwrap_or_else(|| panic!("no {field}: {expected_message} in {found:#?}"));
        found.remove(at);
    }
    assert!(found.is_empty(), "and also {found:#?}");
}

fn slash(fields: Value) -> Value {
    let mut command = json!({ "name": "ban", "description": "Bans somebody" });
    let Value::Object(fields) = fields else { panic!("expected an object: {fields}") };
    command.as_object_mut().unwrap().extend(fields);
    json!([command])
}

#[test]
fn file_is_a_list_or_object_and_types_are_names_or_numbers() {
    let by_name = json!({ "commands": [
        { "name": "say", "description": "Says it", "type": "CHAT_INPUT", "contexts": ["guild"], "options": [
            { "type": "channel", "name": "where", "description": "Where", "channel_types": ["guild_voice", "guild_text"] },
        ] },
        { "name": "Report it", "type": "message" },
    ] });
    let by_number = json!([
        { "name": "say", "description": "Says it", "contexts": [0], "options": [
            { "type": 7, "name": "where", "description": "Where", "channel_types": [0, 2], "required": false },
        ] },
        { "name": "Report it", "type": 3, "description": "", "options": [], "nsfw": false },
    ]);
    assert_eq!(commands(&by_name), commands(&by_number));
    assert_eq!(commands(&json!([])), Commands::default());
    expect_errors(&json!("ban"), &[("commands", "is missing")]);
    expect_errors(&json!({}), &[("commands", "is missing")]);
}

#[test]
fn all_errors_are_reported_with_their_fields() {
    let file = json!([
        { "name": "Big Name", "description": "" },
        { "name": "fine", "description": "Fine", "type": "chat", "descripton": "x" },
        { "name": "two", "description": "Two", "nsfw": "yes", "default_member_permissions": "admin", "options": [
            { "type": "string", "name": "UPPER", "description": "x", "min_length": 9, "max_length": 3 },
            { "type": "user", "name": "b", "description": "x", "required": true, "choices": [{ "name": "a", "value": 1 }] },
            { "type": "integer", "name": "b", "description": "x", "choices": [{ "name": "a", "value": "1" }], "autocomplete": true },
        ] },
        { "name": "fine", "description": "again", "name_localizations": { "de": "Groß", "deutsch": "fein" } },
    ]);
    expect_errors(
        &file,
        &[
            ("commands[0].name", "letters, digits"),
            ("commands[0].description", "1 to 100 characters"),
            ("commands[1].type", "`chat_input`"),
            ("commands[1].descripton", "did you mean `description`?"),
            ("commands[2].nsfw", "true or false"),
            ("commands[2].default_member_permissions", "permission bits"),
            ("commands[2].options[0].name", "write `upper`"),
            ("commands[2].options[0].max_length", "less than `min_length`"),
            ("commands[2].options[1].required", "to the front"),
            ("commands[2].options[1].choices", "string, integer and number options"),
            ("commands[2].options[2].name", "another entry"),
            ("commands[2].options[2].choices[0].value", "whole number"),
            ("commands[3].name", "another command"),
            ("commands[3].name_localizations.de", "write `groß`"),
            ("commands[3].name_localizations.deutsch", "not a locale"),
        ],
    );
}

#[test]
fn sub_commands_are_only_in_commands_and_groups() {
    let sub = |name: &str, options: Value| json!({ "type": 1, "name": name, "description": "x", "options": options });
    let value = json!({ "type": 3, "name": "value", "description": "x" });
    let group = |options: Value| json!({ "type": "sub_command_group", "name": "group", "description": "x", "options": options });
    commands(&slash(json!({ "options": [group(json!([sub("a", json!([value]))])), sub("b", json!([]))] })));
    expect_errors(
        &slash(json!({ "options": [sub("a", json!([])), value] })),
        &[("commands[0].options[1].type", "either")],
    );
    expect_errors(
        &slash(json!({ "options": [group(json!([value, group(json!([]))]))] })),
        &[
            ("commands[0].options[0].options[0].type", "only sub-commands"),
            ("commands[0].options[0].options[0].type", "either sub-commands and groups, or values"),
            ("commands[0].options[0].options[1].type", "only sub-commands"),
        ],
    );
    expect_errors(
        &slash(json!({ "options": [sub("a", json!([sub("b", json!([]))]))] })),
        &[("commands[0].options[0].options[0].type", "cannot contain sub-commands")],
    );
    expect_errors(
        &slash(json!({ "options": [{ "type": 1, "name": "a", "description": "x", "required": true }] })),
        &[("commands[0].options[0].required", "never required")],
    );
}

#[test]
fn names_are_lower_case_in_any_script() {
    for name in ["ping", "a-b_c'd", "größe", "設定", "नमस्ते", "สวัสดี", "0"] {
        commands(&json!([{ "name": name, "description": "x" }]));
    }
    for name in ["", "Ping", "a b", "a.b", "/ping", "größe!", "É", &"x".repeat(33)] {
        assert_eq!(errors_of(&json!([{ "name": name, "description": "x" }])).len(), 1, "{name}");
    }
    commands(&json!([{ "name": "Report It!", "type": "user" }]));
    expect_errors(
        &json!([{ "name": "x", "type": 2, "description": "y", "options": [{ "type": 3, "name": "a", "description": "b" }] }]),
        &[
            ("commands[0].description", "user commands have none"),
            ("commands[0].options", "are only for slash commands"),
        ],
    );
}

#[test]
fn commands_options_choices_and_characters_are_limited() {
    let many = |count: usize, kind: u8| -> Value {
        let command = |n: usize| match kind {
            1 => json!({ "name": format!("n{n}"), "description": "x" }),
            _ => json!({ "name": format!("n{n}"), "type": kind }),
        };
        (0..count).map(command).collect()
    };
    assert_eq!((commands(&many(100, 1)).len(), commands(&many(15, 2)).len()), (100, 15));
    expect_errors(&many(101, 1), &[("commands", "at most 100 slash commands")]);
    expect_errors(&many(16, 3), &[("commands", "at most 15 message commands")]);
    let option = |n: usize| json!({ "type": 3, "name": format!("o{n}"), "description": "x" });
    let options = |count: usize| slash(json!({ "options": (0..count).map(option).collect::<Value>() }));
    commands(&options(25));
    expect_errors(&options(26), &[("commands[0].options", "found 26")]);
    let choice = |n: usize, length| json!({ "name": format!("c{n}"), "value": "x".repeat(length) });
    let choices = |count: usize, length: usize| {
        slash(json!({ "options": [
            { "type": 3, "name": "o", "description": "x", "choices": (0..count).map(|n| choice(n, length)).collect::<Value>() },
        ] }))
    };
    commands(&choices(19, 400));
    expect_errors(&choices(20, 400), &[("commands[0]", "at most 8000 characters")]);
    expect_errors(&choices(26, 4), &[("commands[0].options[0].choices", "found 26")]);
}

/// A command as Discord returns it.
fn discord_command(id: u64, fields: Value) -> Value {
    let mut command = json!({
        "id": id.to_string(), "application_id": "5", "version": "77", "default_member_permissions": null, "type": 1,
        "name": "ban", "name_localizations": null, "description": "Bans somebody", "description_localizations": null,
        "dm_permission": true, "contexts": null, "integration_types": [0], "nsfw": false,
    });
    let Value::Object(fields) = fields else { panic!("expected an object: {fields}") };
    command.as_object_mut().unwrap().extend(fields);
    command
}

fn plan_for(file: &Value, there: &[Value]) -> CommandPlan {
    plan(&commands(file), there, CommandScope::Global)
}

#[test]
fn defaults_and_added_fields_make_no_difference() {
    let there = discord_command(
        1,
        json!({ "options": [
        { "type": 4, "name": "days", "description": "How many", "min_value": 1.0, "name_localizations": null },
    ] }),
    );
    let file = slash(json!({ "type": "chat_input", "nsfw": false, "default_member_permissions": null, "options": [
        { "type": "integer", "name": "days", "description": "How many", "required": false, "min_value": 1, "choices": [] },
    ] }));
    let plan = plan_for(&file, std::slice::from_ref(&there));
    assert_eq!(plan.changes, [CommandChange::Same { label: "/ban".to_owned() }]);
    assert!(!plan.is_needed());
    assert!(!plan_for(&json!([there.clone()]), &[there]).is_needed(), "a file made from Discord's response");
}

#[test]
fn changed_fields_are_listed() {
    let option = |required: bool, choices: Value| {
        json!({
            "type": 3, "name": "why", "description": "Why", "required": required, "choices": choices,
        })
    };
    let there = [
        discord_command(1, json!({ "options": [option(false, json!([{ "name": "a", "value": "a" }]))], "nsfw": true })),
        discord_command(2, json!({ "name": "old" })),
        discord_command(3, json!({ "name": "Old", "type": 2, "description": "" })),
    ];
    let mut file = slash(json!({
        "description": "Bans them", "default_member_permissions": 4,
        "options": [option(true, json!([{ "name": "b", "value": "a" }, { "name": "c", "value": "c" }]))],
    }));
    file.as_array_mut().unwrap().push(json!({ "name": "new", "description": "New" }));
    let plan = plan_for(&file, &there);
    let fields = [
        "description",
        "nsfw",
        "options[0].choices[0].name",
        "options[0].choices[1]",
        "options[0].required",
        "default_member_permissions",
    ];
    assert_eq!(
        plan.changes,
        [
            CommandChange::Changed { label: "/ban".to_owned(), fields: fields.map(str::to_owned).to_vec() },
            CommandChange::Created { label: "/new".to_owned() },
            CommandChange::Removed { label: "/old".to_owned() },
            CommandChange::Removed { label: "user command Old".to_owned() },
        ]
    );
    assert_eq!(plan.body.as_array().unwrap().len(), 2);
    assert_eq!(plan.body[0]["default_member_permissions"], "4");
    assert_eq!(plan.body[1], json!({ "type": 1, "name": "new", "description": "New" }));
}

#[test]
fn omitted_contexts_stay_unchanged() {
    let there = [discord_command(1, json!({ "contexts": [0, 1], "integration_types": [1, 0] }))];
    let unsaid = plan_for(&slash(json!({ "nsfw": true })), &there);
    assert_eq!(unsaid.body[0]["contexts"], json!([0, 1]));
    assert_eq!(unsaid.body[0]["integration_types"], json!([0, 1]));
    let fields = vec!["nsfw".to_owned()];
    assert_eq!(unsaid.changes, [CommandChange::Changed { label: "/ban".to_owned(), fields }]);
    let changed = plan_for(&slash(json!({ "contexts": ["guild"] })), &there);
    assert_eq!(
        changed.changes,
        [CommandChange::Changed { label: "/ban".to_owned(), fields: vec!["contexts".to_owned()] }]
    );

    // Guild commands do not have these fields.
    let in_guild = plan(&commands(&slash(json!({ "contexts": [0] }))), &there, CommandScope::Guild(3));
    assert!(!in_guild.is_needed() && in_guild.body[0].get("contexts").is_none(), "{in_guild:?}");
}

#[test]
fn entry_point_stays_without_a_file_entry() {
    let there = [discord_command(9, json!({ "name": "launch", "type": 4, "handler": 2 }))];
    let plan = plan_for(&json!([]), &there);
    assert_eq!(plan.changes, [CommandChange::Same { label: "entry point launch".to_owned() }]);
    assert_eq!((&plan.body[0]["id"], &plan.body[0]["handler"]), (&json!("9"), &json!(2)));
}

fn any_option() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec!["a", "b", "c"]);
    (names, 3..=11u8, any::<bool>(), "[a-z ]{1,9}").prop_map(
        |(name, kind, required, text)| json!({ "name": name, "type": kind, "required": required, "description": text }),
    )
}

fn any_command() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec!["one", "two", "three"]);
    let options = prop::collection::vec(any_option(), 0..3);
    (names, "[a-z]{1,5}", options, any::<bool>(), prop::option::of(0..9u64)).prop_map(
        |(name, text, options, nsfw, bits)| {
            json!({ "name": name, "description": text, "options": options, "nsfw": nsfw, "default_member_permissions": bits })
        },
    )
}

proptest! {
    #[test]
    fn applied_plan_leaves_no_changes(
        file in prop::collection::vec(any_command(), 0..4),
        there in prop::collection::vec(any_command(), 0..4),
    ) {
        let Ok(wanted) = Commands::read(&Value::Array(file)) else { return Ok(()) };
        let there: Vec<Value> = there.into_iter().zip(1..).map(|(command, id)| discord_command(id, command)).collect();
        let first = plan(&wanted, &there, CommandScope::Global);
        // As Discord would store it: with ids and defaults.
        let kept: Vec<Value> =
            first.body.as_array().unwrap().iter().zip(100..).map(|(command, id)| discord_command(id, command.clone())).collect();
        let second = plan(&wanted, &kept, CommandScope::Global);
        prop_assert!(!second.is_needed(), "{:?}", second.changes);
        prop_assert_eq!(kept.len(), wanted.len());
    }
}
