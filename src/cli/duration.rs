//! Parses and formats durations and points in time.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use guildhall_actors::wall_clock::unix_now;

/// The units, and how many milliseconds each has.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];
/// Maximum duration: a longer one is probably a typo.
const MAX_MS: u64 = 100 * 366 * 86_400_000;

/// Parses a duration such as `90s`, `1h30m` or `30d`.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || "not a valid duration; use numbers with ms, s, m, h, d or w, such as 90s, 1h30m or 30d".to_owned();
    let mut rest = text.trim();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, millis) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        let span = number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)).ok_or_else(invalid)?;
        total = total.checked_add(span).filter(|total| *total <= MAX_MS).ok_or_else(invalid)?;
        rest = after.trim_start();
    }
    if text.trim().is_empty() { Err(invalid()) } else { Ok(Duration::from_millis(total)) }
}

/// Parses a point in time, RFC 3339 or an age, into the format of the API.
pub(super) fn parse_time(text: &str) -> Result<String, String> {
    if let Ok(at) = DateTime::parse_from_rfc3339(text.trim()) {
        return Ok(at.to_utc().to_rfc3339_opts(SecondsFormat::Millis, true));
    }
    let ago = parse(text).map_err(|_| {
        "not a valid time; use RFC 3339, such as 2026-01-31T12:00:00Z, or an age, such as 2h".to_owned()
    })?;
    Ok(time_before(ago))
}

/// Returns the time this long ago, in the format of the API.
pub(super) fn time_before(ago: Duration) -> String {
    let at = i64::try_from(unix_now().saturating_sub(ago).as_millis()).ok().and_then(DateTime::from_timestamp_millis);
    at.unwrap_or_default().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Formats a duration with its two largest units.
pub(super) fn format_duration(span: Duration) -> String {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let mut remaining = millis / 1_000 * 1_000;
    let mut parts = Vec::new();
    for (name, size) in UNITS.into_iter().rev().filter(|(name, size)| *size >= 1_000 && *name != "w") {
        let count = remaining / size;
        remaining %= size;
        if count > 0 || !parts.is_empty() {
            parts.push((count, name));
        }
    }
    parts.into_iter().take(2).filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count}{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_may_be_combined() {
        let seconds = |text: &str| parse(text).unwrap().as_secs();
        assert_eq!(
            [seconds("90s"), seconds("1h30m"), seconds("30d"), seconds("2w 1d")],
            [90, 5_400, 2_592_000, 1_296_000]
        );
        assert_eq!(parse("250ms").unwrap(), Duration::from_millis(250));
        for invalid in ["", " ", "30", "d", "-1s", "1.5h", "1y", "1h30", "99999999999999999999s", "999999w"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn time_is_rfc_3339_or_an_age() {
        assert_eq!(parse_time("2026-01-31T13:00:00+01:00").unwrap(), "2026-01-31T12:00:00.000Z");
        let (hour, now) = (parse_time("1h").unwrap(), parse_time("0s").unwrap());
        let at = |text: &str| DateTime::parse_from_rfc3339(text).unwrap();
        let between = at(&now) - at(&hour);
        assert!((3_600..3_700).contains(&between.num_seconds()), "{hour} {now}");
        assert!(parse_time("yesterday").is_err() && parse_time("2026-01-31").is_err());
        assert_eq!(parse_time("99w").unwrap().len(), now.len());
    }

    #[test]
    fn duration_is_formatted_with_its_largest_units() {
        let format = |millis| format_duration(Duration::from_millis(millis));
        assert_eq!([format(0), format(999), format(1_500), format(61_000)], ["0ms", "999ms", "1s", "1m1s"]);
        assert_eq!([format(3_600_000), format(93_784_000)], ["1h", "1d2h"]);
    }
}
