//! The REST API: its routes, and what each does to the world.

pub(crate) mod call;
pub(crate) mod error;
pub(crate) mod route;

use route::Route;

/// Every route there is. Where a literal part and a parameter could both fit, the literal stands first.
pub(crate) static ROUTES: &[Route] = &[];
