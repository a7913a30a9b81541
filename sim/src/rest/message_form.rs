//! The fields of a message: one form for new messages, edits, and responses to interactions.

use std::sync::Arc;

use serde_json::{Value, json};

use super::attachment_form::AttachmentsForm;
use super::call::Call;
use super::error::ApiError;
use super::form::{Field, Form};
use crate::id::Snowflake;
use crate::world::World;
use crate::world::message::{COMPONENTS_V2, EPHEMERAL, Message, SUPPRESS_EMBEDS, SUPPRESS_NOTIFICATIONS};

const MAX_CONTENT: usize = 2_000;
const MAX_EMBEDS: usize = 10;
/// Maximum text length of all embeds of a message together.
const MAX_EMBED_TEXT: usize = 6_000;
/// Maximum number of top-level components of the newer kind; the older kind has five rows.
const MAX_COMPONENTS: usize = 40;

/// Fields of a message in a form.
#[derive(Debug)]
pub(crate) struct MessageForm {
    pub(crate) content: Field<String>,
    pub(crate) embeds: Field<Vec<Value>>,
    pub(crate) components: Field<Vec<Value>>,
    pub(crate) flags: Field<u64>,
    pub(crate) tts: bool,
    attachments: AttachmentsForm,
    allowed: Field<AllowedMentions>,
}

/// Users and roles that a message may ping.
#[derive(Clone, Debug)]
struct AllowedMentions {
    everyone: bool,
    users: Allowed,
    roles: Allowed,
}

#[derive(Clone, Debug)]
enum Allowed {
    All,
    Only(Vec<Snowflake>),
}

impl Allowed {
    fn allows(&self, id: Snowflake) -> bool {
        match self {
            Self::All => true,
            Self::Only(ids) => ids.contains(&id),
        }
    }
}

impl MessageForm {
    /// Reads the fields of a message; errors are added to the form.
    pub(crate) fn read(form: &mut Form<'_>) -> Self {
        Self {
            content: form.string("content", 0..=MAX_CONTENT).map(|content| content.trim().to_owned()),
            embeds: embeds(form),
            components: components(form),
            flags: form.bits("flags"),
            tts: form.boolean("tts").value().unwrap_or(false),
            attachments: AttachmentsForm::read(form),
            allowed: allowed_mentions(form),
        }
    }

    /// Applies the form, and the files of the call, to a new or edited message.
    pub(crate) fn apply(self, world: &mut World, call: &Call<'_>, message: &mut Message) -> Result<(), ApiError> {
        const SETTABLE: u64 = SUPPRESS_EMBEDS | SUPPRESS_NOTIFICATIONS | COMPONENTS_V2 | EPHEMERAL;
        match self.content {
            Field::Absent => {}
            Field::Null => message.content.clear(),
            Field::Given(content) => message.content = content,
        }
        match self.embeds {
            Field::Absent => {}
            Field::Null => message.embeds.clear(),
            Field::Given(embeds) => message.embeds = embeds,
        }
        match self.components {
            Field::Absent => {}
            Field::Null => message.components.clear(),
            Field::Given(components) => message.components = components,
        }
        if let Field::Given(flags) = self.flags {
            message.flags = message.flags & !SETTABLE | flags & SETTABLE;
        }
        message.tts |= self.tts;
        let attachments = self.attachments.plan(call, message)?;
        let is_bare = message.content.is_empty() && message.embeds.is_empty() && message.components.is_empty();
        if is_bare && attachments.count() == 0 {
            return Err(ApiError::EMPTY_MESSAGE);
        }
        find_mentions(world, message, self.allowed.value().as_ref());
        attachments.apply(world, message);
        Ok(())
    }
}

fn embeds(form: &mut Form<'_>) -> Field<Vec<Value>> {
    let given = match form.list("embeds", MAX_EMBEDS) {
        Field::Absent => return Field::Absent,
        Field::Null => return Field::Null,
        Field::Given(given) => given,
    };
    let mut text = 0;
    let mut stored = Vec::with_capacity(given.len());
    for (index, embed) in given.iter().enumerate() {
        text += form.nested(&format!("embeds.{index}"), embed, embed_text).unwrap_or(0);
        let mut embed = embed.clone();
        if let Some(fields) = embed.as_object_mut() {
            fields.insert("type".into(), json!("rich"));
            for field in fields.get_mut("fields").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(field) = field.as_object_mut() {
                    field.entry("inline").or_insert(json!(false));
                }
            }
        }
        stored.push(embed);
    }
    if text > MAX_EMBED_TEXT {
        form.add_error("embeds", "MAX_EMBED_SIZE_EXCEEDED", "Embed size exceeds maximum size of 6000");
    }
    Field::Given(stored)
}

