use std::{fs, path::Path, time::Duration};

use guildhall_core::{limit::shared::LimitFallback, policy::Rate};
use twilight_model::gateway::Intents;

use super::{schema::SCHEMA, *};

const CANARY: &str = "MTk4NjIyNDgzNDcx.canary-Token_0123456789";

fn sources(file: &Path, environment: &[(&str, &str)], flags: &[Flag]) -> SettingsSources {
    SettingsSources {
        file: Some(file.to_owned()),
        environment: environment.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        flags: flags.to_vec(),
    }
}

/// Loads a file with this text, this environment and these flags.
fn load_with(text: &str, environment: &[(&str, &str)], flags: &[Flag]) -> Result<LoadedSettings, SettingsError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("guildhall.toml");
    fs::write(&file, text).unwrap();
    load(sources(&file, environment, flags))
}

fn errors_of(text: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let error = load_with(text, environment, &[]).err().expect("these settings are invalid");
    assert!(!format!("{error:?}{error}").contains(CANARY), "the token is in {error}");
    error.problems.iter().map(ToString::to_string).collect()
}

fn effective<'a>(loaded: &'a LoadedSettings, key: &str) -> &'a EffectiveSetting {
    loaded.effective_settings().find(|setting| setting.key() == key).unwrap()
}

fn origin_of(loaded: &LoadedSettings, key: &str) -> String {
    effective(loaded, key).origin()
}

/// Everything that can be displayed.
fn displayed(loaded: &LoadedSettings) -> String {
    let effective = loaded.effective_settings().map(|setting| (setting.key(), &setting.value, setting.origin()));
    format!("{:?} {:?}", loaded.settings, effective.collect::<Vec<_>>())
}

#[test]
fn unset_settings_have_their_defaults() {
    let loaded = load_with("", &[], &[]).unwrap();
    assert_eq!(loaded.settings.discord.api_url, "https://discord.com/api/v10");
    assert_eq!(loaded.settings.discord.gateway_url, None);
    assert!(loaded.settings.discord.token.is_none());
    assert_eq!(loaded.settings.gateway.shards, 0);
    assert_eq!(loaded.settings.api.bind.to_string(), "127.0.0.1:8080");
    assert_eq!(loaded.settings.shutdown.timeout, Duration::from_secs(10));
    assert_eq!(loaded.effective_settings().count(), SCHEMA.len());
}

#[test]
fn the_default_intents_need_no_permission_from_discord() {
    let intents = load_with("", &[], &[]).unwrap().settings.gateway.intents;
    let privileged = Intents::GUILD_MEMBERS | Intents::GUILD_PRESENCES | Intents::MESSAGE_CONTENT;
    assert!(!intents.intersects(privileged));
}

#[test]
fn later_layers_override_earlier_ones_with_their_origin() {
    let text = "[gateway]\n\nshards = 2\n[api]\nbind = \"127.0.0.1:1\"\n[log]\nfilter = \"warn\"\n";
    let environment = [("GUILDHALL__GATEWAY__SHARDS", "3"), ("GUILDHALL__API__BIND", "127.0.0.1:2"), ("PATH", "/bin")];
    let flag = Flag { name: "--shards", path: "gateway.shards", value: "4".to_owned() };
    let loaded = load_with(text, &environment, &[flag]).unwrap();
    assert_eq!(loaded.settings.gateway.shards, 4);
    assert_eq!(loaded.settings.api.bind.port(), 2);
    assert_eq!(origin_of(&loaded, "gateway.shards"), "flag --shards");
    assert_eq!(origin_of(&loaded, "api.bind"), "environment GUILDHALL__API__BIND");
    assert!(origin_of(&loaded, "log.filter").ends_with("guildhall.toml:7"), "{}", origin_of(&loaded, "log.filter"));
    assert_eq!(origin_of(&loaded, "log.format"), "default");
}

