//! Processor time, as reported by Linux.

use std::time::Duration;

use anyhow::Context as _;

/// Clock ticks per second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of this process.
pub(crate) fn process_time() -> anyhow::Result<Duration> {
    cpu_time("/proc/self/stat")
}

/// Processor time of this thread.
pub(crate) fn thread_time() -> anyhow::Result<Duration> {
    cpu_time("/proc/thread-self/stat")
}

/// Processor time of the current threads of another process, in nanosecond resolution.
pub(crate) fn other_process_time(process: u32) -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).context("no such process")? {
        // A thread that ended meanwhile used little.
        let Ok(schedstat) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        nanos += schedstat.split_whitespace().next().context("cannot parse schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// User and system time.
fn cpu_time(path: &str) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(path).context("cannot read the processor time; this benchmark needs Linux")?;
    // The process name before it may contain any character, including spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')').with_context(|| format!("cannot parse {path}"))?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks =
        |at: usize| -> anyhow::Result<f64> { Ok(fields.get(at).context("the stat file has too few fields")?.parse()?) };
    // utime and stime are fields 14 and 15 of the file.
    Ok(Duration::from_secs_f64((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND))
}
