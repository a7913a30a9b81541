//! Named budgets in a real Redis: the script compared with its model, and processes that share budgets, lose the
//! connection to Redis and regain it.

mod contract;
mod equivalence;
mod lifetime;
mod loss;
mod process;
mod script;