#[test]
fn all_errors_are_reported_with_key_origin_and_allowed_values() {
    let text = "[gateway]\nshards = 20000\nintents = [\"guild_member\"]\n[api]\nbind = \"localhost\"\nbnid = 1\n[log]\nformat = true\n";
    let errors = errors_of(text, &[("GUILDHALL__SHUTDOWN__TIMEOUT_MS", "soon"), ("GUILDHALL__LOG__FILTER", "info,=,")]);
    let expected = [
        ("api.bnid is not a setting; did you mean `api.bind`?", "guildhall.toml:6"),
        ("gateway.shards cannot be 20000; allowed: a whole number from 0 to 16000", "guildhall.toml:2"),
        ("did you mean `guild_members`?", "guildhall.toml:3"),
        ("api.bind cannot be \"localhost\"; allowed: an IP address and a port", "guildhall.toml:5"),
        ("log.format cannot be true; allowed: auto, pretty or json", "guildhall.toml:8"),
        ("log.filter cannot be \"info,=,\"", "environment GUILDHALL__LOG__FILTER"),
        ("shutdown.timeout_ms cannot be \"soon\"", "environment GUILDHALL__SHUTDOWN__TIMEOUT_MS"),
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (message, origin) in expected {
        assert!(errors.iter().any(|error| error.contains(message) && error.contains(origin)), "{message}: {errors:#?}");
    }
}

#[test]
fn unknown_variable_suggests_a_variable() {
    let errors = errors_of("", &[("GUILDHALL__DISCORD__TOKN", CANARY), ("GUILDHALL_PORT", "tcp://10.0.0.1")]);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert!(errors[0].contains("did you mean `GUILDHALL__DISCORD__TOKEN`?"), "{errors:#?}");
}

#[test]
fn unknown_sections_and_settings_outside_a_section_are_errors() {
    let errors = errors_of("discord = 1\nshards = 2\n[discrod]\ntoken = \"x\"\n[nothing]\n", &[]);
    assert!(errors.iter().any(|error| error.contains("discord is a section")), "{errors:#?}");
    assert!(errors.iter().any(|error| error.starts_with("shards is not a setting")), "{errors:#?}");
    assert!(errors.iter().any(|error| error.contains("did you mean `discord.token`?")), "{errors:#?}");
    assert!(errors.iter().any(|error| error.starts_with("nothing is not a setting")), "{errors:#?}");
}

#[test]
fn invalid_secret_is_never_displayed() {
    let token_with_space = format!("{CANARY} ");
    let with_prefix = format!("Bot {CANARY}");
    for invalid in [token_with_space.as_str(), with_prefix.as_str()] {
        assert_eq!(errors_of("", &[("GUILDHALL__DISCORD__TOKEN", invalid)]).len(), 1);
        assert_eq!(errors_of(&format!("[discord]\ntoken = \"{invalid}\"\n"), &[]).len(), 1);
    }
    // Syntax errors in the line with the token itself.
    for line in [
        format!("token = {CANARY}"),
        format!("token = \"{CANARY}"),
        format!("token = '{CANARY}\""),
        format!("token = \"{CANARY}\" x"),
        format!("token = [\"{CANARY}\"]"),
        format!("token = \"{CANARY}\"\ntoken = \"{CANARY}\""),
        format!("token_file = [\"{CANARY}\"]"),
        format!("token = \"\\q{CANARY}\""),
    ] {
        assert!(!errors_of(&format!("[discord]\n{line}\n"), &[]).is_empty());
    }
}

#[test]
fn password_in_a_url_is_rejected_and_not_displayed() {
    for url in ["https://me:hunter2@127.0.0.1/", "me:hunter2@127.0.0.1"] {
        let errors = errors_of("", &[("GUILDHALL__DISCORD__API_URL", url)]);
        assert!(errors.len() == 1 && !errors[0].contains("hunter2"), "{errors:#?}");
    }
}

#[test]
fn trailing_slash_of_a_url_is_removed() {
    let loaded = load_with("[discord]\ngateway_url = \"ws://127.0.0.1:9/\"\n", &[], &[]).unwrap();
    assert_eq!(loaded.settings.discord.gateway_url.as_deref(), Some("ws://127.0.0.1:9"));
}

#[test]
fn secret_file_is_read_without_its_trailing_newline() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("token");
    fs::write(&secret, format!("{CANARY}\r\n")).unwrap();
    let path = secret.to_str().unwrap();
    let loaded = load_with("", &[("GUILDHALL__DISCORD__TOKEN_FILE", path)], &[]).unwrap();
    assert_eq!(loaded.settings.discord.token.as_ref().unwrap().expose(), CANARY);
    assert!(origin_of(&loaded, "discord.token").contains(path));
    let text = displayed(&loaded);
    assert!(!text.contains(CANARY), "{text}");
}

