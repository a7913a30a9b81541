//! `/applications/{application.id}/commands` and the same for one guild: application commands.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::access;
use super::call::{Call, Effect, Reply, Verb};
use super::command_options;
use super::error::ApiError;
use super::form::{Field, Form, query_flag};
use crate::id::Snowflake;
use crate::time::At;
use crate::world::World;
use crate::world::command::Command;

const CHAT_INPUT: u8 = 1;
/// Maximum number of commands of each kind, globally or in one guild.
const MAX_COMMANDS: [(u8, usize); 3] = [(CHAT_INPUT, 100), (2, 15), (3, 15)];
/// Maximum number of commands in one overwrite.
const MAX_OVERWRITE: usize = 130;
/// Fields that are stored unchanged.
const STORED_FIELDS: &[&str] = &[
    "options",
    "default_member_permissions",
    "dm_permission",
    "contexts",
    "integration_types",
    "nsfw",
    "name_localizations",
    "description_localizations",
];

/// The application of a call, and the guild if the commands are those of one guild.
#[derive(Clone, Copy)]
struct Scope {
    application: Snowflake,
    guild: Option<Snowflake>,
}

fn scope(world: &World, call: &Call<'_>) -> Result<Scope, ApiError> {
    let application = call.params.id("application.id")?;
    if call.caller != Some(application) {
        let exists = world.bot(application).is_some();
        return Err(if exists { ApiError::NOT_YOUR_APPLICATION } else { ApiError::UNKNOWN_APPLICATION });
    }
    let guild = match call.params.text("guild.id") {
        "" => None,
        _ => Some(access::in_guild(world, call)?.guild),
    };
    Ok(Scope { application, guild })
}

fn commands_in(world: &mut World, scope: Scope) -> Result<&mut Vec<Command>, ApiError> {
    match scope.guild {
        Some(guild) => Ok(&mut access::guild_mut(world, guild)?.commands),
        None => Ok(&mut world.commands),
    }
}

/// Fields of a command in a form.
struct CommandForm {
    kind: u8,
    name: String,
    description: String,
    rest: Map<String, Value>,
}

impl CommandForm {
    fn read(form: &mut Form<'_>) -> Self {
        let kind = form.choice("type", &[CHAT_INPUT, 2, 3]).value().unwrap_or(CHAT_INPUT);
        let name = form.string("name", 1..=32);
        if let Field::Given(name) = name
            && kind == CHAT_INPUT
            && !command_options::is_valid_name(name)
        {
            form.add_error("name", "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid");
        }
        let name = form.required("name", name).unwrap_or_default().to_owned();
        let max_length = if kind == CHAT_INPUT { 100 } else { 0 };
        let description = form.string("description", usize::from(kind == CHAT_INPUT)..=max_length);
        let description = match kind {
            CHAT_INPUT => form.required("description", description).unwrap_or_default(),
            _ => description.value().unwrap_or_default(),
        };
        command_options::read(form);
        let mut rest = Map::new();
        for key in STORED_FIELDS {
            if let Field::Given(value) = form.raw(key) {
                rest.insert((*key).to_owned(), value.clone());
            }
        }
        // Always present, even if null.
        rest.entry("default_member_permissions").or_insert(Value::Null);
        Self { kind, name, description: description.to_owned(), rest }
    }

    fn build(self, world: &mut World, scope: Scope, id: Option<Snowflake>, now: At) -> Command {
        let version = world.mint.generate(now);
        Command {
            id: id.unwrap_or(version),
            application_id: scope.application,
            version,
            kind: self.kind,
            name: self.name,
            description: self.description,
            guild_id: scope.guild,
            rest: self.rest,
        }
    }
}

pub(crate) fn list(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let scope = scope(world, call)?;
    let all = commands_in(world, scope)?;
    let own = all.iter().filter(|command| command.application_id == scope.application);
    if query_flag(call, "with_localizations") {
        return Ok(Reply::ok(&own.collect::<Vec<_>>()));
    }
    Ok(Reply::ok(&own.map(without_localizations).collect::<Vec<_>>()))
}

/// The command in a listing without localizations.
fn without_localizations(command: &Command) -> Value {
    let mut value = serde_json::to_value(command).expect("invariant: a command is JSON");
    remove_localizations(&mut value);
    value
}

fn remove_localizations(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    fields.retain(|name, _| !name.ends_with("_localizations"));
    for list in ["options", "choices"] {
        fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(remove_localizations);
    }
}

/// Maximum number of commands of a kind.
fn max_commands(kind: u8) -> usize {
    MAX_COMMANDS.iter().find(|(one, _)| *one == kind).map_or(0, |(_, max)| *max)
}

