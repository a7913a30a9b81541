//! invalid
