//! Compares the events that were sent with their effects.

use std::collections::{BTreeSet, HashSet};

use guildhall_sim::{EffectScore, Score};

use super::{event_load::SentEvents, fixture::SHARDS};

/// Result of the check.
#[derive(Debug, Default)]
pub(crate) struct EventReport {
    pub(crate) effects: usize,
    pub(crate) lost: usize,
    pub(crate) duplicates: usize,
    pub(crate) out_of_order: usize,
    pub(crate) identifies: u64,
    pub(crate) resumes: u64,
    pub(crate) replayed: u64,
    pub(crate) events: u64,
    /// Descriptions of all violations.
    pub(crate) violations: Vec<String>,
}

impl EventReport {
    pub(crate) fn add(&mut self, other: Self) {
        self.effects += other.effects;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.identifies += other.identifies;
        self.resumes += other.resumes;
        self.replayed += other.replayed;
        self.events += other.events;
        self.violations.extend(other.violations);
    }
}

/// The sequence number of the event that caused an effect, and the content if the effect is an echo.
fn parse_effect(effect: &EffectScore) -> Option<(u64, Option<&str>)> {
    let (event, mark) = match (effect.verb.as_str(), effect.kind.as_str()) {
        ("create", "role") => (effect.name.as_str(), None),
        ("create", "message") => effect.name.split_once(' ').map(|(event, mark)| (event, Some(mark)))?,
        _ => return None,
    };
    Some((event.rsplit_once('-')?.1.parse().ok()?, mark))
}

/// Checks the score when everything is finished.
pub(crate) fn check_effects(score: &Score, sent: &SentEvents) -> EventReport {
    let gateway = &score.gateway;
    let mut report = EventReport {
        identifies: gateway.identifies,
        resumes: gateway.resumes,
        replayed: gateway.sessions.values().map(|session| session.replayed).sum(),
        events: gateway.events_total,
        ..EventReport::default()
    };
    let guilds: BTreeSet<u64> = sent.joins.keys().chain(sent.written.keys()).copied().collect();
    for guild in &guilds {
        let effects = score.effects.get(&guild.to_string()).map_or(&[][..], Vec::as_slice);
        let joins = sent.joins.get(guild).copied().unwrap_or_default();
        let written = sent.written.get(guild).map_or(&[][..], Vec::as_slice);
        check_guild(&mut report, *guild, effects, joins, written);
    }
    for (guild, effects) in &score.effects {
        if guild.parse().map_or(true, |guild| !guilds.contains(&guild)) {
            report.violations.push(format!("{guild}: unexpected effects {effects:?}"));
        }
    }
    for (description, actual, expected) in [
        ("sessions started", gateway.identifies, u64::from(SHARDS)),
        ("sessions ended", gateway.sessions_ended, 0),
        ("resumes refused", gateway.resumes_refused, 0),
        ("sessions overrun", gateway.slow_readers, 0),
        ("objects created twice", score.duplicates, 0),
    ] {
        if actual != expected {
            report.violations.push(format!("{description}: {actual}, not {expected}"));
        }
    }
    report
}

fn check_guild(report: &mut EventReport, guild: u64, effects: &[EffectScore], joins: u64, written: &[String]) {
    let (mut last, mut seen) = (0, HashSet::new());
    let (mut welcomed, mut echoed) = (0, Vec::new());
    for effect in effects {
        report.effects += 1;
        let Some((seq, mark)) = parse_effect(effect) else {
            report.violations.push(format!("{guild}: {} {} {:?}", effect.verb, effect.kind, effect.name));
            continue;
        };
        if !seen.insert(seq) {
            report.duplicates += 1;
            report.violations.push(format!("{guild}: duplicate {:?}", effect.name));
            continue;
        }
        if seq < last {
            report.out_of_order += 1;
            report.violations.push(format!("{guild}: {seq} after {last}"));
        }
        last = seq;
        match mark {
            Some(mark) => echoed.push(mark),
            None => welcomed += 1,
        }
    }
    if welcomed != joins {
        report.lost += usize::try_from(joins.saturating_sub(welcomed)).unwrap_or(usize::MAX);
        report.violations.push(format!("{guild}: {welcomed} of {joins} joins had an effect"));
    }
    let missing: Vec<_> = written.iter().filter(|mark| !echoed.contains(&mark.as_str())).collect();
    if !missing.is_empty() {
        report.lost += missing.len();
        report.violations.push(format!("{guild}: no echo of {missing:?}"));
    } else if echoed != *written {
        report.violations.push(format!("{guild}: {written:?} was written, but {echoed:?} was echoed"));
    }
}

#[cfg(test)]
mod tests {
    use guildhall_sim::{At, Snowflake};

    use super::*;

    fn effect(kind: &str, name: &str) -> EffectScore {
        EffectScore {
            arrived: At::from_micros(1),
            at: At::from_micros(1),
            answered: None,
            verb: "create".to_owned(),
            kind: kind.to_owned(),
            object: Snowflake::new(1),
            name: name.to_owned(),
            overlapped: false,
        }
    }

    fn check(effects: &[EffectScore], joins: u64, written: &[&str]) -> (usize, usize, usize, usize) {
        let mut report = EventReport::default();
        let written: Vec<String> = written.iter().map(|mark| (*mark).to_owned()).collect();
        check_guild(&mut report, 7, effects, joins, &written);
        (report.lost, report.duplicates, report.out_of_order, report.violations.len())
    }

    #[test]
    fn lost_duplicated_and_reordered_effects_are_found() {
        let good = [effect("role", "s-3"), effect("message", "s-5 mark-1"), effect("role", "s-9")];
        assert_eq!(check(&good, 2, &["mark-1"]), (0, 0, 0, 0));
        assert_eq!(check(&good, 3, &["mark-1"]), (1, 0, 0, 1));
        assert_eq!(check(&good, 2, &["mark-1", "mark-2"]), (1, 0, 0, 1));
        let duplicate = [effect("role", "s-3"), effect("role", "s-3")];
        assert_eq!(check(&duplicate, 1, &[]), (0, 1, 0, 1));
        assert_eq!(check(&duplicate, 2, &[]), (1, 1, 0, 2), "one duplicate, and one missing");
        assert_eq!(check(&[effect("role", "s-9"), effect("role", "s-3")], 2, &[]), (0, 0, 1, 1));
        assert_eq!(check(&[effect("message", "s-9 mark-9")], 0, &[]).3, 1, "it was never written");
    }
}