pub(crate) fn get(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let scope = scope(world, call)?;
    let id = call.params.id("command.id")?;
    let mut all = commands_in(world, scope)?.iter();
    let found = all.find(|command| command.id == id && command.application_id == scope.application);
    Ok(Reply::ok(found.ok_or(ApiError::UNKNOWN_COMMAND)?))
}

/// Creates a command, or replaces the one with the same name and kind.
pub(crate) fn create(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let scope = scope(world, call)?;
    let mut form = Form::of(call)?;
    let fields = CommandForm::read(&mut form);
    form.finish()?;
    let all = commands_in(world, scope)?;
    let same = all.iter().position(|command| command.is_same(scope.application, fields.kind, &fields.name));
    let same_kind =
        all.iter().filter(|command| command.application_id == scope.application && command.kind == fields.kind);
    if same.is_none() && same_kind.count() >= max_commands(fields.kind) {
        return Err(ApiError::MAX_COMMANDS);
    }
    let id = same.map(|index| all[index].id);
    let command = fields.build(world, scope, id, call.now);
    let all = commands_in(world, scope)?;
    let (status, verb) = match same {
        Some(index) => {
            all[index] = command.clone();
            (StatusCode::OK, Verb::Update)
        }
        None => {
            all.push(command.clone());
            (StatusCode::CREATED, Verb::Create)
        }
    };
    let effect = Effect::new(verb, "command", scope.guild, command.id, &command.name);
    Ok(Reply::json(status, &command).with_effect(effect))
}

pub(crate) fn delete(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let scope = scope(world, call)?;
    let id = call.params.id("command.id")?;
    let all = commands_in(world, scope)?;
    let found = all.iter().position(|command| command.id == id && command.application_id == scope.application);
    let deleted = all.remove(found.ok_or(ApiError::UNKNOWN_COMMAND)?);
    Ok(Reply::no_content().with_effect(Effect::new(Verb::Delete, "command", scope.guild, id, &deleted.name)))
}