#[test]
fn missing_empty_or_invalid_secret_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty"), "\n").unwrap();
    fs::write(path("odd"), format!("{CANARY}\n{CANARY}\n")).unwrap();
    for (name, message) in [("missing", "cannot be read"), ("empty", "is empty"), ("odd", "whose content")] {
        let errors = errors_of("", &[("GUILDHALL__DISCORD__TOKEN_FILE", &path(name))]);
        assert!(errors[0].contains(message) && errors[0].contains(name), "{errors:#?}");
    }
}

#[test]
fn both_forms_of_a_secret_conflict_only_within_a_layer() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("token");
    fs::write(&secret, "from-the-file").unwrap();
    let path = secret.to_str().unwrap();

    let both = [("GUILDHALL__DISCORD__TOKEN", CANARY), ("GUILDHALL__DISCORD__TOKEN_FILE", path)];
    assert!(errors_of("", &both)[0].contains("is set twice"));

    let in_file = format!("[discord]\ntoken_file = \"{path}\"\n");
    let higher = load_with(&in_file, &[("GUILDHALL__DISCORD__TOKEN", CANARY)], &[]).unwrap();
    assert_eq!(higher.settings.discord.token.unwrap().expose(), CANARY);

    let in_file = format!("[discord]\ntoken = \"{CANARY}\"\n");
    let higher = load_with(&in_file, &[("GUILDHALL__DISCORD__TOKEN_FILE", path)], &[]).unwrap();
    assert_eq!(higher.settings.discord.token.unwrap().expose(), "from-the-file");
}

#[test]
fn invalid_redis_url_is_explained_but_never_displayed() {
    for (url, message) in [
        (format!("redis://{CANARY}@127.0.0.1"), "user without a password"),
        (format!("redis://:{CANARY}/@127.0.0.1"), "write / as %2F"),
        (format!("http://:{CANARY}@127.0.0.1"), "does not start with redis://"),
        (CANARY.to_owned(), "does not start with redis://"),
        (String::new(), "is empty"),
    ] {
        let in_environment = errors_of("", &[("GUILDHALL__REDIS__URL", &url)]);
        let in_file = errors_of(&format!("[redis]\nurl = \"{url}\"\n"), &[]);
        for errors in [in_environment, in_file] {
            assert!(errors.len() == 1 && errors[0].contains(message), "{url}: {errors:#?}");
            assert!(errors[0].contains("allowed: redis://"), "{errors:#?}");
        }
    }
    let listed = errors_of(&format!("[redis]\nurl = [\"redis://:{CANARY}@127.0.0.1\"]\n"), &[]);
    assert!(listed[0].contains("has an invalid value"), "{listed:#?}");
}

#[test]
fn login_of_a_redis_url_is_never_displayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    let url = format!("rediss://me:{CANARY}@127.0.0.1:7000/2");
    fs::write(&file, &url).unwrap();
    for (name, value) in
        [("GUILDHALL__REDIS__URL", url.as_str()), ("GUILDHALL__REDIS__URL_FILE", file.to_str().unwrap())]
    {
        let loaded = load_with("", &[(name, value)], &[]).unwrap();
        let given = loaded.settings.redis.url.as_ref().unwrap();
        assert_eq!(given.password.as_ref().unwrap().expose(), CANARY);
        assert_eq!(effective(&loaded, "redis.url").value, "rediss://(redacted)@127.0.0.1:7000/2");
        let all = displayed(&loaded);
        assert!(!all.contains(CANARY), "{all}");
    }
}

