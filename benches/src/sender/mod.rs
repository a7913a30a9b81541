//! A gateway that only sends events, as fast as its shards accept them or at a fixed rate. It uses real connections,
//! frames that are prepared except for their sequence numbers, and no compression. Its threads do nothing else.

mod frames;
mod wire;

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use serde_json::{Value, json};

use self::frames::Frames;
pub(crate) use self::frames::{Guild, MARK};
use self::wire::ClientFrame;
use crate::cpu;

/// Number of sent events per shard whose times are stored.
const DUE_SLOTS: usize = 1 << 16;

/// Maximum number of frames per write.
const BATCH_SIZE: u64 = 256;

/// Time that a sender waits for room before it checks again.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Time limit for shards to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The gateway's side of a shard's connection.
struct ShardConnection {
    frames: Frames,
    /// `None` before there is a session.
    writes: Mutex<Option<TcpStream>>,
    /// Sequence number of the last event.
    sent: AtomicU64,
    /// When each of the last events was due to be written, in nanoseconds.
    due: Box<[AtomicU64]>,
}

struct Shared {
    address: SocketAddr,
    started: Instant,
    connections: Vec<ShardConnection>,
    /// Connections beyond the first of each shard.
    reconnects: AtomicU32,
}

/// The sender. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sender(Arc<Shared>);

/// Result of a sender thread.
pub(crate) struct SendResult {
    pub(crate) sent: u64,
    /// Processor time of the thread.
    pub(crate) cpu: Duration,
}

impl Sender {
    /// Starts to listen for the shards. Guilds are assigned to shards by Discord's formula. With `marks`, one event in
    /// that number is a marked message.
    pub(crate) fn start(shards: u32, guilds: &[Guild], marks: Option<u64>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
        let connection = |shard: u32| {
            let own: Vec<Guild> = guilds
                .iter()
                .filter(|guild| (guild.id >> 22) % u64::from(shards) == u64::from(shard))
                .cloned()
                .collect();
            ShardConnection {
                frames: Frames::new(&own, marks),
                writes: Mutex::new(None),
                sent: AtomicU64::new(0),
                due: (0..DUE_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            }
        };
        let shared = Arc::new(Shared {
            address: listener.local_addr()?,
            started: Instant::now(),
            connections: (0..shards).map(connection).collect(),
            reconnects: AtomicU32::new(0),
        });
        let own = Arc::clone(&shared);
        thread::Builder::new().name("sender".to_owned()).spawn(move || own.listen(&listener))?;
        Ok(Self(shared))
    }

    /// URL of the gateway.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.0.address)
    }

    /// Waits until all shards have a session.
    pub(crate) fn wait_until_ready(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        while self.0.connections.iter().any(|connection| connection.writes().is_none()) {
            ensure!(Instant::now() < deadline, "not all shards connected within {CONNECT_TIMEOUT:?}");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Number of sent events, without READY.
    pub(crate) fn sent(&self) -> u64 {
        self.0.connections.iter().map(|connection| connection.sent.load(Ordering::Acquire).saturating_sub(1)).sum()
    }

    /// Number of times that a shard reconnected. Figures are only valid if it is zero.
    pub(crate) fn reconnects(&self) -> u32 {
        self.0.reconnects.load(Ordering::Acquire)
    }

    /// Time since an event was due to be written.
    pub(crate) fn since_due(&self, shard: u32, seq: u64, now: Instant) -> Duration {
        let due = self.0.connections[shard as usize].due[due_slot(seq)].load(Ordering::Acquire);
        now.duration_since(self.0.started).saturating_sub(Duration::from_nanos(due))
    }

    /// Sends for the given time as fast as events are handled, with at most `window` events of a shard in flight.
    pub(crate) fn flood(
        &self,
        time: Duration,
        window: u64,
        handled: impl Fn(u32) -> u64 + Send + 'static,
    ) -> anyhow::Result<thread::JoinHandle<anyhow::Result<SendResult>>> {
        let shared = Arc::clone(&self.0);
        let work = move || {
            let (until, mut sent, mut buffer) = (Instant::now() + time, 0, Vec::new());
            while Instant::now() < until {
                let before = sent;
                for (shard, connection) in (0..).zip(&shared.connections) {
                    let last = connection.sent.load(Ordering::Acquire);
                    // READY counts as handled.
                    let room = window.saturating_sub(last.saturating_sub(handled(shard) + 1)).min(BATCH_SIZE);
                    if room >= BATCH_SIZE / 2 && !connection.frames.is_empty() {
                        let now = shared.nanos(Instant::now());
                        (1..=room).for_each(|nth| connection.frame(last + nth, now, &mut buffer));
                        connection.write(&mut buffer, last + room)?;
                        sent += room;
                    }
                }
                if sent == before {
                    thread::sleep(POLL_INTERVAL);
                }
            }
            Ok(SendResult { sent, cpu: cpu::thread_time()? })
        };
        Ok(thread::Builder::new().name("sender-flood".to_owned()).spawn(work)?)
    }

    /// Sends at a fixed rate for the given time. Each event has a fixed due time, whether or not earlier ones were
    /// late.
    pub(crate) fn pace(
        &self,
        per_s: u32,
        time: Duration,
    ) -> anyhow::Result<thread::JoinHandle<anyhow::Result<SendResult>>> {
        let shared = Arc::clone(&self.0);
        let work = move || {
            let connections: Vec<&ShardConnection> =
                shared.connections.iter().filter(|connection| !connection.frames.is_empty()).collect();
            ensure!(!connections.is_empty(), "there are no guilds to send events for");
            let mut next: Vec<u64> =
                connections.iter().map(|connection| connection.sent.load(Ordering::Acquire) + 1).collect();
            let mut buffers = vec![Vec::new(); connections.len()];
            let count = u64::from(per_s) * time.as_secs();
            let started = Instant::now();
            let due = |nth: u64| started + Duration::from_nanos(nth * 1_000_000_000 / u64::from(per_s));
            let mut sent = 0;
            while sent < count {
                let now = Instant::now();
                while sent < count && due(sent) <= now {
                    let index = usize::try_from(sent % connections.len() as u64)?;
                    connections[index].frame(next[index], shared.nanos(due(sent)), &mut buffers[index]);
                    next[index] += 1;
                    sent += 1;
                }
                for ((connection, next), buffer) in connections.iter().zip(&next).zip(&mut buffers) {
                    connection.write(buffer, next - 1)?;
                }
                thread::sleep(due(sent).saturating_duration_since(Instant::now()));
            }
            Ok(SendResult { sent, cpu: cpu::thread_time()? })
        };
        Ok(thread::Builder::new().name("sender-pace".to_owned()).spawn(work)?)
    }

    /// Sends one event for each guild in this index range, on every shard.
    pub(crate) fn send_once_each(&self, indices: std::ops::Range<usize>) -> anyhow::Result<u64> {
        let mut sent = 0;
        for connection in self.0.connections.iter().filter(|connection| !connection.frames.is_empty()) {
            let mut buffer = Vec::new();
            let mut last = connection.sent.load(Ordering::Acquire);
            for index in indices.clone() {
                last += 1;
                connection.frames.append_for_guild(index, last, &mut buffer);
                sent += 1;
            }
            connection.write(&mut buffer, last)?;
        }
        Ok(sent)
    }
}

impl ShardConnection {
    fn writes(&self) -> MutexGuard<'_, Option<TcpStream>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frame(&self, seq: u64, due: u64, to: &mut Vec<u8>) {
        self.due[due_slot(seq)].store(due, Ordering::Release);
        self.frames.append(seq, to);
    }

    /// Writes the buffer, whose last event has this sequence number.
    fn write(&self, buffer: &mut Vec<u8>, last: u64) -> anyhow::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let mut writes = self.writes();
        self.sent.store(last, Ordering::Release);
        writes.as_mut().context("a shard has no session")?.write_all(buffer).context("cannot write to a shard")?;
        buffer.clear();
        Ok(())
    }
}

