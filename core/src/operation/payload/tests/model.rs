//! Names and the objects that they may refer to: every pair of operations in every small world.

use std::collections::BTreeSet;

use super::*;
use crate::operation::OperationId;

/// What keys and earlier operations refer to. An object has at most one key; several operations may have ensured it.
#[derive(Clone, Debug)]
struct World {
    keys: [Option<u64>; 2],
    operations: [u64; 2],
}

const KEYS: [&str; 2] = ["a", "b"];
const EARLIER: [u8; 2] = [8, 9];
const IDS: [u64; 3] = [11, 12, 13];

#[derive(Clone, Copy, Debug)]
enum Name {
    Id(u64),
    Key(usize),
    Operation(usize),
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Create(Option<usize>),
    Ensure(usize),
    Delete(Name),
    Assign(u64, Name),
    DenyAccess(u64, Name),
}

/// What a deed reads and writes in a world, computed without the code under test.
#[derive(Debug, Default)]
struct Touched {
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
}

impl World {
    fn role(&self, name: Name, touched: &mut Touched) -> Option<u64> {
        match name {
            Name::Id(id) => Some(id),
            Name::Key(key) => {
                touched.reads.insert(format!("binding {key}"));
                self.keys[key]
            }
            Name::Operation(operation) => Some(self.operations[operation]),
        }
    }

    fn touched(&self, deed: Deed, own: u8) -> Touched {
        let mut touched = Touched::default();
        match deed {
            Deed::Create(key) => {
                touched.writes.insert(format!("role made by {own}"));
                touched.writes.extend(key.map(|key| format!("binding {key}")));
            }
            Deed::Ensure(key) => {
                let role = self.keys[key].map_or(format!("role made by {own}"), |id| format!("role {id}"));
                touched.writes.extend([role, format!("binding {key}")]);
            }
            Deed::Delete(name) => {
                let role = self.role(name, &mut touched);
                touched.writes.extend(role.map(|id| format!("role {id}")));
                touched.writes.extend(role.map(|id| format!("who has {id}")));
                // Deleting the object of a key also frees the key.
                if let Name::Key(key) = name {
                    touched.writes.insert(format!("binding {key}"));
                }
            }
            Deed::Assign(user, name) => {
                let role = self.role(name, &mut touched);
                touched.reads.extend(role.map(|id| format!("role {id}")));
                touched.writes.extend(role.map(|id| format!("who has {id}")));
                touched.writes.insert(format!("member {user}"));
            }
            Deed::DenyAccess(channel, name) => {
                let role = self.role(name, &mut touched);
                touched.reads.extend(role.map(|id| format!("role {id}")));
                touched.reads.extend(role.map(|id| format!("who has {id}")));
                touched.writes.insert(format!("channel {channel}"));
            }
        }
        touched
    }
}

impl Touched {
    fn conflicts(&self, other: &Self) -> bool {
        !self.writes.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.reads)
            || !self.reads.is_disjoint(&other.writes)
    }
}

fn id(number: u8) -> OperationId {
    OperationId::new(1_700_000_000_000, [number; 10])
}

fn objects(deed: Deed, own: u8) -> Objects {
    let name = |name| match name {
        Name::Id(id) => json!(id.to_string()),
        Name::Key(key) => json!({"key": KEYS[key]}),
        Name::Operation(operation) => json!({"operation": id(EARLIER[operation]).to_string()}),
    };
    let (kind, value) = match deed {
        Deed::Create(key) => (OperationKind::CreateRole, json!({"name": "a", "key": key.map(|key| KEYS[key])})),
        Deed::Ensure(key) => (OperationKind::EnsureRole, json!({"name": "a", "key": KEYS[key]})),
        Deed::Delete(role) => (OperationKind::DeleteRole, json!({"role_id": name(role)})),
        Deed::Assign(user, role) => {
            (OperationKind::AssignRole, json!({"user_id": user.to_string(), "role_id": name(role)}))
        }
        Deed::DenyAccess(channel, role) => (
            OperationKind::UpdatePermissions,
            json!({"channel_id": channel.to_string(), "overwrites": [{"role_id": name(role), "deny": "1024"}]}),
        ),
    };
    parse_ok(kind, &value).objects(id(own), GUILD)
}

#[test]
fn operations_conflict_exactly_if_some_world_shares_an_object() {
    let names = || IDS.map(Name::Id).into_iter().chain([0, 1].map(Name::Key)).chain([0, 1].map(Name::Operation));
    let deeds: Vec<Deed> =
        [Deed::Create(None), Deed::Create(Some(0)), Deed::Create(Some(1)), Deed::Ensure(0), Deed::Ensure(1)]
            .into_iter()
            .chain(names().map(Deed::Delete))
            .chain(names().map(|name| Deed::Assign(1, name)))
            .chain(names().map(|name| Deed::Assign(2, name)))
            .chain(names().map(|name| Deed::DenyAccess(1, name)))
            .chain(names().map(|name| Deed::DenyAccess(2, name)))
            .collect();
    let bound = || IDS.map(Some).into_iter().chain([None]);
    let mut worlds = Vec::new();
    for first in bound() {
        for second in bound().filter(|second| second.is_none() || *second != first) {
            for one in IDS {
                worlds.extend(IDS.map(|other| World { keys: [first, second], operations: [one, other] }));
            }
        }
    }
    for one in &deeds {
        for other in &deeds {
            let possible = worlds.iter().any(|world| world.touched(*one, 1).conflicts(&world.touched(*other, 2)));
            assert_eq!(objects(*one, 1).meets(&objects(*other, 2)), possible, "{one:?} {other:?}");
        }
    }
}