#[test]
fn redis_is_optional_and_has_defaults() {
    let settings = load_with("", &[], &[]).unwrap().settings;
    assert!(settings.redis.url.is_none() && settings.redis.ca_file.is_none() && settings.redis.seat_dir.is_none());
    assert_eq!(settings.redis.on_loss, LimitFallback::Share);
    assert_eq!(settings.redis.timeout, Duration::from_millis(250));
    assert_eq!(settings.egress.ip_group, "default");
    let set = load_with("[redis]\non_loss = \"open\"\nca_file = \"ca.pem\"\n[egress]\nip_group = \"b-2\"\n", &[], &[]);
    let settings = set.unwrap().settings;
    assert_eq!((settings.redis.on_loss, settings.egress.ip_group.as_str()), (LimitFallback::Open, "b-2"));
    assert_eq!(settings.redis.ca_file.as_deref(), Some(Path::new("ca.pem")));
}

#[test]
fn store_defaults_to_sqlite_and_its_password_is_never_displayed() {
    let store = load_with("", &[], &[]).unwrap().settings.store;
    assert_eq!(store.url.to_string(), "sqlite:data/guildhall.db");
    assert!(store.migrate);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("url");
    let url = format!("postgres://me:{CANARY}@127.0.0.1/guildhall");
    fs::write(&file, &url).unwrap();
    for (name, value) in
        [("GUILDHALL__STORE__URL", url.as_str()), ("GUILDHALL__STORE__URL_FILE", file.to_str().unwrap())]
    {
        let loaded = load_with("", &[(name, value)], &[]).unwrap();
        let all = displayed(&loaded);
        assert!(all.contains("postgres://(redacted)@127.0.0.1/guildhall") && !all.contains(CANARY), "{all}");
        assert!(loaded.settings.secrets().iter().any(|secret| secret.expose() == CANARY));
    }
    let errors = errors_of("", &[("GUILDHALL__STORE__URL", &format!("postgres://me:{CANARY}@:port"))]);
    assert!(errors.len() == 1 && errors[0].contains("is not a valid PostgreSQL URL"), "{errors:#?}");
    let errors = errors_of("[store]\nurl = \"sqlite::memory:\"\n", &[]);
    assert!(errors[0].contains("would lose every accepted operation"), "{errors:#?}");
}

#[test]
fn names_reject_special_characters() {
    for invalid in ["", "a b", "a:b", "{a}", &"a".repeat(65)] {
        let errors = errors_of("", &[("GUILDHALL__EGRESS__IP_GROUP", invalid)]);
        assert!(errors.len() == 1 && errors[0].starts_with("egress.ip_group"), "{errors:#?}");
    }
}

#[test]
fn a_lost_heartbeat_must_not_detach_a_process() {
    let errors = errors_of("[redis]\nheartbeat_ms = 1500\n", &[]);
    assert!(errors[0].starts_with("redis.heartbeat_ms is 1500, which is not less than half of"), "{errors:#?}");
    assert!(errors.len() == 1 && errors[0].contains("guildhall.toml:2"), "{errors:#?}");
    let errors = errors_of("", &[("GUILDHALL__REDIS__SILENCE_MS", "2000")]);
    assert!(errors.len() == 1 && errors[0].contains("environment GUILDHALL__REDIS__SILENCE_MS"), "{errors:#?}");
    assert!(load_with("[redis]\nheartbeat_ms = 1499\n", &[], &[]).is_ok());
}

#[test]
fn a_share_must_not_return_while_it_may_be_used() {
    let errors = errors_of("[redis]\nforget_ms = 573000\n", &[]);
    assert!(errors.len() == 1 && errors[0].starts_with("redis.forget_ms is 573000"), "{errors:#?}");
    assert!(errors[0].contains("raise redis.forget_ms or lower redis.share_for_ms"), "{errors:#?}");
    assert!(load_with("[redis]\nforget_ms = 573001\n", &[], &[]).is_ok());
    let errors = errors_of("[redis]\nshare_for_ms = 567000\n", &[]);
    assert!(errors.len() == 1 && errors[0].contains("guildhall.toml:2"), "{errors:#?}");
}

