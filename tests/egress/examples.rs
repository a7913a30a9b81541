//! The examples for discord.js and discord.py, as `examples/README.md` describes them. `scripts/conformance --install`
//! installs the libraries.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use guildhall_sim::{FireSpec, LimitConfig, RateLimitScore};
use guildhall_testkit::program::{CANARY, TEST_TIMEOUT};
use tokio::task::block_in_place;

use crate::fixture::EgressFixture;

/// A running example; it ends with this.
struct ExampleBot(Child);

impl Drop for ExampleBot {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A path in the repository.
fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn start(mut command: Command, fixture: &EgressFixture) -> ExampleBot {
    let library = repository(".conformance");
    assert!(library.is_dir(), "{} is missing; run scripts/conformance --install", library.display());
    let mut child = command
        .env("DISCORD_TOKEN", CANARY)
        .env("EGRESS_URL", format!("http://{}", fixture.egress))
        .env("GATEWAY_URL", format!("{}/", fixture.sim.gateway_url()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}; run scripts/conformance --install: {error}"));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let bot = ExampleBot(child);
    let ready = lines.next().map(Result::unwrap).unwrap_or_default();
    let address = format!(", by http://{}", fixture.egress);
    assert!(ready.starts_with("ready as ") && ready.ends_with(&address), "{ready}");
    bot
}

async fn check_example(command: Command) {
    let fixture = EgressFixture::start_with(LimitConfig::default(), &[]).await;
    let guild = fixture.sim.guilds()[0];
    let _bot = block_in_place(|| start(command, &fixture));
    let fired = fixture.sim.fire(FireSpec::command(guild, "hello")).await.unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    let message = loop {
        let created = fixture.sim.score().created.get(&guild.to_string()).cloned().unwrap_or_default();
        let text = created.into_keys().find(|name| name.ends_with(" says hello to everybody."));
        if let Some(message) = text {
            break message;
        }
        assert!(Instant::now() < deadline, "no message; {:?}", fixture.sim.score());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(message.starts_with("message <@"), "{message}");
    let score = fixture.sim.score();
    assert_eq!((score.interactions.answered, score.duplicates, score.invalid_requests), (1, 0, 0));
    assert_eq!(score.rate_limited, RateLimitScore::default());
    // Every call of the bot has passed the proxy.
    let application = fixture.sim.application(CANARY).unwrap();
    assert_eq!(fixture.upstream.calls(&format!("/applications/{application}/commands ")).len(), 1);
    let callback = format!("/interactions/{}/", fired.id.unwrap());
    assert_eq!(fixture.upstream.calls(&callback).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discord_js_bot_works_through_the_proxy() {
    let mut command = Command::new("node");
    command
        .arg(repository("examples/egress_discord_js.cjs"))
        .env("NODE_PATH", repository(".conformance/node/node_modules"));
    check_example(command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discord_py_bot_works_through_the_proxy() {
    let mut command = Command::new(repository(".conformance/python/bin/python"));
    command.arg("-B").arg(repository("examples/egress_discord_py.py"));
    check_example(command).await;
}
