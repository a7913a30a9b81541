//! What processors were used, as Linux tells it.

use std::time::Duration;

use anyhow::Context as _;

/// The clock ticks of a second, as Linux tells them to programs.
const TICKS: f64 = 100.0;

/// What this process has used of its processors.
pub(crate) fn of_process() -> anyhow::Result<Duration> {
    used("/proc/self/stat")
}

/// What this thread has used of them.
pub(crate) fn of_thread() -> anyhow::Result<Duration> {
    used("/proc/thread-self/stat")
}

/// What the threads that another process has now have used of them, to the nanosecond.
pub(crate) fn of_threads(process: u32) -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).context("there is no such process")? {
        // One that has ended meanwhile has done little.
        let Ok(used) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        nanos += used.split_whitespace().next().context("an odd schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// User and system time.
fn used(path: &str) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(path).context("this system does not tell")?;
    // The name before it may hold anything, spaces and brackets, too.
    let (_, rest) = stat.rsplit_once(')').with_context(|| format!("an odd {path}"))?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| -> anyhow::Result<f64> { Ok(fields.get(at).context("a short stat")?.parse()?) };
    // utime and stime: the 14th and 15th field of all.
    Ok(Duration::from_secs_f64((ticks(11)? + ticks(12)?) / TICKS))
}
