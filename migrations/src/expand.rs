//! Tests the rule for compatible migrations: a migration without a declaration may only expand the schema.

use sea_orm::DbBackend;

use crate::{Declared, FIRST_CHECKED, Migration, Migrator, Step};

/// Why a statement may break a program that does not have its migration. `new` are the tables that the migration
/// creates.
fn incompatibility(sql: &str, new: &[String]) -> Option<&'static str> {
    let words: Vec<String> = sql.split_whitespace().map(str::to_ascii_uppercase).collect();
    let first: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_new = |table: &str| new.iter().any(|one| one == table.trim_matches(['(', ')', '"', ';']));
    match first.as_slice() {
        ["CREATE", "TABLE" | "INDEX", ..] | ["SELECT" | "INSERT" | "UPDATE", ..] => None,
        // Older programs may write rows that it forbids.
        ["CREATE", "UNIQUE", "INDEX", rest @ ..] => {
            let on = rest.iter().position(|word| *word == "ON").and_then(|at| rest.get(at + 1))?;
            (!is_new(on)).then_some("a unique index on a table that older programs write")
        }
        ["CREATE", "POLICY", ..] => {
            let on = first.iter().position(|word| *word == "ON").and_then(|at| first.get(at + 1))?;
            (!is_new(on)).then_some("a policy on a table that older programs use")
        }
        ["ALTER", "TABLE", table, ..] if is_new(table) => None,
        ["ALTER", "TABLE", _, "ADD", "COLUMN", rest @ ..] => {
            let required = rest.windows(2).any(|pair| pair == ["NOT", "NULL"]) && !rest.contains(&"DEFAULT");
            if required {
                return Some("a required column without a default, which older programs do not write");
            }
            rest.contains(&"UNIQUE").then_some("a unique column of a table that older programs write")
        }
        _ => Some("a statement that does more than expand the schema"),
    }
}

fn tables(statements: &[String]) -> Vec<String> {
    let created = statements.iter().filter_map(|sql| {
        let words: Vec<_> = sql.split_whitespace().map(str::to_ascii_uppercase).collect();
        let [create, table, rest @ ..] = words.as_slice() else { return None };
        let name = rest.iter().find(|word| !["IF", "NOT", "EXISTS"].contains(&word.as_str()))?;
        (create == "CREATE" && table == "TABLE").then(|| name.trim_end_matches('(').to_owned())
    });
    created.collect()
}

fn broken_by(migration: &dyn Migration) -> Option<String> {
    if migration.declared_compatible_from().is_some() || migration.number() <= FIRST_CHECKED {
        return None;
    }
    [DbBackend::Postgres, DbBackend::Sqlite].into_iter().find_map(|engine| {
        let statements = migration.statements(engine);
        let new = tables(&statements);
        statements
            .iter()
            .find_map(|sql| incompatibility(sql, &new).map(|reason| format!("{}: {reason}:\n{sql}", migration.name())))
    })
}

#[test]
fn migrations_that_declare_nothing_only_expand() {
    for migration in Migrator::migrations() {
        assert_eq!(
            broken_by(&*migration),
            None,
            "older programs may be incompatible with this migration: let it only expand the schema, or make it \
             `Declared` with the first migration that a compatible program must have (docs/store.md, \"Writing a \
             migration\")"
        );
    }
}

#[test]
fn a_migration_that_breaks_older_programs_has_to_declare_it() {
    let breaking: [&[&str]; 8] = [
        &["DROP TABLE operations"],
        &["ALTER TABLE operations DROP COLUMN seq"],
        &["ALTER TABLE operations RENAME COLUMN seq TO place"],
        &["ALTER TABLE operations ADD COLUMN a TEXT NOT NULL"],
        &["{postgres}ALTER TABLE operations ALTER COLUMN seq TYPE TEXT"],
        &["CREATE TABLE a (b TEXT)", "CREATE UNIQUE INDEX c ON operations (seq)"],
        &["DROP INDEX operations_state"],
        &["DELETE FROM operations"],
    ];
    for up in breaking {
        let step = Step { name: "0042_test", up, down: &[] };
        assert!(broken_by(&step).is_some(), "{up:?}");
        assert_eq!(broken_by(&Declared { step, compatible_from: 41 }), None, "{up:?}");
    }
    let fine: [&[&str]; 3] = [
        &["CREATE TABLE a (b TEXT)", "CREATE UNIQUE INDEX c ON a (b)", "ALTER TABLE a DROP COLUMN b"],
        &["ALTER TABLE operations ADD COLUMN a BIGINT NOT NULL DEFAULT 0", "UPDATE operations SET a = 1"],
        &["ALTER TABLE operations ADD COLUMN a BIGINT", "CREATE INDEX b ON operations (a)"],
    ];
    for up in fine {
        assert_eq!(broken_by(&Step { name: "0042_test", up, down: &[] }), None, "{up:?}");
    }
}
