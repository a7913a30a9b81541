//! The memory of a daemon whose REST proxy is used for a long time, by clients of every kind.

use std::{
    collections::BTreeMap,
    env,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use fastrand::Rng;
use guildhall_sim::{Algorithm, LimitConfig, Rate};
use serde_json::json;
use tokio::task::block_in_place;

use crate::fixture::{Call, EgressFixture, bot, header, try_request};

const CLIENTS: usize = 16;

/// Global limit of the simulator and of the daemon: ten times Discord's, so that an hour is worth ten.
const GLOBAL: u32 = 500;

/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Memory that it may gain over the measured time, in parts of what it has.
const MAX_GROWTH: f64 = 0.1;

/// What clients have seen, by status and reason.
type Seen = Mutex<BTreeMap<String, u64>>;

struct Targets {
    egress: SocketAddr,
    key: String,
    guilds: Vec<String>,
    channels: Vec<String>,
}

impl Targets {
    /// A call, and whether its client hangs up before the response.
    fn call(&self, rng: &mut Rng) -> (String, bool) {
        let guild = rng.choice(&self.guilds).unwrap();
        let channel = rng.choice(&self.channels).unwrap();
        let authorization = if rng.bool() { bot() } else { self.key.clone() };
        let get = |path: &str| Call { path, authorization: &authorization, ..Call::default() }.text();
        match rng.u8(..20) {
            0..=5 => (get(&format!("/guilds/{guild}/roles")), false),
            6..=9 => (get(&format!("/channels/{channel}/messages?limit=50")), false),
            // Objects that do not exist: their ids are never used again.
            10 | 11 => (get(&format!("/channels/{}", rng.u64(1..))), false),
            12 => (get(&format!("/webhooks/{}/token{}", rng.u32(1..), rng.u64(..))), false),
            13 => (get(&format!("/channels/{channel}")), true),
            14 => {
                let path = format!("/channels/{channel}/messages");
                let form = form(2 * 1024 * 1024);
                let content_type = "multipart/form-data; boundary=b";
                let authorization = bot();
                let call = Call {
                    method: "POST",
                    path: &path,
                    authorization: &authorization,
                    content_type,
                    body: &form,
                    ..Call::default()
                };
                (call.text(), rng.u8(..4) == 0)
            }
            15 => (Call { path: "/users/@me", authorization: "Bot unknown", ..Call::default() }.text(), false),
            _ => {
                let path = format!("/channels/{channel}/messages");
                let body = json!({"content": "x".repeat(rng.usize(1..2_000))}).to_string();
                let headers = "X-Guildhall-Deadline-Ms: 200\r\n";
                let call = Call {
                    method: "POST",
                    path: &path,
                    authorization: &authorization,
                    headers,
                    body: &body,
                    ..Call::default()
                };
                (call.text(), false)
            }
        }
    }
}

/// A form with a file of this size.
fn form(size: usize) -> String {
    let file = "x".repeat(size);
    format!(
        "--b\r\nContent-Disposition: form-data; name=\"payload_json\"\r\n\r\n{{\"content\":\"a file\"}}\r\n--b\r\n\
         Content-Disposition: form-data; name=\"files[0]\"; filename=\"a.txt\"\r\n\r\n{file}\r\n--b--\r\n"
    )
}

fn run_client(targets: &Targets, seed: u64, seen: &Seen, is_over: &AtomicBool) {
    let mut rng = Rng::with_seed(seed);
    while !is_over.load(Ordering::Relaxed) {
        let (text, hangs_up) = targets.call(&mut rng);
        if hangs_up {
            let mut stream = TcpStream::connect(targets.egress).unwrap();
            // The daemon may have answered already.
            drop(stream.write_all(&text.as_bytes()[..rng.usize(1..text.len())]));
            continue;
        }
        let result = match try_request(targets.egress, &text) {
            Ok(response) => {
                let why = header(&response, "x-guildhall-why").unwrap_or("discord");
                format!("{} {why}", response.status)
            }
            Err(error) => format!("cut {:?}", error.kind()),
        };
        *seen.lock().unwrap().entry(result).or_default() += 1;
    }
}

/// Slope of a line through the samples, by least squares.
fn slope(samples: &[(f64, f64)]) -> f64 {
    let count = samples.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|sample| sample.0), mean(|sample| sample.1));
    let covariance: f64 = samples.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = samples.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

/// Takes `EGRESS_SOAK_MINUTES`; `scripts/soak egress` runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes an hour"]
async fn soak() {
    let minutes: f64 = env::var("EGRESS_SOAK_MINUTES").map_or(60.0, |minutes| minutes.parse().unwrap());
    let global = Rate::new(GLOBAL, 1_000, Algorithm::Sliding);
    let limits = LimitConfig { global, ..LimitConfig::default() };
    let settings = [("GUILDHALL__LIMITS__GLOBAL", "500")];
    let fixture = EgressFixture::start_unrecorded(limits, &settings).await;
    let guilds: Vec<String> = fixture.sim.guilds().iter().map(ToString::to_string).collect();
    let channels = guilds.iter().map(|guild| fixture.channel_of(guild)).collect();
    let key = fixture.create_key(&["egress", "application"]);
    let targets = Arc::new(Targets { egress: fixture.egress, key, guilds, channels });
    let (seen, is_over) = (Arc::new(Seen::default()), Arc::new(AtomicBool::default()));
    let clients: Vec<_> = (0..CLIENTS as u64)
        .map(|seed| {
            let (targets, seen, is_over) = (Arc::clone(&targets), Arc::clone(&seen), Arc::clone(&is_over));
            std::thread::spawn(move || run_client(&targets, seed, &seen, &is_over))
        })
        .collect();
    let time = Duration::from_secs_f64(minutes * 60.0);
    let samples: Vec<(f64, f64)> = block_in_place(|| {
        let started = Instant::now();
        let mut samples = Vec::new();
        while started.elapsed() < time {
            sleep(SAMPLE_EVERY);
            let hours = started.elapsed().as_secs_f64() / 3_600.0;
            samples.push((hours, fixture.running.resident_bytes() as f64 / 1_048_576.0));
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
        samples
    });
    // Until then, caches and the allocator fill.
    let measured = &samples[samples.len() / 3..];
    let (first, last) = (measured[0], measured[measured.len() - 1]);
    let slope = slope(measured);
    let growth = slope * (last.0 - first.0) / first.1;
    let score = fixture.sim.score();
    let limited = score.rate_limited;
    let report = json!({
        "name": "egress-soak",
        "minutes": minutes,
        "requests": score.requests,
        "max_in_any_second": score.max_per_second.values().max(),
        "http_429": limited.user + limited.shared + limited.global,
        "rss_mb_first": first.1,
        "rss_mb_last": last.1,
        "rss_mb_max": samples.iter().map(|sample| sample.1).fold(0.0, f64::max),
        "slope_mb_per_hour": slope,
        "growth": growth,
        "seen": *seen.lock().unwrap(),
    });
    println!("{report}");
    assert_eq!((limited.user, limited.global), (0, 0), "{:?}", score.routes);
    assert!(score.max_per_second.values().all(|most| *most <= GLOBAL), "{:?}", score.max_per_second);
    assert!(growth < MAX_GROWTH, "its memory grew by {:.1} % in {minutes} minutes", growth * 100.0);
}
