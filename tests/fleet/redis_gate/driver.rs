//! A process of a fleet: builds its gates as the daemon does, and keeps them under full demand.

use std::{
    cell::{Cell, RefCell},
    io::{BufRead as _, Write as _},
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use guildhall::daemon::{GateState, RestComponent, block_on};
use guildhall::settings::{Settings, SettingsSources};
use guildhall::{logging, settings};
use guildhall_actors::gate::{CallOutcome, Rest as _};
use guildhall_core::lane::Lane;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use twilight_model::id::{Id, marker::ChannelMarker};

use super::fleet::{DRIVER_CONFIG_ENV, DriverConfig, GateStatus, TEST_TIMEOUT};

/// Calls that each gate always has waiting.
const PENDING: usize = 48;

/// Lanes of the callers, in turn.
const LANES: [Lane; 8] = [
    Lane::Operation,
    Lane::Background,
    Lane::Operation,
    Lane::Interactive,
    Lane::Operation,
    Lane::Background,
    Lane::Operation,
    Lane::Operation,
];

/// Maximum delay of a caller after a call that was not sent.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Interval at which a leaving process checks for outstanding responses.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A gate with callers.
struct DrivenGate {
    name: String,
    rest: RestComponent,
    channels: Vec<Id<ChannelMarker>>,
    started: Cell<usize>,
    answered: Cell<u64>,
    not_sent: Cell<u64>,
    unknown: Cell<u64>,
    last_rejection: RefCell<String>,
}

#[test]
#[ignore = "run by other tests as a process of a fleet"]
fn a_process_of_a_fleet() {
    // Without orders, all ignored tests are being run.
    let Ok(orders) = std::env::var(DRIVER_CONFIG_ENV) else { return };
    let orders: DriverConfig = serde_json::from_str(&orders).unwrap();
    // Ends the line that the test harness has started.
    println!();
    let sources = SettingsSources { environment: std::env::vars_os().collect(), ..SettingsSources::default() };
    let settings = settings::load(sources).unwrap().settings;
    logging::init(&settings.log, settings.discord.token.iter().cloned().collect()).unwrap();
    block_on(drive(orders, settings)).unwrap();
}

async fn drive(orders: DriverConfig, settings: Settings) {
    let token = settings.discord.token.clone().unwrap();
    let many = orders.gates.len() > 1;
    let gates: Vec<Rc<DrivenGate>> = orders
        .gates
        .into_iter()
        .enumerate()
        .map(|(number, channels)| {
            let name = if many { format!("{}{number}", orders.name) } else { orders.name.clone() };
            let channels = channels.into_iter().map(Id::new).collect();
            Rc::new(DrivenGate::new(
                name,
                RestComponent::start(&settings, token.clone(), GateState::Volatile).unwrap(),
                channels,
            ))
        })
        .collect();
    let pending = if many { PENDING / 8 } else { PENDING };
    let callers = gates.iter().flat_map(|gate| (0..pending).map(|number| Rc::clone(gate).call_repeatedly(number)));
    tokio::select! {
        _ = join_all(callers) => {}
        () = serve_queries(&gates) => {}
    }
    // Dropping the callers cancels waiting calls. Calls in flight are awaited, because they count until their response.
    for gate in &gates {
        gate.leave().await;
    }
}

/// Answers queries until standard input ends.
async fn serve_queries(gates: &[Rc<DrivenGate>]) {
    let mut queries = stdin_lines();
    while let Some(query) = queries.recv().await {
        assert_eq!(query, "observe");
        let mut snapshots = Vec::new();
        for gate in gates {
            snapshots.push(gate.snapshot().await);
        }
        println!("{}", serde_json::to_string(&snapshots).unwrap());
        std::io::stdout().flush().unwrap();
    }
}

/// The lines of standard input.
fn stdin_lines() -> UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            drop(sender.send(line));
        }
    });
    lines
}

impl DrivenGate {
    fn new(name: String, rest: RestComponent, channels: Vec<Id<ChannelMarker>>) -> Self {
        let (started, answered, not_sent, unknown, last_rejection) = Default::default();
        Self { name, rest, channels, started, answered, not_sent, unknown, last_rejection }
    }

    /// One caller: makes the next call as soon as one is finished.
    async fn call_repeatedly(self: Rc<Self>, number: usize) {
        let lane = LANES[number % LANES.len()];
        loop {
            let turn = self.started.replace(self.started.get() + 1);
            let channel = self.channels[turn % self.channels.len()];
            let nonce = format!("{}-{turn}", self.name);
            let mut call = self.rest.calls.create_message(channel, &nonce, |with| with.content(&self.name)).unwrap();
            call.request.lane = lane;
            call.request.max_wait = TEST_TIMEOUT;
            match self.rest.gate.call(call.request).await {
                CallOutcome::Answered(_) => self.answered.set(self.answered.get() + 1),
                CallOutcome::Unknown(_) => self.unknown.set(self.unknown.get() + 1),
                CallOutcome::NotSent(refused) => {
                    self.not_sent.set(self.not_sent.get() + 1);
                    self.last_rejection.replace(refused.message);
                    tokio::time::sleep(refused.retry_after.unwrap_or(RETRY_DELAY).min(RETRY_DELAY)).await;
                }
            }
        }
    }

    async fn snapshot(&self) -> GateStatus {
        let view = self.rest.gate.observe().await.unwrap();
        let member = view.limits.credentials.into_iter().find_map(|credential| credential.shared).unwrap();
        GateStatus {
            member: member.member,
            mode: member.mode.name().to_owned(),
            share: member.share,
            members: member.members,
            live: member.live,
            pool: member.pool,
            epoch: member.epoch,
            wall_clock: SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs(),
            answered: self.answered.get(),
            not_sent: self.not_sent.get(),
            unknown: self.unknown.get(),
            refused: self.last_rejection.borrow().clone(),
        }
    }

    /// Waits for outstanding responses, then leaves the fleet.
    async fn leave(&self) {
        while self.rest.gate.observe().await.unwrap().limits.under_way > 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.rest.leave().await;
    }
}