/// Replaces all commands at once; a command with an unchanged name and kind keeps its id.
pub(crate) fn overwrite(world: &mut World, call: &Call<'_>) -> Result<Reply, ApiError> {
    let scope = scope(world, call)?;
    let wrap = json!({ "list": call.list()? });
    let mut form = Form::new(wrap.as_object().expect("invariant: built as an object"));
    let mut read: Vec<CommandForm> = Vec::new();
    for (index, item) in form.list("list", MAX_OVERWRITE).value().unwrap_or_default().iter().enumerate() {
        let Some(command) = form.nested(&index.to_string(), item, CommandForm::read) else { continue };
        if read.iter().any(|other| other.kind == command.kind && other.name == command.name) {
            let message = "Application command names must be unique";
            form.add_error(&format!("{index}.name"), "APPLICATION_COMMANDS_DUPLICATE_NAME", message);
        }
        read.push(command);
    }
    form.finish()?;
    let too_many = |(kind, max): &(u8, usize)| read.iter().filter(|command| command.kind == *kind).count() > *max;
    if MAX_COMMANDS.iter().any(too_many) {
        return Err(ApiError::MAX_COMMANDS);
    }
    let old: Vec<Command> =
        commands_in(world, scope)?.extract_if(.., |command| command.application_id == scope.application).collect();
    let mut new = Vec::with_capacity(read.len());
    for command in read {
        let same = old.iter().find(|old| old.is_same(scope.application, command.kind, &command.name));
        new.push(command.build(world, scope, same.map(|old| old.id), call.now));
    }
    commands_in(world, scope)?.extend(new.iter().cloned());
    let names = new.iter().map(|command| command.name.as_str()).collect::<Vec<_>>().join(" ");
    let effect = Effect::new(Verb::Update, "commands", scope.guild, scope.application, &names);
    Ok(Reply::ok(&new).with_effect(effect))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::rest::testing::RestFixture;
    use crate::world::fire::InteractionSpec;

    #[test]
    fn overwrite_replaces_all_and_keeps_ids_of_unchanged_names() {
        let mut fixture = RestFixture::new();
        let path = format!("/applications/{}/commands", fixture.application);
        let command = |name: &str| json!({ "name": name, "description": "does it" });
        let first = fixture.put(&path, json!([command("one"), command("two")])).json;
        let second = fixture.put(&path, json!([command("two"), command("three")])).json;
        assert_eq!(second[0]["id"], first[1]["id"]);
        assert_ne!(second[0]["version"], first[1]["version"]);
        let names: Vec<_> = fixture.get(&path).json.as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert_eq!(names, ["two", "three"]);
        assert_eq!(second[0]["default_member_permissions"], json!(null));
    }

    #[test]
    fn guild_command_is_separate_and_fires_with_its_id() {
        let mut fixture = RestFixture::new();
        let path = format!("/applications/{}/guilds/{}/commands", fixture.application, fixture.guild);
        let made = fixture.post(&path, json!({ "name": "setup", "description": "sets up", "options": [] }));
        assert_eq!((made.status, &made.json["guild_id"]), (201, &json!(fixture.guild)));
        let again = fixture.post(&path, json!({ "name": "setup", "description": "other" }));
        assert_eq!((again.status, again.id()), (200, made.id()));
        let global = format!("/applications/{}/commands", fixture.application);
        assert_eq!(fixture.get(&global).json, json!([]));
        let spec = InteractionSpec { name: Some("setup".into()), ..InteractionSpec::default() };
        let fired = fixture.world.create_interaction(&spec, fixture.now).unwrap();
        let data = serde_json::from_slice::<serde_json::Value>(&fired.data).unwrap()["data"].clone();
        assert_eq!((&data["id"], &data["guild_id"]), (&made.json["id"], &json!(fixture.guild)));
        let one = format!("{path}/{}", made.id());
        assert_eq!(fixture.get(&one).json["description"], "other");
        assert_eq!(fixture.delete(&one).status, 204);
        assert_eq!(fixture.delete(&one).code(), 10063);
    }

    #[test]
    fn localizations_are_listed_on_request() {
        let mut fixture = RestFixture::new();
        let path = format!("/applications/{}/commands", fixture.application);
        let option = json!({ "type": 3, "name": "a", "description": "x", "name_localizations": { "de": "b" } });
        let command =
            json!({ "name": "say", "description": "x", "name_localizations": { "de": "sag" }, "options": [option] });
        fixture.put(&path, json!([command]));
        let plain = fixture.get(&path).json;
        assert!(
            plain[0].get("name_localizations").is_none() && plain[0]["options"][0].get("name_localizations").is_none()
        );
        let all = fixture.get(&format!("{path}?with_localizations=true")).json;
        assert_eq!(all[0]["name_localizations"], json!({ "de": "sag" }));
        assert_eq!(all[0]["options"][0]["name_localizations"], json!({ "de": "b" }));
    }

    #[test]
    fn invalid_options_are_refused_with_their_path() {
        let mut fixture = RestFixture::new();
        let path = format!("/applications/{}/commands", fixture.application);
        let option = |kind: u8, name: &str, required: bool| json!({ "type": kind, "name": name, "description": "x", "required": required });
        let command = |options| json!([{ "name": "say", "description": "x", "options": options }]);
        let mut code = |options, field_path: &str| {
            let refused = fixture.put(&path, command(options)).json;
            refused.pointer(&format!("/errors/0/options/{field_path}/_errors/0/code")).cloned().unwrap_or_default()
        };
        assert_eq!(code(json!([option(3, "Big", false)]), "0/name"), "APPLICATION_COMMAND_INVALID_NAME");
        let mixed = json!([option(1, "a", false), option(3, "b", false)]);
        assert_eq!(code(mixed, "1"), "APPLICATION_COMMAND_OPTIONS_TYPE_INVALID");
        let late = json!([option(3, "a", false), option(3, "b", true)]);
        assert_eq!(code(late, "1"), "APPLICATION_COMMAND_OPTIONS_REQUIRED_INVALID");
        assert_eq!(code(json!([option(12, "a", false)]), "0/type"), "BASE_TYPE_CHOICES");
        let nested = json!([{ "type": 1, "name": "a", "description": "x", "options": [{ "type": 3 }] }]);
        assert_eq!(code(nested, "0/options/0/name"), "BASE_TYPE_REQUIRED");
        assert_eq!(code(json!([option(3, "a", true), option(4, "b", false)]), "0"), json!(null));
    }

    #[test]
    fn bad_commands_and_foreign_applications_are_refused() {
        let mut fixture = RestFixture::new();
        let path = format!("/applications/{}/commands", fixture.application);
        assert_eq!(fixture.post(&path, json!({ "name": "no description" })).code(), 50035);
        let twice = json!({ "name": "x", "description": "x" });
        let refused = fixture.put(&path, json!([twice, twice, {}]));
        assert!(refused.json["errors"]["1"]["name"].is_object() && refused.json["errors"]["2"]["name"].is_object());
        assert_eq!(fixture.get("/applications/5/commands").code(), 10002);
    }
}
