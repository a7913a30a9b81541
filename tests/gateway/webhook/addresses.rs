//! Addresses that webhooks may have, and attempts to bypass the rule.

use guildhall::webhook::{WebhookConfig, WebhookTarget, Webhooks};
use guildhall_testkit::brain::{Brain, respond};

use super::fixture::{
    FakeResolver, SHORT_TIMEOUT, call_webhook, config, disabled_breaker, expect_no_retry, expect_retry_later, run,
    target, webhooks, webhooks_with,
};

/// A public address by its form that is not in use: that part of IPv6 is not allocated.
const UNALLOCATED: &str = "2e00::1";

fn short_connect_timeout() -> WebhookConfig {
    WebhookConfig { connect_timeout: SHORT_TIMEOUT, ..config() }
}

/// A webhook by name at the brain's port that must be public.
fn public_target(brain: &Brain) -> WebhookTarget {
    WebhookTarget { allow_private: false, ..named_target(brain) }
}

fn named_target(brain: &Brain) -> WebhookTarget {
    target("greet", &format!("http://brain.test:{}/", brain.address.port()))
}

fn open_webhooks(target: WebhookTarget, resolver: &std::sync::Arc<FakeResolver>) -> Webhooks {
    webhooks_with(vec![target], &short_connect_timeout(), disabled_breaker(), resolver.clone())
}

#[test]
fn private_addresses_are_not_called_unless_allowed() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "::ffff:127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
        ] {
            let reason = expect_no_retry(
                call_webhook(&open_webhooks(public_target(&brain), &FakeResolver::returning(&[&[address]])), "greet")
                    .await,
            );
            assert!(reason.contains(address) && reason.contains("allow_private"), "{reason}");
        }
        assert_eq!(brain.received().connections, 0);
        // All of these would have reached the brain.
        for address in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"] {
            call_webhook(&open_webhooks(named_target(&brain), &FakeResolver::returning(&[&[address]])), "greet")
                .await
                .unwrap();
        }
        assert_eq!(brain.received().requests.len(), 3);
        assert!(brain.received().requests[0].header("host").starts_with("brain.test:"));
    });
}

#[test]
fn private_address_in_the_url_is_refused() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        let port = brain.address.port();
        for host in ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]", "localhost"] {
            let url = format!("http://{host}:{port}/");
            call_webhook(&webhooks(vec![target("greet", &url)]), "greet").await.map_or_else(
                // `localhost` does not resolve here, because there is no name server.
                |error| assert_eq!(host, "localhost", "{error}"),
                |_| assert_ne!(host, "localhost"),
            );
            let refused = WebhookTarget { allow_private: false, ..target("greet", &url) };
            let breaker = actix::Actor::start(guildhall_actors::circuit_breaker::CircuitBreaker::new(
                guildhall_actors::clock::Clock::start(),
                disabled_breaker(),
                guildhall_core::invalid::InvalidConfig::default(),
                1,
            ));
            let error = Webhooks::new(vec![refused], &config(), breaker).unwrap_err().to_string();
            assert!(error.contains("greet") && error.contains("allow_private"), "{error}");
        }
    });
}

#[test]
fn dns_rebinding_does_not_bypass_the_check() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        let resolver = FakeResolver::returning(&[&[UNALLOCATED], &["127.0.0.1"]]);
        let webhooks = open_webhooks(public_target(&brain), &resolver);
        let (reason, _) = expect_retry_later(call_webhook(&webhooks, "greet").await);
        assert!(reason.contains("cannot connect to the webhook"), "{reason}");
        assert_eq!(resolver.lookups(), 1, "the address that was checked is the one that is called");
        expect_no_retry(call_webhook(&webhooks, "greet").await);
        assert_eq!(resolver.lookups(), 2);
        assert_eq!(brain.received().connections, 0);
    });
}

#[test]
fn only_allowed_addresses_of_a_name_are_tried() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        for addresses in [[UNALLOCATED, "127.0.0.1"], ["127.0.0.1", UNALLOCATED]] {
            expect_retry_later(
                call_webhook(&open_webhooks(public_target(&brain), &FakeResolver::returning(&[&addresses])), "greet")
                    .await,
            );
            assert_eq!(brain.received().connections, 0);
        }
        // An unreachable address does not prevent the next one.
        let resolver = FakeResolver::returning(&[&[UNALLOCATED, "127.0.0.1"]]);
        call_webhook(&open_webhooks(named_target(&brain), &resolver), "greet").await.unwrap();
    });
}

#[test]
fn failed_lookup_is_retried_later() {
    run(async {
        let brain = Brain::always(respond(204, "", "")).await;
        for (resolver, expected) in
            [(FakeResolver::empty(), "no such name"), (FakeResolver::returning(&[&[]]), "has no address")]
        {
            let (reason, _) =
                expect_retry_later(call_webhook(&open_webhooks(named_target(&brain), &resolver), "greet").await);
            assert!(reason.contains("brain.test") && reason.contains(expected), "{reason}");
        }
    });
}
