//! TLS, passwords and access control lists, and what the log says about them.

use std::{fs, path::PathBuf};

use guildhall::redis::{
    ACL_RULES, RedisClient, RedisConfig, RedisConfigError, RedisErrorReason, RedisKeys, Script, SubscriptionEvent,
};
use guildhall::settings::RedisUrl;
use guildhall_testkit::{log::Log, redis::RedisServer};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use redis::Value;
use tempfile::TempDir;

use super::{TEST_TIMEOUT, command, connect, echo_until_ok, run_id, wait_for_failure, with_timeout};

const CANARY: &str = "canary-Password";

/// Creates a directory with a certificate authority and a certificate of it for `localhost`.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = ca.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &ca, &ca_key).unwrap();
    write("ca.pem", ca.pem());
    write("server.pem", server.pem());
    write("server.key", key.serialize_pem());
    folder
}

fn connect_with_ca(url: RedisUrl, ca_file: PathBuf) -> Result<RedisClient, RedisConfigError> {
    RedisClient::new(RedisConfig { url, ca_file: Some(ca_file), timeout: TEST_TIMEOUT })
}

#[tokio::test]
async fn certificate_must_be_from_a_trusted_authority() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = RedisServer::start_in_directory(
        certificates(),
        &[
            &["--port", "0", "--tls-port", "{port}", "--tls-auth-clients", "no"][..],
            &["--tls-cert-file", "{folder}/server.pem", "--tls-key-file", "{folder}/server.key"],
            &["--tls-ca-cert-file", "{folder}/ca.pem"],
        ]
        .concat(),
    );
    let url: RedisUrl = format!("rediss://localhost:{}", server.port()).parse().unwrap();
    let redis = connect_with_ca(url.clone(), server.folder().join("ca.pem")).unwrap();
    echo_until_ok(&redis).await;

    let (log, _guard) = Log::capture(tracing::Level::TRACE);
    wait_for_failure(&connect(url), RedisErrorReason::Unreachable).await;
    assert!(log.text().contains("set redis.ca_file"), "{}", log.text());
}

#[tokio::test]
async fn invalid_ca_file_is_an_error_that_names_it() {
    let folder = certificates();
    let url: RedisUrl = "rediss://localhost".parse().unwrap();
    for (name, expected) in [("none.pem", "cannot read"), ("server.key", "contains no certificate")] {
        let error = connect_with_ca(url.clone(), folder.path().join(name)).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(name) && error.contains("redis.ca_file"), "{error}");
    }
}

#[tokio::test]
async fn documented_acl_rules_are_sufficient() {
    let server = RedisServer::start();
    let rules: Vec<_> = ACL_RULES.split(' ').collect();
    command(&server, &[&["ACL", "SETUSER", "me", "on", ">p@ss/word"], &rules[..]].concat()).await;
    let redis = connect(format!("redis://me:p%40ss%2Fword@127.0.0.1:{}/1", server.port()).parse().unwrap());
    assert_eq!(echo_until_ok(&redis).await, run_id(&server).await);

    let channel = RedisKeys::new(1).of("channel");
    let mut subscription = redis.subscribe(&channel);
    assert_eq!(with_timeout(subscription.next()).await, SubscriptionEvent::Subscribed);
    let script = Script::new(
        "everything",
        "local now = redis.call('TIME')
        redis.call('SET', KEYS[1], now[1], 'PX', 60000)
        redis.call('HSET', KEYS[2], 'a', redis.call('INCRBY', KEYS[1], 1))
        redis.call('ZADD', KEYS[3], now[1], 'a')
        redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', 0)
        for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 60000) end
        redis.call('HGETALL', KEYS[2])
        redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
        redis.call('PUBLISH', ARGV[1], 'done')
        return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])",
    );
    let keys: Vec<_> = ["string", "hash", "set"].iter().map(|name| RedisKeys::new(1).of(name)).collect();
    assert_eq!(redis.run(&script, &keys, |_| vec![channel.into()]).await, Ok(Value::Int(3)));
    assert_eq!(with_timeout(subscription.next()).await, SubscriptionEvent::Message("done".into()));
}

#[tokio::test]
async fn user_without_info_gets_the_required_acl_rules() {
    let server = RedisServer::start();
    command(&server, &["ACL", "SETUSER", "me", "on", &format!(">{CANARY}"), "+@all", "-info", "~*", "&*"]).await;
    let (log, _guard) = Log::capture(tracing::Level::TRACE);
    let redis = connect(format!("redis://me:{CANARY}@127.0.0.1:{}", server.port()).parse().unwrap());
    wait_for_failure(&redis, RedisErrorReason::Denied).await;
    assert!(log.text().contains(ACL_RULES) && !log.text().contains(CANARY), "{}", log.text());
    command(&server, &["ACL", "SETUSER", "me", "+info"]).await;
    echo_until_ok(&redis).await;
}

#[tokio::test]
async fn user_without_channels_gets_the_required_acl_rules() {
    let server = RedisServer::start();
    command(&server, &["ACL", "SETUSER", "me", "on", &format!(">{CANARY}"), "+@all", "~*", "resetchannels"]).await;
    let (log, _guard) = Log::capture(tracing::Level::TRACE);
    let redis = connect(format!("redis://me:{CANARY}@127.0.0.1:{}", server.port()).parse().unwrap());
    echo_until_ok(&redis).await;
    let mut subscription = redis.subscribe(&RedisKeys::new(1).of("a"));
    wait_for_failure(&redis, RedisErrorReason::Denied).await;
    assert!(log.text().contains(ACL_RULES), "{}", log.text());
    command(&server, &["ACL", "SETUSER", "me", "&guildhall:*"]).await;
    assert_eq!(with_timeout(subscription.next()).await, SubscriptionEvent::Subscribed);
}

#[tokio::test]
async fn wrong_password_is_logged_without_the_password() {
    let plain = RedisServer::start_with(&["--requirepass", "another"]);
    let repeats = RedisServer::start_with(&["--requirepass", "another", "--rename-command", "HELLO", "BONJOUR"]);
    for (server, reason, expected) in [
        (&plain, RedisErrorReason::Denied, "check the user and the password in redis.url"),
        (&repeats, RedisErrorReason::Error, "unknown command"),
    ] {
        let (log, _guard) = Log::capture(tracing::Level::TRACE);
        let redis = connect(format!("redis://someone:{CANARY}@127.0.0.1:{}", server.port()).parse().unwrap());
        wait_for_failure(&redis, reason).await;
        assert!(log.text().contains(expected) && !log.text().contains(CANARY), "{}", log.text());
    }
}