#[test]
fn calls_are_booked_less_than_a_second_ahead() {
    let errors = errors_of("[redis]\nhorizon_ms = 1000\n", &[]);
    assert!(errors.len() == 1 && errors[0].contains("allowed: a whole number from 1 to 999"), "{errors:#?}");
}

#[test]
fn shard_range_needs_a_matching_shard_count() {
    let set = |shards, range| {
        let set = [("GUILDHALL__GATEWAY__SHARDS", shards), ("GUILDHALL__GATEWAY__SHARD_RANGE", range)];
        load_with("", &set, &[]).map(|loaded| loaded.settings.gateway.shard_range).map_err(|error| error.to_string())
    };
    assert_eq!(set("8", "4-7").unwrap().unwrap().to_string(), "4-7");
    assert_eq!(set("8", "").unwrap(), None);
    for (shards, range, message) in [
        ("0", "0-3", "set gateway.shards to the same number in every process"),
        ("8", "4-8", "with gateway.shards = 8 the last shard is 7"),
        ("8", "5-4", "ends with shard 4, before its first shard 5"),
        ("8", "4", "two shard numbers"),
    ] {
        let error = set(shards, range).unwrap_err();
        assert!(error.contains("gateway.shard_range") && error.contains(message), "{error}");
    }
}

#[test]
fn reconnect_base_must_not_exceed_the_cap() {
    let errors = errors_of("[gateway]\nreconnect_base_ms = 5000\nreconnect_cap_ms = 4000\n", &[]);
    assert!(errors.len() == 1 && errors[0].starts_with("gateway.reconnect_base_ms is 5000"), "{errors:#?}");
}

#[test]
fn named_file_must_exist() {
    let error = load(sources(Path::new("no/such/file.toml"), &[], &[])).err().unwrap();
    assert!(error.to_string().contains("no/such/file.toml cannot be read"), "{error}");
}

#[test]
fn shipped_file_is_the_template_and_every_line_is_valid() {
    assert_generated("config/guildhall.toml", |_| template());
    let shipped = template();
    let is_secret = |line: &str| {
        ["#token", "#url", "#direct_url", "#admin_key", "#otlp_headers"].iter().any(|start| line.starts_with(start))
    };
    let switched_on: String = shipped
        .lines()
        .filter(|line| !line.starts_with("# ") && !is_secret(line))
        .map(|line| format!("{}\n", line.trim_start_matches('#')))
        .collect();
    let loaded = load_with(&switched_on, &[], &[]).unwrap();
    let from_file = loaded.effective_settings().filter(|setting| setting.origin().contains("guildhall.toml:")).count();
    let secrets = SCHEMA.iter().filter(|setting| setting.kind.is_secret()).count();
    assert_eq!(from_file, SCHEMA.len() - secrets, "all but the secrets");
}

#[test]
fn container_example_needs_only_its_mounted_secrets() {
    let example = include_str!("../../config/examples/container.toml");
    let errors = errors_of(example, &[]);
    assert!(errors.len() == 2 && errors[0].contains("/run/secrets/discord_token"), "{errors:#?}");
    assert!(errors[1].contains("/run/secrets/guildhall_admin_key"), "{errors:#?}");
    let secrets = [("GUILDHALL__DISCORD__TOKEN", CANARY), ("GUILDHALL__API__ADMIN_KEY", CANARY)];
    let loaded = load_with(example, &secrets, &[]).unwrap();
    assert_eq!(loaded.settings.gateway.shards, 2);
}

