//! The `guildhall` program.

use std::process::ExitCode;

use clap::Parser as _;

/// Worth 1.2 to 1.8 times the throughput of the system's allocator for many small messages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything can open a TLS connection: without a default provider twilight panics. It fails only when there
    // is one already, and then there is one.
    drop(rustls::crypto::ring::default_provider().install_default());
    guildhall::cli::run(guildhall::cli::Cli::parse())
}
