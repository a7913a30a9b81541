//! The types of responses. Handlers serialize them, and the description is derived from them: doc comments become
//! descriptions.

mod breakers;
mod budgets;
mod dead_letters;
mod egress;
mod events;
mod fleet;
mod guilds;
mod health;
mod keys;
mod limits;
mod operations;
mod text;

pub(crate) use self::{
    breakers::*, budgets::*, dead_letters::*, egress::*, events::*, fleet::*, guilds::*, health::*, keys::*, limits::*,
    operations::*, text::*,
};