/// Returns the table of docs/configuration.md.
fn reference_table() -> String {
    let mut table = "| setting | variable | default | allowed | meaning |\n|---|---|---|---|---|\n".to_owned();
    for setting in SCHEMA.iter() {
        let reload = if setting.reloads() { " **reload**" } else { "" };
        let mut row = |path: &str, default: String, allowed: &str, meaning: &str| {
            let variable = schema::env_name(path);
            table.push_str(&format!("| `{path}` | `{variable}` | {default} | {allowed} | {meaning}{reload} |\n"));
        };
        let default = setting.default.map_or_else(String::new, |default| format!("`{default}`"));
        row(setting.path, default, &setting.kind.allowed(), &link_pages(&setting.help()));
        if let Some(form) = setting.file_form() {
            let meaning = format!("A file that contains only `{}`; a trailing newline is ignored.", setting.path);
            row(&form, String::new(), "the path of a file", &meaning);
        }
    }
    table
}

/// Replaces paths of documentation pages, such as `docs/store.md#bounds`, with links.
fn link_pages(help: &str) -> String {
    let mut parts = help.split("docs/");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || matches!(c, ')' | ',')).unwrap_or(part.len());
        let target = part[..end].trim_end_matches('.');
        let page = target.split('#').next().unwrap_or_default();
        linked.push_str(&format!("[{page}]({target}){}", &part[target.len()..]));
    }
    linked
}

/// Compares a file with the declarations, or writes it if `UPDATE_GENERATED` is set.
fn assert_generated(path: &str, expected: impl FnOnce(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path).unwrap();
    let expected = expected(&text);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&path, expected).unwrap();
    } else {
        assert!(text == expected, "regenerate {} with UPDATE_GENERATED=1, see CONTRIBUTING.md", path.display());
    }
}

#[test]
fn docs_have_the_table_of_the_declared_settings() {
    assert_generated("docs/configuration.md", |page| {
        let (before, rest) = page.split_once("| setting | variable |").unwrap();
        let (_, after) = rest.split_once("\n\n").unwrap();
        format!("{before}{}\n{after}", reference_table())
    });
}

#[test]
fn reachable_address_needs_a_key() {
    let plaintext = ("GUILDHALL__API__ALLOW_PLAINTEXT", "true");
    for address in ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
        let errors = errors_of("", &[("GUILDHALL__API__BIND", address), plaintext]);
        assert!(errors.len() == 1 && errors[0].contains("api.admin_key is not set"), "{errors:#?}");
        let set = [("GUILDHALL__API__BIND", address), ("GUILDHALL__API__ADMIN_KEY", CANARY), plaintext];
        assert!(load_with("", &set, &[]).is_ok(), "{address}");
    }
    for address in ["127.0.0.1:0", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        assert!(load_with("", &[("GUILDHALL__API__BIND", address)], &[]).is_ok(), "{address}");
    }
}

#[test]
fn reachable_address_needs_tls_unless_plaintext_is_allowed() {
    let open = [("GUILDHALL__API__BIND", "0.0.0.0:8080"), ("GUILDHALL__API__ADMIN_KEY", CANARY)];
    let errors = errors_of("", &open);
    assert!(errors.len() == 1 && errors[0].starts_with("api.bind is 0.0.0.0:8080"), "{errors:#?}");
    assert!(errors[0].contains("api.tls.cert_file") && errors[0].contains("api.allow_plaintext = true"), "{errors:#?}");
    let loaded = load_with("[api]\nallow_plaintext = true\n", &open, &[]).unwrap();
    assert!(loaded.settings.api.tls.is_none());
    let loaded = load_with("[api.tls]\ncert_file = \"a.pem\"\nkey_file = \"b.pem\"\n", &open, &[]).unwrap();
    let files = TlsSettings { section: "api.tls", cert_file: "a.pem".into(), key_file: "b.pem".into() };
    assert_eq!(loaded.settings.api.tls, Some(files));
    assert!(origin_of(&loaded, "api.tls.key_file").ends_with("guildhall.toml:3"));
}

