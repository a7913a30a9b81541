//! gh
fn main() {}
