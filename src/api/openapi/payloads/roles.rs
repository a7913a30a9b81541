//! Roles, and their members.

use serde_json::json;

use super::{NAME, Nulls, PayloadDoc, permissions};
use crate::api::openapi::{
    common::snowflake,
    schema::{Describe, Field, boolean, closed, integer, list_of, required, schema_ref, text_of},
};

fn role(nulls: Nulls) -> Vec<Field> {
    vec![
        required("name", text_of(1, 100).pattern(Some(NAME)).describe("No white space at its start or end.")),
        nulls.optional("permissions", permissions()),
        nulls.optional("color", integer(0, 0xFF_FF_FF)),
        nulls.optional("hoist", boolean().describe("Whether its members are listed separately.")),
        nulls.optional("mentionable", boolean()),
    ]
}

pub(crate) fn create() -> PayloadDoc {
    let nulls = Nulls::Omitted;
    PayloadDoc {
        description: "Creates a role.",
        shape: closed(role(nulls).into_iter().chain([nulls.optional("key", schema_ref("ManagedKey"))])),
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
    let nulls = Nulls::Rejected;
    let own = [
        required("key", schema_ref("ManagedKey")),
        nulls.optional(
            "adopt",
            boolean().default(Some(false.into())).describe(
                "Adopts the only role with this name that has no key, if the key has no role yet. Several such roles \
                 are a conflict.",
            ),
        ),
    ];
    PayloadDoc {
        description: "Creates the role if the key has none yet, otherwise updates it; omitted fields stay unchanged.",
        shape: closed(role(nulls).into_iter().chain(own)),
        examples: vec![(
            "A role that must exist with these properties",
            json!({"key": "mods", "name": "Moderators", "permissions": "1024", "color": 255, "hoist": true, "mentionable": true, "adopt": true}),
        )],
    }
}

pub(crate) fn delete() -> PayloadDoc {
    PayloadDoc {
        description: "Deletes a role. Succeeds if it does not exist.",
        shape: closed([required("role_id", Nulls::Omitted.reference())]),
        examples: vec![("By key", json!({"role_id": {"key": "pilots"}}))],
    }
}

fn member_and_role() -> [Field; 2] {
    [
        required("user_id", snowflake().describe("The member.")),
        required("role_id", Nulls::Omitted.reference().describe("The role.")),
    ]
}

pub(crate) fn assign() -> PayloadDoc {
    PayloadDoc {
        description: "Gives a member a role.",
        shape: closed(member_and_role()),
        examples: vec![
            ("By id", json!({"user_id": "80351110224678912", "role_id": "1571715189416398850"})),
            ("By key", json!({"user_id": "80351110224678912", "role_id": {"key": "pilots"}})),
        ],
    }
}

pub(crate) fn remove() -> PayloadDoc {
    PayloadDoc {
        description: "Removes a role from a member.",
        shape: closed(member_and_role()),
        examples: vec![("By id", json!({"user_id": "80351110224678912", "role_id": "1571715189416398850"}))],
    }
}

pub(crate) fn set() -> PayloadDoc {
    let roles = list_of(0, 250, Nulls::Omitted.reference()).describe("Without duplicates.");
    PayloadDoc {
        description: "Sets exactly these roles of a member.",
        shape: closed([required("user_id", snowflake().describe("The member.")), required("role_ids", roles)]),
        examples: vec![(
            "Two roles",
            json!({"user_id": "80351110224678912", "role_ids": ["1571715189416398850", {"key": "pilots"}]}),
        )],
    }
}