#[test]
fn tls_needs_both_of_its_files() {
    for (name, given, other) in [
        ("GUILDHALL__API__TLS__CERT_FILE", "api.tls.cert_file", "api.tls.key_file is not"),
        ("GUILDHALL__API__TLS__KEY_FILE", "api.tls.key_file", "api.tls.cert_file is not"),
    ] {
        let errors = errors_of("", &[(name, "some.pem")]);
        assert!(errors.len() == 1 && errors[0].starts_with(given) && errors[0].contains(other), "{errors:#?}");
    }
}

#[test]
fn subsections_are_read_and_validated() {
    let loaded = load_with("[api]\nmax_connections = 7\npolicies.light_burst = 5\n", &[], &[]).unwrap();
    assert_eq!(loaded.settings.api.policies.light.unwrap().burst(), 5);
    assert_eq!(loaded.settings.api.max_connections, 7);
    let errors = errors_of("[api.policies]\nheavy_brust = 5\n[api.tsl]\ncert_file = \"\"\n", &[]);
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(errors.iter().any(|error| error.contains("did you mean `api.policies.heavy_burst`?")), "{errors:#?}");
    assert!(errors.iter().any(|error| error.starts_with("api.tsl is not a setting")), "{errors:#?}");
    let errors = errors_of("", &[("GUILDHALL__API__POLICIES", "1")]);
    assert!(errors[0].contains("is a section, not a setting"), "{errors:#?}");
}

#[test]
fn proxies_are_addresses_and_networks() {
    let in_file = load_with("[api]\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]\n", &[], &[]).unwrap();
    let set = [("GUILDHALL__API__TRUSTED_PROXIES", "10.0.0.0/8, ::1,")];
    for loaded in [in_file, load_with("", &set, &[]).unwrap()] {
        let named: Vec<_> = loaded.settings.api.trusted_proxies.iter().map(ToString::to_string).collect();
        assert_eq!(named, ["10.0.0.0/8", "::1"]);
        assert_eq!(effective(&loaded, "api.trusted_proxies").value, serde_json::json!(["10.0.0.0/8", "::1"]));
    }
    let errors = errors_of("[api]\ntrusted_proxies = [\"10.1.0.0/8\"]\n", &[]);
    assert!(errors.len() == 1 && errors[0].contains("write 10.0.0.0/8 for the network"), "{errors:#?}");
}

#[test]
fn a_delay_leaves_time_for_the_shutdown_itself() {
    let errors = errors_of("[shutdown]\ntimeout_ms = 5000\ndelay_ms = 5000\n", &[]);
    assert!(errors.len() == 1 && errors[0].starts_with("shutdown.delay_ms is 5000"), "{errors:#?}");
    assert!(load_with("[shutdown]\ntimeout_ms = 5000\ndelay_ms = 4999\n", &[], &[]).is_ok());
}

#[test]
fn a_rate_of_nothing_is_no_limit() {
    let policies = load_with("", &[], &[]).unwrap().settings.api.policies;
    let rates = [policies.heavy, policies.light, policies.failed].map(|rate| rate.map(Rate::burst));
    assert_eq!(rates, [Some(2_000), Some(300), Some(200)]);
    let set = [("GUILDHALL__API__POLICIES__HEAVY_PER_SECOND", "0")];
    assert!(load_with("", &set, &[]).unwrap().settings.api.policies.heavy.is_none());
}

#[test]
fn short_key_is_rejected_and_keys_are_never_displayed() {
    let errors = errors_of("", &[("GUILDHALL__API__ADMIN_KEY", "fifteen-letters")]);
    assert!(errors.len() == 1 && errors[0].starts_with("api.admin_key has 15 characters"), "{errors:#?}");
    assert!(!errors[0].contains("fifteen-letters"), "{errors:#?}");
    let loaded = load_with("", &[("GUILDHALL__API__ADMIN_KEY", "sixteen-letters.")], &[]).unwrap();
    assert!(!displayed(&loaded).contains("sixteen-letters"));
    let secrets: Vec<_> = loaded.settings.secrets().iter().map(|secret| secret.expose().to_owned()).collect();
    assert_eq!(secrets, ["sixteen-letters."]);
}

