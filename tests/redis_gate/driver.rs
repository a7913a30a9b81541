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

use crate::fleet::{ORDERS, Orders, STUCK, Seen};

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
const AGAIN: Duration = Duration::from_millis(100);

/// Interval at which a leaving process checks for outstanding responses.
const LOOK: Duration = Duration::from_millis(5);

/// A gate with callers.
struct Driven {
    name: String,
    rest: RestComponent,
    channels: Vec<Id<ChannelMarker>>,
    asked: Cell<usize>,
    answered: Cell<u64>,
    not_sent: Cell<u64>,
    unknown: Cell<u64>,
    refused: RefCell<String>,
}

#[test]
#[ignore = "run by other tests as a process of a fleet"]
fn a_process_of_a_fleet() {
    // Without orders, all ignored tests are being run.
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    // Ends the line that the test harness has started.
    println!();
    let sources = SettingsSources { environment: std::env::vars_os().collect(), ..SettingsSources::default() };
    let settings = settings::load(sources).unwrap().settings;
    logging::init(&settings.log, settings.discord.token.iter().cloned().collect()).unwrap();
    block_on(drive(orders, settings)).unwrap();
}

async fn drive(orders: Orders, settings: Settings) {
    let token = settings.discord.token.clone().unwrap();
    let many = orders.gates.len() > 1;
    let gates: Vec<Rc<Driven>> = orders
        .gates
        .into_iter()
        .enumerate()
        .map(|(number, channels)| {
            let name = if many { format!("{}{number}", orders.name) } else { orders.name.clone() };
            let channels = channels.into_iter().map(Id::new).collect();
            Rc::new(Driven::new(
                name,
                RestComponent::start(&settings, token.clone(), GateState::Forgetful).unwrap(),
                channels,
            ))
        })
        .collect();
    let pending = if many { PENDING / 8 } else { PENDING };
    let callers = gates.iter().flat_map(|gate| (0..pending).map(|number| Rc::clone(gate).call_for_ever(number)));
    tokio::select! {
        _ = join_all(callers) => {}
        () = answer(&gates) => {}
    }
    // Dropping the callers cancels waiting calls. Calls in flight are awaited, because they count until their response.
    for gate in &gates {
        gate.leave().await;
    }
}

/// Answers queries until standard input ends.
async fn answer(gates: &[Rc<Driven>]) {
    let mut questions = questions();
    while let Some(question) = questions.recv().await {
        assert_eq!(question, "observe");
        let mut seen = Vec::new();
        for gate in gates {
            seen.push(gate.seen().await);
        }
        println!("{}", serde_json::to_string(&seen).unwrap());
        std::io::stdout().flush().unwrap();
    }
}

/// The lines of standard input.
fn questions() -> UnboundedReceiver<String> {
    let (send, questions) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            drop(send.send(line));
        }
    });
    questions
}

impl Driven {
    fn new(name: String, rest: RestComponent, channels: Vec<Id<ChannelMarker>>) -> Self {
        let (asked, answered, not_sent, unknown, refused) = Default::default();
        Self { name, rest, channels, asked, answered, not_sent, unknown, refused }
    }

    /// One caller: makes the next call as soon as one is finished.
    async fn call_for_ever(self: Rc<Self>, number: usize) {
        let lane = LANES[number % LANES.len()];
        loop {
            let turn = self.asked.replace(self.asked.get() + 1);
            let channel = self.channels[turn % self.channels.len()];
            let nonce = format!("{}-{turn}", self.name);
            let mut call = self.rest.calls.create_message(channel, &nonce, |with| with.content(&self.name)).unwrap();
            call.request.lane = lane;
            call.request.max_wait = STUCK;
            match self.rest.gate.call(call.request).await {
                CallOutcome::Answered(_) => self.answered.set(self.answered.get() + 1),
                CallOutcome::Unknown(_) => self.unknown.set(self.unknown.get() + 1),
                CallOutcome::NotSent(refused) => {
                    self.not_sent.set(self.not_sent.get() + 1);
                    self.refused.replace(refused.why);
                    tokio::time::sleep(refused.retry_after.unwrap_or(AGAIN).min(AGAIN)).await;
                }
            }
        }
    }

    async fn seen(&self) -> Seen {
        let view = self.rest.gate.observe().await.unwrap();
        let member = view.limits.credentials.into_iter().find_map(|credential| credential.shared).unwrap();
        Seen {
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
            refused: self.refused.borrow().clone(),
        }
    }

    /// Waits for outstanding responses, then leaves the fleet.
    async fn leave(&self) {
        while self.rest.gate.observe().await.unwrap().limits.under_way > 0 {
            tokio::time::sleep(LOOK).await;
        }
        self.rest.leave().await;
    }
}
