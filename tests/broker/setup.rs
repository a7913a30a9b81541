//! Settings that do not fit the server are explained.

use lapin::{
    options::{QueueDeclareOptions, QueueDeleteOptions},
    types::FieldTable,
};

use crate::fixture::{BrokerFixture, broker_state, shared_server, wait_for_reason, wait_until, wait_until_ready};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_queue_is_explained_with_the_command_that_fixes_it() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "mismatch", 2).await;
    let channel = fixture.connect().await.create_channel().await.unwrap();
    let queue = fixture.queue("events.p01");
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, FieldTable::default()).await.unwrap();
    let fix = format!("rabbitmqctl --vhost '/' delete_queue '{queue}' --if-empty");
    let (code, output) = fixture.run(&["broker", "declare"], &[]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains(&fix) && output.contains("inequivalent arg"), "{output}");
    let daemon = fixture.start_daemon(&[]);
    let address = daemon.wait_until_listening().await.unwrap();
    wait_for_reason(address, &fix).await;
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    wait_until("it is ready", || broker_state(address)["state"] == "ready").await;
    let (code, output) = fixture.run(&["broker", "check"], &[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains(&queue) && output.contains("mismatch.dlq"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_login_and_vhost_are_explained_without_the_password() {
    let server = shared_server().await;
    let mut fixture = BrokerFixture::new(&server, "login", 1).await;
    for (url, reason) in [
        (server.url_of("guest:wr0ng-passw0rd", "%2F"), "check the user and the password in broker.url"),
        (server.url_of("guest:guest", "nowhere"), "check the vhost in broker.url"),
    ] {
        fixture.url = url;
        let daemon = fixture.start_daemon(&[]);
        let address = daemon.wait_until_listening().await.unwrap();
        wait_for_reason(address, reason).await;
        assert!(!daemon.log_tail().contains("wr0ng"), "{}", daemon.log_tail());
        let (code, output) = fixture.run(&["broker", "check"], &[]).await;
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains(reason) && !output.contains("wr0ng"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_others_declared_are_only_checked() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "theirs", 1).await;
    let not_declared = [("BROKER__DECLARE", "false")];
    let (code, output) = fixture.run(&["broker", "check"], &not_declared).await;
    assert!(code == Some(1) && output.contains("guildhall broker declare"), "{output}");
    let (code, output) = fixture.run(&["broker", "declare"], &[]).await;
    assert_eq!(code, Some(0), "{output}");
    // The limits of the queues differ, which does not matter.
    let daemon = fixture.start_daemon(&[not_declared[0], ("BROKER__QUEUE_MAX_MESSAGES", "7")]);
    wait_until_ready(&daemon).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_for_the_broker_needs_its_url() {
    let server = shared_server().await;
    let fixture = BrokerFixture::new(&server, "nourl", 1).await;
    let mut command = fixture.command(&["serve"], &[]);
    command.env_remove("GUILDHALL__BROKER__URL");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("handler `bus` publishes to the broker") && text.contains("GUILDHALL__BROKER__URL"),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(1));
}
