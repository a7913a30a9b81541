//! gh
