//! Addresses that webhooks may have, and attempts to bypass the rule.

use guildhall::webhook::{Target, WebhookConfig, Webhooks};

use crate::brain::{Brain, says};
use crate::stage::{Names, SOON, ask, config, later, never, patient, run, target, webhooks, webhooks_with};

/// A public address by its form that is not in use: that part of IPv6 is not allocated.
const NOWHERE: &str = "2e00::1";

fn soon() -> WebhookConfig {
    WebhookConfig { connect_timeout: SOON, ..config() }
}

/// A webhook by name at the brain's port that must be public.
fn public(brain: &Brain) -> Target {
    Target { allow_private: false, ..by_name(brain) }
}

fn by_name(brain: &Brain) -> Target {
    target("greet", &format!("http://brain.test:{}/", brain.address.port()))
}

fn open(target: Target, names: &std::sync::Arc<Names>) -> Webhooks {
    webhooks_with(vec![target], &soon(), patient(), names.clone())
}

#[test]
fn a_name_that_leads_into_a_private_network_is_not_called_unless_allowed() {
    run(async {
        let brain = Brain::always(says(204, "", "")).await;
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
            let why = never(ask(&open(public(&brain), &Names::at(&[&[address]])), "greet").await);
            assert!(why.contains(address) && why.contains("allow_private"), "{why}");
        }
        assert_eq!(brain.seen().connections, 0);
        // All of these would have reached the brain.
        for address in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"] {
            ask(&open(by_name(&brain), &Names::at(&[&[address]])), "greet").await.unwrap();
        }
        assert_eq!(brain.seen().requests.len(), 3);
        assert!(brain.seen().requests[0].header("host").starts_with("brain.test:"));
    });
}

#[test]
fn an_address_in_the_url_is_refused_before_anything_is_called() {
    run(async {
        let brain = Brain::always(says(204, "", "")).await;
        let port = brain.address.port();
        for host in ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]", "localhost"] {
            let url = format!("http://{host}:{port}/");
            ask(&webhooks(vec![target("greet", &url)]), "greet").await.map_or_else(
                // `localhost` does not resolve here, because there is no name server.
                |error| assert_eq!(host, "localhost", "{error}"),
                |_| assert_ne!(host, "localhost"),
            );
            let refused = Target { allow_private: false, ..target("greet", &url) };
            let breaker = actix::Actor::start(guildhall_actors::circuit_breaker::CircuitBreaker::new(
                guildhall_actors::clock::Clock::start(),
                patient(),
                guildhall_core::invalid::InvalidConfig::default(),
                1,
            ));
            let error = Webhooks::new(vec![refused], &config(), breaker).unwrap_err().to_string();
            assert!(error.contains("greet") && error.contains("allow_private"), "{error}");
        }
    });
}

#[test]
fn a_name_that_leads_elsewhere_when_asked_again_gains_nothing() {
    run(async {
        let brain = Brain::always(says(204, "", "")).await;
        let names = Names::at(&[&[NOWHERE], &["127.0.0.1"]]);
        let webhooks = open(public(&brain), &names);
        let (why, _) = later(ask(&webhooks, "greet").await);
        assert!(why.contains("cannot connect to the webhook"), "{why}");
        assert_eq!(names.asked(), 1, "the address that was checked is the one that is called");
        never(ask(&webhooks, "greet").await);
        assert_eq!(names.asked(), 2);
        assert_eq!(brain.seen().connections, 0);
    });
}

#[test]
fn of_several_addresses_only_those_that_are_allowed_are_tried() {
    run(async {
        let brain = Brain::always(says(204, "", "")).await;
        for addresses in [[NOWHERE, "127.0.0.1"], ["127.0.0.1", NOWHERE]] {
            later(ask(&open(public(&brain), &Names::at(&[&addresses])), "greet").await);
            assert_eq!(brain.seen().connections, 0);
        }
        // An unreachable address does not prevent the next one.
        let both = Names::at(&[&[NOWHERE, "127.0.0.1"]]);
        ask(&open(by_name(&brain), &both), "greet").await.unwrap();
    });
}

#[test]
fn a_name_that_is_not_found_is_looked_up_again_later() {
    run(async {
        let brain = Brain::always(says(204, "", "")).await;
        for (names, why_not) in [(Names::none(), "no such name"), (Names::at(&[&[]]), "has no address")] {
            let (why, _) = later(ask(&open(by_name(&brain), &names), "greet").await);
            assert!(why.contains("brain.test") && why.contains(why_not), "{why}");
        }
    });
}
