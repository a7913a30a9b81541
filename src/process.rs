//! What the operating system knows about this process, read when somebody asks for metrics.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use metrics::gauge;

use crate::metrics::{PROCESS_MAX_FDS, PROCESS_OPEN_FDS, PROCESS_RESIDENT_MEMORY, PROCESS_START_TIME};

/// Remembers now as the time the process started.
pub fn record_start() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!(PROCESS_START_TIME).set(since.as_secs_f64());
}

/// Sets the gauges that change all the time. What a system does not tell stays unset: nothing here is worth failing.
pub fn sample() {
    if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes) {
        gauge!(PROCESS_RESIDENT_MEMORY).set(bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the folder we are reading.
        let count = u32::try_from(open.count().saturating_sub(1)).unwrap_or(u32::MAX);
        gauge!(PROCESS_OPEN_FDS).set(count);
    }
    if let Ok((soft, _)) = rlimit::Resource::NOFILE.get() {
        gauge!(PROCESS_MAX_FDS).set(u32::try_from(soft).unwrap_or(u32::MAX));
    }
}

/// The resident set out of `/proc/self/status`: a line such as `VmRSS:      1234 kB`.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_set_is_read_in_bytes_and_odd_text_is_none() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    1234 kB\nThreads: 1\n"), Some(1_263_616.0));
        assert_eq!(resident_bytes("VmRSS: many kB"), None);
        assert_eq!(resident_bytes(""), None);
    }
}