#[test]
fn budgets_parse_from_list_and_variable_and_errors_are_explained() {
    let text = "[budgets]\nnamed = [\"shop=1000/50\", \"rpc=300/0.5\"]\nothers = \"5/1\"\n";
    let loaded = load_with(text, &[], &[]).unwrap();
    let named: Vec<_> = loaded.settings.budgets.named.iter().map(ToString::to_string).collect();
    assert_eq!(named, ["shop=1000/50", "rpc=300/0.5"]);
    assert!(loaded.settings.budgets.others.is_some());
    let set = [("GUILDHALL__BUDGETS__NAMED", "a=1/0, b=2/1"), ("GUILDHALL__BUDGETS__OTHERS", "")];
    let loaded = load_with(text, &set, &[]).unwrap();
    assert_eq!(loaded.settings.budgets.named.len(), 2);
    assert_eq!(loaded.settings.budgets.others, None);
    for (value, message) in [
        ("shop", "not of the form"),
        ("Shop=1/1", "name"),
        ("a=0/1", "before the `/`"),
        ("a=1/x", "after the `/`"),
        ("a=1/1,a=2/2", "twice"),
    ] {
        let errors = errors_of("", &[("GUILDHALL__BUDGETS__NAMED", value)]);
        assert!(errors.len() == 1 && errors[0].contains(message) && errors[0].contains("allowed"), "{errors:?}");
    }
    let many = errors_of("[budgets]\nnamed = [\"a=1/1\", \"b=1/1\"]\nmost = 1\n", &[]);
    assert!(many[0].contains("budgets.most") && many[0].contains(":2"), "{many:?}");
}

#[test]
fn settle_time_below_the_request_timeout_is_rejected() {
    let errors = errors_of("[operations]\nsettle_ms = 5000\n[rest]\nrequest_timeout_ms = 8000\n", &[]);
    assert_eq!(errors.len(), 1, "{errors:?}");
    for part in ["operations.settle_ms", "is 5000", "rest.request_timeout_ms (8000)", "at least 8000", ":2"] {
        assert!(errors[0].contains(part), "{part}: {errors:?}");
    }
    let errors = errors_of("[operations]\nsettle_ms = \"soon\"\n", &[]);
    assert!(errors.len() == 1 && errors[0].starts_with("operations.settle_ms cannot be"), "{errors:?}");
    for (settle, expected) in [("0", 8), ("8000", 8), ("9000", 9)] {
        let text = format!("[operations]\nsettle_ms = {settle}\n[rest]\nrequest_timeout_ms = 8000\n");
        let loaded = load_with(&text, &[], &[]).unwrap();
        assert_eq!(loaded.settings.operations.settle, Duration::from_secs(expected));
    }
}

#[test]
fn changes_name_every_setting_that_differs_and_no_secret() {
    let old = load_with("[gateway]\nshards = 1\n", &[("GUILDHALL__DISCORD__TOKEN", "old-token")], &[]).unwrap();
    let set = [("GUILDHALL__DISCORD__TOKEN", "new-token"), ("GUILDHALL__LOG__FILTER", "debug")];
    let new = load_with("[gateway]\nshards = 2\n", &set, &[]).unwrap();
    let changes = old.changes_to(&new);
    let keys: Vec<_> = changes.iter().map(|change| (change.key, change.reloads)).collect();
    assert_eq!(keys, [("discord.token", true), ("gateway.shards", false), ("log.filter", true)]);
    assert_eq!((&changes[1].old, &changes[1].new), (&1.into(), &2.into()));
    assert!(!format!("{changes:?}").contains("-token"), "{changes:?}");
    assert!(old.changes_to(&old).is_empty());
    let store = |password: &str| {
        let url = format!("postgres://user:{password}@127.0.0.1/db");
        load_with("", &[("GUILDHALL__STORE__URL", &url)], &[]).unwrap()
    };
    assert_eq!(store("one").changes_to(&store("two")).len(), 1, "only the password differs");
}
