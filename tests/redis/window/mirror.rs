//! The state of the script, read from Redis into the structure of the model. The model exposes its state only through
//! `Debug`, so the two are compared by that: names and order of fields are the model's.

#![expect(dead_code, reason = "the fields exist to be printed")]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use redis::{Connection, TypedCommands as _};

#[derive(Debug)]
pub(crate) struct ReferenceWindow {
    epoch: Option<Epoch>,
}

#[derive(Debug)]
struct Epoch {
    name: String,
    server: String,
    started: u64,
    last: u64,
    is_complete: bool,
    contributed: u64,
    limit: u64,
    blocked: u64,
    global_block: u64,
    next_due: u64,
    token_time: u64,
    tokens: Tokens,
    members: Membership,
    queue: MemberQueue,
}

#[derive(Debug)]
struct Tokens {
    by_time: BTreeSet<(u64, u64)>,
    times: BTreeMap<u64, u64>,
    holders: BTreeMap<u64, TokenHolder>,
    last: u64,
}

#[derive(Debug)]
struct TokenHolder {
    member: String,
    booking: u64,
    at: u64,
}

#[derive(Debug)]
struct Membership {
    all: BTreeMap<String, MemberRecord>,
    live: BTreeMap<String, u64>,
    detached: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct MemberQueue {
    tickets: BTreeMap<String, u64>,
    due: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct MemberRecord {
    incarnation: u64,
    claim: u64,
    limit: u64,
    since: u64,
}

impl ReferenceWindow {
    /// Reads the keys in the order in which the script takes them, and checks the counters that the script maintains.
    pub(crate) fn read(redis: &mut Connection, keys: &[String]) -> Self {
        let [state, tokens, holders, members, live, limits, detached, queue, due] = keys else { panic!("{keys:?}") };
        let state = redis.hgetall(state).unwrap();
        if state.is_empty() {
            return Self { epoch: None };
        }
        let number = |field: &str| state[field].parse::<u64>().unwrap();
        let times: BTreeMap<u64, u64> =
            scores(redis, tokens).into_iter().map(|(token, time)| (token.parse().unwrap(), time)).collect();
        let tokens = Tokens {
            by_time: times.iter().map(|(token, time)| (*time, *token)).collect(),
            times,
            holders: read_holders(redis.hgetall(holders).unwrap()),
            last: number("sequence"),
        };
        let limits = scores(redis, limits);
        let members = Membership {
            all: read_members(redis.hgetall(members).unwrap()),
            live: scores(redis, live),
            detached: scores(redis, detached),
        };
        members.check(&limits, &number);
        assert_eq!(number("tokens"), tokens.times.len() as u64);
        assert_eq!(number("holders"), tokens.holders.len() as u64);
        let epoch = Epoch {
            name: state["name"].clone(),
            server: state["server"].clone(),
            started: number("born"),
            last: number("last"),
            is_complete: number("whole") == 1,
            contributed: number("brought"),
            limit: number("limit"),
            blocked: number("blocked"),
            global_block: number("global_block"),
            next_due: number("pace"),
            token_time: number("average"),
            tokens,
            members,
            queue: MemberQueue { tickets: scores(redis, queue), due: scores(redis, due) },
        };
        Self { epoch: Some(epoch) }
    }
}

impl Membership {
    fn check(&self, limits: &BTreeMap<String, u64>, number: &impl Fn(&str) -> u64) {
        let claimed = |members: Vec<&String>| -> u64 { members.into_iter().map(|member| self.all[member].claim).sum() };
        assert_eq!(number("claimed"), claimed(self.all.keys().collect()));
        assert_eq!(number("claimed_away"), claimed(self.detached.keys().collect()));
        assert_eq!(number("seats"), self.all.len() as u64);
        assert_eq!(number("live"), self.live.len() as u64);
        let live: BTreeMap<String, u64> =
            self.live.keys().map(|member| (member.clone(), self.all[member].limit)).collect();
        assert_eq!(limits, &live);
    }
}

fn scores(redis: &mut Connection, key: &str) -> BTreeMap<String, u64> {
    let all: Vec<(String, f64)> =
        redis::cmd("ZRANGE").arg(key).arg("0").arg("-1").arg("WITHSCORES").query(redis).unwrap();
    all.into_iter().map(|(member, score)| (member, whole(score))).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and not too large")]
fn whole(score: f64) -> u64 {
    assert!(score.fract() == 0.0 && (0.0..9e15).contains(&score), "{score}");
    score as u64
}

fn read_holders(all: HashMap<String, String>) -> BTreeMap<u64, TokenHolder> {
    all.into_iter()
        .map(|(token, holder)| {
            let mut parts = holder.splitn(3, ' ');
            let (booking, at) = (parts.next().unwrap().parse().unwrap(), parts.next().unwrap().parse().unwrap());
            (token.parse().unwrap(), TokenHolder { member: parts.next().unwrap().to_owned(), booking, at })
        })
        .collect()
}

fn read_members(all: HashMap<String, String>) -> BTreeMap<String, MemberRecord> {
    all.into_iter()
        .map(|(member, record)| {
            let parts: Vec<&str> = record.split(' ').collect();
            let [incarnation, claim, limit, since] = parts[..] else { panic!("{record}") };
            let incarnation = u64::from_str_radix(incarnation, 16).unwrap();
            let record = MemberRecord {
                incarnation,
                claim: claim.parse().unwrap(),
                limit: limit.parse().unwrap(),
                since: since.parse().unwrap(),
            };
            (member, record)
        })
        .collect()
}
