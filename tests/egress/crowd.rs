//! Clients that misbehave do not affect others.

use std::net::{SocketAddr, TcpStream};

use guildhall_sim::LimitConfig;
use guildhall_testkit::program::{TEST_TIMEOUT, run_in_its_own_process};
use socket2::{Domain, Socket, Type};
use tokio::task::block_in_place;

use crate::fixture::{Call, EgressFixture, bot, open, read_all};

/// More than would fit into the memory for bodies, if it was reserved for what is only announced.
const ANNOUNCED: usize = 80;
const NEVER_READ: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_huge_and_unread_calls_leave_room_for_others() {
    let settings = [
        ("GUILDHALL__EGRESS__BODY_TIMEOUT_MS", "600000"),
        ("GUILDHALL__EGRESS__WRITE_TIMEOUT_MS", "600000"),
        ("GUILDHALL__EGRESS__IDLE_TIMEOUT_MS", "600000"),
    ];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    let guild = fixture.sim.guilds()[0];
    let channel = fixture.channel_of(guild);
    let key = fixture.create_key(&["egress", "application"]);
    let head = |length: usize| {
        format!(
            "POST /api/v10/channels/{channel}/messages HTTP/1.1\r\nHost: test\r\nAuthorization: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            bot()
        )
    };
    let body = format!("{{\"content\":\"{}\"}}", "x".repeat(1_900));
    let path = format!("/channels/{channel}/messages");
    // Teaches the gate that the route has no limit; otherwise the call that stops would be its probe, and others wait.
    let known = Call { method: "POST", path: &path, authorization: &bot(), body: &body, ..Call::default() };
    assert_eq!(fixture.send(&known).status, 200);
    let crowd: Vec<TcpStream> = block_in_place(|| {
        let announced = (0..ANNOUNCED).map(|_| open(fixture.egress, &head(1024 * 1024)));
        // The first part of a huge body, which then stops.
        let huge = std::iter::once(open(fixture.egress, &format!("{}{}", head(100_000_000), "x".repeat(300_000))));
        let unread = (0..NEVER_READ).map(|_| {
            let call = Call { path: "/voice/regions?big-response", authorization: &bot(), ..Call::default() };
            open(fixture.egress, &call.text())
        });
        announced.chain(huge).chain(unread).collect()
    });
    fixture.wait_for_metric(&format!("guildhall_egress_connections {}", ANNOUNCED + 1 + NEVER_READ));
    fixture.wait_for_metric(&format!("guildhall_egress_calls {}", NEVER_READ + 1));
    for authorization in [&key, &bot()] {
        for _ in 0..5 {
            let call = Call { method: "POST", path: &path, authorization, body: &body, ..Call::default() };
            let response = fixture.send(&call);
            assert_eq!(response.status, 200, "{} {}", response.head, response.body);
        }
    }
    drop(crowd);
    fixture.wait_for_metric("guildhall_egress_calls 0");
}

/// Connections of each of two addresses: all that the defaults permit.
const IDLE_EACH: usize = 5_000;
/// Memory that an idle connection may need.
const BYTES_EACH: u64 = 32 * 1024;

#[test]
fn ten_thousand_idle_connections_are_cheap() {
    run_in_its_own_process("crowd::idle_connections_of_a_process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above, in a process that may open as many files"]
async fn idle_connections_of_a_process() {
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let settings = [("GUILDHALL__EGRESS__IDLE_TIMEOUT_MS", "3600000")];
    let fixture = EgressFixture::start_with(LimitConfig::off(), &settings).await;
    assert_eq!(fixture.get("/users/@me").status, 200);
    let before = fixture.running.resident_bytes();
    let connect = |from: &str| connect_from(from.parse().unwrap(), fixture.egress);
    let addresses = || (0..IDLE_EACH).map(|_| "127.0.0.2:0").chain((1..IDLE_EACH).map(|_| "127.0.0.3:0"));
    let mut idle: Vec<TcpStream> =
        block_in_place(|| addresses().chain(std::iter::once("127.0.0.4:0")).map(connect).collect());
    fixture.wait_for_metric(&format!("guildhall_egress_connections {}", 2 * IDLE_EACH));
    let after = fixture.running.resident_bytes();
    let most = before + BYTES_EACH * 2 * IDLE_EACH as u64;
    assert!(after <= most, "{before} bytes before, {after} after, at most {most}");
    // Others are served: of the address with the most, the connection that was idle for the longest time is closed.
    for _ in 0..3 {
        assert_eq!(fixture.get("/users/@me").status, 200);
        fixture.wait_for_metric(&format!("guildhall_egress_connections {}", 2 * IDLE_EACH - 1));
    }
    let second = idle.swap_remove(1);
    let first = idle.swap_remove(0);
    assert_eq!(block_in_place(|| read_all(first)), "");
    // An address with its part closes its own.
    let more = block_in_place(|| ["127.0.0.2:0"; 2].map(connect));
    assert_eq!(block_in_place(|| read_all(second)), "");
    drop((idle, more));
    fixture.wait_for_metric("guildhall_egress_connections 0");
}

fn connect_from(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}
