//! Roles, and their members.

use serde_json::json;

use super::{NAME, Nulls, PayloadDoc, permissions};
use crate::api::openapi::{
    common::snowflake,
    schema::{Describe, Field, closed, integer, list_of, must, named, text_of, truth},
};

fn role(nulls: Nulls) -> Vec<Field> {
    vec![
        must("name", text_of(1, 100).pattern(Some(NAME)).says("No white space at its start or end.")),
        nulls.may("permissions", permissions()),
        nulls.may("color", integer(0, 0xFF_FF_FF)),
        nulls.may("hoist", truth().says("Whether its members are listed separately.")),
        nulls.may("mentionable", truth()),
    ]
}

pub(crate) fn create() -> PayloadDoc {
    let nulls = Nulls::NotSaid;
    PayloadDoc {
        does: "Creates a role.",
        shape: closed(role(nulls).into_iter().chain([nulls.may("key", named("ManagedKey"))])),
        examples: vec![
            ("A role", json!({"name": "Pilots"})),
            (
                "A role that other operations may refer to",
                json!({"name": "Pilots", "key": "pilots", "permissions": "1024", "color": 0x58_65_F2, "hoist": true, "mentionable": false}),
            ),
        ],
    }
}

pub(crate) fn ensure() -> PayloadDoc {
    let nulls = Nulls::Refused;
    let own = [
        must("key", named("ManagedKey")),
        nulls.may(
            "adopt",
            truth().default(Some(false.into())).says(
                "Adopts the only role with this name that has no key, if the key has no role yet. Several such roles \
                 are a conflict.",
            ),
        ),
    ];
    PayloadDoc {
        does: "Creates the role if the key has none yet, otherwise updates it; omitted fields stay unchanged.",
        shape: closed(role(nulls).into_iter().chain(own)),
        examples: vec![(
            "A role that must exist with these properties",
            json!({"key": "mods", "name": "Moderators", "permissions": "1024", "color": 255, "hoist": true, "mentionable": true, "adopt": true}),
        )],
    }
}

pub(crate) fn delete() -> PayloadDoc {
    PayloadDoc {
        does: "Deletes a role. Succeeds if it does not exist.",
        shape: closed([must("role_id", Nulls::NotSaid.reference())]),
        examples: vec![("By key", json!({"role_id": {"key": "pilots"}}))],
    }
}

fn member_and_role() -> [Field; 2] {
    [must("user_id", snowflake().says("The member.")), must("role_id", Nulls::NotSaid.reference().says("The role."))]
}

pub(crate) fn assign() -> PayloadDoc {
    PayloadDoc {
        does: "Gives a member a role.",
        shape: closed(member_and_role()),
        examples: vec![
            ("By id", json!({"user_id": "80351110224678912", "role_id": "1571715189416398850"})),
            ("By key", json!({"user_id": "80351110224678912", "role_id": {"key": "pilots"}})),
        ],
    }
}

pub(crate) fn remove() -> PayloadDoc {
    PayloadDoc {
        does: "Removes a role from a member.",
        shape: closed(member_and_role()),
        examples: vec![("By id", json!({"user_id": "80351110224678912", "role_id": "1571715189416398850"}))],
    }
}

pub(crate) fn set() -> PayloadDoc {
    let roles = list_of(0, 250, Nulls::NotSaid.reference()).says("Without duplicates.");
    PayloadDoc {
        does: "Sets exactly these roles of a member.",
        shape: closed([must("user_id", snowflake().says("The member.")), must("role_ids", roles)]),
        examples: vec![(
            "Two roles",
            json!({"user_id": "80351110224678912", "role_ids": ["1571715189416398850", {"key": "pilots"}]}),
        )],
    }
}
