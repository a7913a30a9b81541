//! Metrics of the operating system about this process, sampled when metrics are requested.

use std::{fmt::Write as _, fs};

use guildhall_actors::{
    telemetry::{Metric, gauge},
    wall_clock::unix_now,
};

use crate::metrics::{PROCESS_CPU, PROCESS_MAX_FDS, PROCESS_OPEN_FDS, PROCESS_RESIDENT_MEMORY, PROCESS_START_TIME};

/// Records the current time as the start time of the process.
pub fn record_start() {
    gauge!(PROCESS_START_TIME).set(unix_now().as_secs_f64());
}

/// Sets the gauges that change all the time. Values that the system does not provide stay unset: none of them is worth
/// an error.
pub fn sample() {
    if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident_bytes) {
        gauge!(PROCESS_RESIDENT_MEMORY).set(bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the open `/proc/self/fd` folder itself.
        let count = u32::try_from(open.count().saturating_sub(1)).unwrap_or(u32::MAX);
        gauge!(PROCESS_OPEN_FDS).set(count);
    }
    if let Ok((soft, _)) = rlimit::Resource::NOFILE.get() {
        gauge!(PROCESS_MAX_FDS).set(u32::try_from(soft).unwrap_or(u32::MAX));
    }
}

/// Appends the CPU time that the process used, in the Prometheus text format. The exporter's counters are integers, and
/// whole seconds are too coarse for a rate.
pub fn write_cpu(text: &mut String) {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let Metric { name, help, .. } = PROCESS_CPU;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}.{:09}", used.tv_sec, used.tv_nsec);
}

/// Parses the resident set size from `/proc/self/status`: a line such as `VmRSS:      1234 kB`.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_has_a_fraction_and_grows() {
        let seconds = || -> f64 {
            let mut text = String::new();
            write_cpu(&mut text);
            assert!(text.contains("# TYPE process_cpu_seconds_total counter\n"), "{text}");
            text.lines().last().unwrap().strip_prefix("process_cpu_seconds_total ").unwrap().parse().unwrap()
        };
        let before = seconds();
        let mut after = seconds();
        // The measurement itself uses processor time, too.
        while after <= before {
            after = seconds();
        }
        assert!(before > 0.0 && after - before < 60.0);
    }

    #[test]
    fn resident_bytes_are_parsed_and_other_text_is_rejected() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    1234 kB\nThreads: 1\n"), Some(1_263_616.0));
        assert_eq!(resident_bytes("VmRSS: many kB"), None);
        assert_eq!(resident_bytes(""), None);
    }
}
