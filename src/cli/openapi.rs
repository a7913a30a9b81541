//! `guildhall openapi`

use std::{io, process::ExitCode};

use crate::api;

pub(super) fn run() -> anyhow::Result<ExitCode> {
    io::Write::write_all(&mut io::stdout(), api::description().as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