fn due_slot(seq: u64) -> usize {
    seq as usize % DUE_SLOTS
}

impl Shared {
    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Accepts connections until the process exits.
    fn listen(self: Arc<Self>, listener: &TcpListener) {
        while let Ok((stream, _)) = listener.accept() {
            let shared = Arc::clone(&self);
            let serve = move || {
                // Fails when the peer closes the connection.
                let _ = shared.serve(stream);
            };
            if thread::Builder::new().name("sender-read".to_owned()).spawn(serve).is_err() {
                return;
            }
        }
    }

    fn serve(&self, stream: TcpStream) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = accept_websocket(stream)?;
        let mut current: Option<&ShardConnection> = None;
        let send =
            |connection: Option<&ShardConnection>, mut stream: &TcpStream, value: &Value| -> anyhow::Result<()> {
                let mut frame = Vec::new();
                wire::append_text(&[value.to_string().as_bytes()], &mut frame);
                // The lock prevents a write in the middle of another frame.
                let _writes = connection.map(ShardConnection::writes);
                stream.write_all(&frame)?;
                Ok(())
            };
        send(None, &stream, &json!({ "op": 10, "t": null, "s": null, "d": { "heartbeat_interval": 41_250 } }))?;
        loop {
            let text = match wire::read_frame(&mut stream)? {
                ClientFrame::Text(text) => text,
                ClientFrame::Close => {
                    let _writes = current.map(ShardConnection::writes);
                    (&stream).write_all(&wire::CLOSE)?;
                    return Ok(stream.shutdown(Shutdown::Both)?);
                }
                ClientFrame::Other => continue,
            };
            let message: Value = serde_json::from_slice(&text)?;
            match message["op"].as_u64() {
                Some(1) => send(current, &stream, &json!({ "op": 11 }))?,
                Some(2) => {
                    let shard = message["d"]["shard"][0].as_u64().unwrap_or(0);
                    let connection = self
                        .connections
                        .get(usize::try_from(shard)?)
                        .with_context(|| format!("unknown shard {shard}"))?;
                    send(None, &stream, &self.ready(shard))?;
                    connection.sent.store(1, Ordering::Release);
                    if connection.writes().replace(stream.try_clone()?).is_some() {
                        self.reconnects.fetch_add(1, Ordering::AcqRel);
                    }
                    current = Some(connection);
                }
                Some(6) => {
                    self.reconnects.fetch_add(1, Ordering::AcqRel);
                    return Err(anyhow!("a shard tried to resume"));
                }
                Some(_) | None => {}
            }
        }
    }

    fn ready(&self, shard: u64) -> Value {
        json!({ "t": "READY", "s": 1, "op": 0, "d": {
            "v": 10, "session_id": format!("{shard:032x}"), "resume_gateway_url": format!("ws://{}", self.address),
            "shard": [shard, self.connections.len()], "guilds": [], "application": { "id": "198622483471925248", "flags": 0 },
            "user": { "id": "198622483471925248", "username": "bench", "discriminator": "0", "bot": true, "avatar": null },
        }})
    }
}

/// Performs the WebSocket handshake, and returns the connection for the frames that follow.
fn accept_websocket(stream: TcpStream) -> anyhow::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    stream.set_nonblocking(true)?;
    let stream = runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream)?;
        // A gateway client waits for HELLO, so nothing beyond the handshake is read.
        let (_, socket) = tokio_websockets::ServerBuilder::new().accept(stream).await?;
        anyhow::Ok(socket.into_inner().into_std()?)
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}