/// Checks the parts of an embed and counts the characters that count towards the total.
fn embed_text(embed: &mut Form<'_>) -> usize {
    let count = |field: Field<&str>| field.value().map_or(0, |text| text.chars().count());
    let mut text = count(embed.string("title", 0..=256)) + count(embed.string("description", 0..=4_096));
    embed.small("color", 0..=0xff_ff_ff);
    for (part, inner, max) in [("footer", "text", 2_048), ("author", "name", 256)] {
        if let Field::Given(value) = embed.raw(part) {
            text += embed.nested(part, value, |part| count(part.string(inner, 0..=max))).unwrap_or(0);
        }
    }
    for (index, field) in embed.list("fields", 25).value().unwrap_or_default().iter().enumerate() {
        let read = embed.nested(&format!("fields.{index}"), field, |field| {
            let (name, value) = (field.string("name", 1..=256), field.string("value", 1..=1_024));
            let lengths = count(name.clone()) + count(value.clone());
            field.required("name", name);
            field.required("value", value);
            lengths
        });
        text += read.unwrap_or(0);
    }
    text
}

/// Components are stored unchanged, each with the id that Discord assigns.
fn components(form: &mut Form<'_>) -> Field<Vec<Value>> {
    fn number(component: &mut Value, next: &mut u64) {
        let Some(fields) = component.as_object_mut() else { return };
        *next += 1;
        match fields.get("id").and_then(Value::as_u64) {
            None | Some(0) => {
                fields.insert("id".into(), json!(*next));
            }
            Some(_) => {}
        }
        for child in fields.get_mut("components").and_then(Value::as_array_mut).into_iter().flatten() {
            number(child, next);
        }
        if let Some(accessory) = fields.get_mut("accessory") {
            number(accessory, next);
        }
    }

    form.list("components", MAX_COMPONENTS).map(|given| {
        let mut stored = given.to_vec();
        let mut next = 0;
        stored.iter_mut().for_each(|component| number(component, &mut next));
        stored
    })
}

fn allowed_mentions(form: &mut Form<'_>) -> Field<AllowedMentions> {
    let Field::Given(value) = form.raw("allowed_mentions") else { return Field::Absent };
    let read = form.nested("allowed_mentions", value, |form| {
        let parse: Vec<&str> =
            form.list("parse", 3).value().unwrap_or_default().iter().filter_map(Value::as_str).collect();
        let mut allowed = |kind: &str| match form.snowflakes(kind).value() {
            None if parse.contains(&kind) => Allowed::All,
            ids => Allowed::Only(ids.unwrap_or_default()),
        };
        let (users, roles) = (allowed("users"), allowed("roles"));
        AllowedMentions { everyone: parse.contains(&"everyone"), users, roles }
    });
    read.map_or(Field::Absent, Field::Given)
}

/// Finds `<@id>`, `<@&id>` and `@everyone` in the content of a message, as far as its sender allows pings.
fn find_mentions(world: &World, message: &mut Message, allowed: Option<&AllowedMentions>) {
    message.mentions.clear();
    message.mention_roles.clear();
    let everyone = message.content.contains("@everyone") || message.content.contains("@here");
    message.mention_everyone = everyone && allowed.is_none_or(|allowed| allowed.everyone);
    for part in message.content.split("<@").skip(1) {
        let Some((inner, _)) = part.split_once('>') else { continue };
        if let Some(role) = inner.strip_prefix('&') {
            if let Ok(id) = role.parse()
                && !message.mention_roles.contains(&id)
                && allowed.is_none_or(|allowed| allowed.roles.allows(id))
            {
                message.mention_roles.push(id);
            }
        } else if let Ok(id) = inner.trim_start_matches('!').parse()
            && let Some(user) = world.users.get(&id)
            && !message.mentions.iter().any(|other| other.id == id)
            && allowed.is_none_or(|allowed| allowed.users.allows(id))
        {
            message.mentions.push(Arc::clone(user));
        }
    }
}

/// A nonce: text of at most 25 characters, or a number.
pub(crate) fn nonce(form: &mut Form<'_>) -> Option<Value> {
    match form.raw("nonce").value() {
        Some(Value::Number(number)) => Some(Value::Number(number.clone())),
        Some(_) => form.string("nonce", 0..=25).value().map(Value::from),
        None => None,
    }
}
