//! Published messages and their subscribers.

use guildhall::redis::{RedisClient, RedisErrorReason, RedisKeys, Script, Subscription, SubscriptionEvent};
use guildhall_testkit::redis::RedisServer;

use super::{SHORT_TIMEOUT, connect, connect_with_timeout, echo_until_ok, wait_for_failure, with_timeout};

/// Publishes messages on a channel from a script.
async fn publish(redis: &RedisClient, channel: &str, messages: &[&str]) {
    let script = Script::new("publish", "for _, word in ipairs(ARGV) do redis.call('PUBLISH', KEYS[1], word) end");
    let args = messages.iter().map(|word| word.as_bytes().to_vec()).collect();
    redis.run(&script, &[channel.to_owned()], |_| args).await.unwrap();
}

async fn next(subscription: &mut Subscription) -> SubscriptionEvent {
    with_timeout(subscription.next()).await
}

fn message(text: &str) -> SubscriptionEvent {
    SubscriptionEvent::Message(text.to_owned().into())
}

#[tokio::test]
async fn messages_arrive_in_order_on_their_channel() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let (a, b) = (RedisKeys::new(1).of("a"), RedisKeys::new(1).of("b"));
    let mut on_a = redis.subscribe(&a);
    let mut on_b = redis.subscribe(&b);
    assert_eq!(
        (next(&mut on_a).await, next(&mut on_b).await),
        (SubscriptionEvent::Subscribed, SubscriptionEvent::Subscribed)
    );
    publish(&redis, &a, &["1", "2"]).await;
    publish(&redis, &b, &["3"]).await;
    publish(&redis, &a, &["4"]).await;
    for text in ["1", "2", "4"] {
        assert_eq!(next(&mut on_a).await, message(text));
    }
    assert_eq!(next(&mut on_b).await, message("3"));
}

#[tokio::test]
async fn second_subscriber_gets_subscribed_and_later_messages() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let channel = RedisKeys::new(1).of("a");
    let mut first = redis.subscribe(&channel);
    assert_eq!(next(&mut first).await, SubscriptionEvent::Subscribed);
    publish(&redis, &channel, &["early"]).await;
    let mut second = redis.subscribe(&channel);
    assert_eq!(next(&mut second).await, SubscriptionEvent::Subscribed);
    publish(&redis, &channel, &["late"]).await;
    assert_eq!(next(&mut second).await, message("late"));
    // A repeated `Subscribed` is harmless.
    for event in [message("early"), SubscriptionEvent::Subscribed, message("late")] {
        assert_eq!(next(&mut first).await, event);
    }
}

#[tokio::test]
async fn subscription_survives_a_restart_and_reports_it() {
    let mut server = RedisServer::start();
    let redis = connect(server.url());
    let channel = RedisKeys::new(1).of("a");
    let mut subscription = redis.subscribe(&channel);
    for text in ["before", "after"] {
        assert_eq!(next(&mut subscription).await, SubscriptionEvent::Subscribed);
        publish(&redis, &channel, &[text]).await;
        assert_eq!(next(&mut subscription).await, message(text));
        server.restart_empty();
        assert_eq!(next(&mut subscription).await, SubscriptionEvent::Lost);
    }
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Subscribed);
}

#[tokio::test]
async fn subscription_is_lost_when_calls_time_out() {
    let server = RedisServer::start();
    let redis = connect_with_timeout(SHORT_TIMEOUT, server.url());
    let mut subscription = redis.subscribe(&RedisKeys::new(1).of("a"));
    echo_until_ok(&redis).await;
    server.stop();
    wait_for_failure(&redis, RedisErrorReason::Timeout).await;
    server.resume();
    let mut events = vec![next(&mut subscription).await];
    // On a slow machine the connection may be lost more than once.
    while events.len() < 3 || events.last() != Some(&SubscriptionEvent::Subscribed) {
        events.push(next(&mut subscription).await);
    }
    for (number, event) in events.iter().enumerate() {
        let expected = if number % 2 == 0 { SubscriptionEvent::Subscribed } else { SubscriptionEvent::Lost };
        assert_eq!(*event, expected, "{events:?}");
    }
}

#[tokio::test]
async fn slow_subscriber_must_read_everything_again() {
    let server = RedisServer::start();
    let redis = connect(server.url());
    let channel = RedisKeys::new(1).of("a");
    let mut subscription = redis.subscribe(&channel);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Subscribed);
    let texts: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    publish(&redis, &channel, &texts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    // Its `Subscribed` comes after all messages, so they have arrived.
    let mut other = redis.subscribe(&channel);
    assert_eq!(next(&mut other).await, SubscriptionEvent::Subscribed);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Subscribed);
    let first = next(&mut subscription).await;
    assert!(matches!(first, SubscriptionEvent::Message(_)) && first != message("0"), "{first:?}");
    while next(&mut subscription).await != message("999") {}
}

#[tokio::test]
async fn subscription_alone_keeps_the_connection_up() {
    let mut server = RedisServer::start();
    let mut subscription = connect(server.url()).subscribe(&RedisKeys::new(1).of("a"));
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Subscribed);
    server.restart_empty();
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Lost);
    assert_eq!(next(&mut subscription).await, SubscriptionEvent::Subscribed);
}
