//! The scan of a frame agrees with a full parse of it, for any text.

mod promise;

use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use guildhall_core::event::{Envelope, FrameError, JsonString, read};
use guildhall_core::time::UnixMs;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::string::string_regex;

use self::promise::check_scan;

/// Frames as Discord sends them.
const FRAMES: [&str; 8] = [
    r#"{"t":"MESSAGE_CREATE","s":1204,"op":0,"d":{"type":0,"tts":false,"timestamp":"2026-03-01T12:00:00.000000+00:00","mentions":[],"id":"1212000000000000001","guild_id":"81384788765712384","author":{"username":"ada","id":"53908232506183680","avatar":null},"member":{"roles":["1","2"],"nick":null},"content":"caf\u00e9 \"now\"? \ud83d\ude00","channel_id":"381870553235193857"}}"#,
    r#"{"op":0,"s":2,"t":"INTERACTION_CREATE","d":{"version":1,"type":2,"token":"aW50ZXJhY3Rpb24","member":{"user":{"id":"53908232506183680"},"permissions":"0"},"id":"845027738276462632","guild_id":"81384788765712384","data":{"type":1,"options":[{"name":"x","value":-1.5e3}],"name":"hello","id":"845027738276462600"},"channel_id":"381870553235193857","application_id":"845027738276462000"}}"#,
    r#"{"op":0,"s":3,"t":"INTERACTION_CREATE","d":{"type":3,"token":"t","user":{"id":"5"},"id":"8","message":{"id":"1","author":{"id":"2"}},"data":{"custom_id":"vote:7","component_type":2},"application_id":"9"}}"#,
    r#"{"op":0,"s":4,"t":"GUILD_CREATE","d":{"members":[{"user":{"id":"1"},"roles":[[]],"deaf":true}],"id":"81384788765712384","channels":[{"id":"2","guild_id":"3"}],"name":"A {guild} [of] ours"}}"#,
    r#"{"t":null,"s":null,"op":10,"d":{"heartbeat_interval":41250,"_trace":["[\"gateway\",{\"micros\":0.0}]"]}}"#,
    r#"{"op":11}"#,
    "{ \"op\" : 0 , \"d\" : { \"user_id\" : 53908232506183680 , \"guild_id\" : null } ,\r\n\t\"s\" : 5 , \"t\" : \"TYPING_START\" }",
    r#"{"op":0,"s":6,"t":"SOME_NEW_EVENT","d":[1,2,{"id":"3"}]}"#,
];

/// Parts that a mutation inserts into a frame: mostly JSON tokens.
const FRAGMENTS: [&str; 32] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    ":",
    " ",
    "\n",
    "null",
    "true",
    "false",
    "0",
    "-",
    "1e999",
    "1.",
    ".5",
    "e+",
    "\\u0064",
    "\\ud800",
    "\\udc00",
    "\\q",
    "\u{1}",
    "\u{7f}",
    "é",
    "\"d\":",
    "\"id\":",
    "\"op\":0,",
    "\"s\":7,",
    "\"user\":{\"id\":\"4\"},",
    "99999999999999999999",
];

const KEYS: [&str; 24] = [
    "op",
    "t",
    "s",
    "d",
    "id",
    "guild_id",
    "channel_id",
    "user_id",
    "user",
    "author",
    "member",
    "application_id",
    "type",
    "token",
    "data",
    "name",
    "custom_id",
    "component_type",
    "",
    "i",
    "ID",
    "d\u{e9}",
    "content",
    "d",
];

/// A string as JSON text, with some characters escaped.
fn json_string(text: &str, escapes: u64) -> String {
    let mut out = String::from('"');
    for (index, c) in text.chars().enumerate() {
        if escapes >> (index % 64) & 1 == 1 || c.is_control() || c == '"' || c == '\\' {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                out += &format!("\\u{unit:04X}");
            }
        } else {
            out.push(c);
        }
    }
    out.push('"');
    out
}

fn spaces() -> impl Strategy<Value = &'static str> {
    prop_oneof![5 => Just(""), 1 => select(vec![" ", "\n", "\t\r", "  \n "])]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        string_regex("[0-9]{1,20}").expect("a pattern"),
        select(KEYS.to_vec()).prop_map(str::to_owned),
        any::<String>()
    ]
}

/// Numbers in all forms of JSON.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..300_u32).prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        string_regex("-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,9})?([eE][+-]?[0-9]{1,3})?").expect("a pattern"),
    ]
}

/// JSON text of any shape, with the keys that the scan uses in all positions, also repeated.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        2 => number(),
        3 => (text(), any::<u64>()).prop_map(|(text, escapes)| json_string(&text, escapes)),
        3 => text().prop_map(|text| json_string(&text, 0)),
        1 => select(vec!["null", "true", "false"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(6, 48, 8, |inner| {
        let escapes = prop_oneof![4 => Just(0), 1 => any::<u64>()];
        let entry = (select(KEYS.to_vec()), escapes, spaces(), spaces(), inner.clone()).prop_map(
            |(key, escapes, before, after, value)| {
                format!("{before}{}{after}:{after}{value}{before}", json_string(key, escapes))
            },
        );
        prop_oneof![
            5 => prop::collection::vec(entry, 0..8).prop_map(|entries| format!("{{{}}}", entries.join(","))),
            1 => prop::collection::vec(inner, 0..4).prop_map(|values| format!("[{}]", values.join(", "))),
        ]
    })
}

/// A frame with a payload of any shape, with its fields in any order and perhaps repeated.
fn frame() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        (0..300_u32).prop_map(|op| format!("\"op\":{op}")),
        Just("\"op\":0".to_owned()),
        any::<u64>().prop_map(|s| format!("\"s\":{s}")),
        Just("\"t\":\"MESSAGE_CREATE\"".to_owned()),
        json().prop_map(|d| format!("\"d\":{d}")),
        json().prop_map(|d| format!("\"\\u0064\" : {d}")),
        json().prop_map(|other| format!("\"other\":{other}")),
    ];
    (spaces(), prop::collection::vec(part, 1..7))
        .prop_map(|(space, parts)| format!("{{{},\"op\":0{space}}}", parts.join(",")))
}

/// A mutation: a position, the number of characters to remove, and the text to insert.
fn mutation() -> impl Strategy<Value = (Index, usize, String)> {
    let inserted = prop_oneof![
        3 => select(FRAGMENTS.to_vec()).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        1 => string_regex("[-+.0-9eE]{1,6}").expect("a pattern"),
        1 => json(),
    ];
    (any::<Index>(), 0..4_usize, inserted)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text: String) {
        check_scan(&text);
    }

    #[test]
    fn any_json_fragments_are_read_or_refused(bits in prop::collection::vec(select(FRAGMENTS.to_vec()), 0..24)) {
        check_scan(&bits.concat());
        check_scan(&format!("{{{}}}", bits.concat()));
    }

    #[test]
    fn json_of_any_shape_matches_a_full_parse(text in json()) {
        check_scan(&text);
    }

    #[test]
    fn frames_of_any_shape_match_a_full_parse(text in frame()) {
        check_scan(&text);
    }

    #[test]
    fn damaged_frames_are_read_or_refused(
        frame in select(FRAMES.to_vec()),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let mut chars = frame.chars().collect::<Vec<_>>();
        for (index, out, put) in mutations {
            let from = index.index(chars.len() + 1);
            let to = chars.len().min(from + out);
            chars.splice(from..to, put.chars());
        }
        check_scan(&chars.into_iter().collect::<String>());
    }
}

#[test]
fn real_frames_are_read_and_truncated_ones_refused() {
    for frame in FRAMES {
        check_scan(frame);
        assert!(Envelope::scan(frame).is_ok());
        for (end, _) in frame.char_indices() {
            check_scan(&frame[..end]);
            assert!(Envelope::scan(&frame[..end]).is_err());
        }
    }
}

#[test]
fn deep_nesting_matches_a_full_parse_and_uses_no_stack() {
    for (open, close) in [("[", "]"), ("{\"d\":", "}"), ("[{\"user\":", "}]")] {
        for depth in [1, 61, 62, 63, 64, 124, 125, 126, 127, 128, 200] {
            check_scan(&format!(r#"{{"op":0,"d":{}0{}}}"#, open.repeat(depth), close.repeat(depth)));
            check_scan(&format!(
                r#"{{"op":0,"d":{{"member":{{"user":{}0{}}}}}}}"#,
                open.repeat(depth),
                close.repeat(depth)
            ));
        }
        let depth = format!(r#"{{"op":0,"d":{}"#, open.repeat(1_000_000));
        assert!(matches!(Envelope::scan(&depth), Err(FrameError::TooDeep { .. })));
    }
}

#[test]
fn last_of_repeated_keys_counts() {
    for data in [
        r#"{"id":"1","id":"2"}"#,
        r#"{"id":"1","id":null}"#,
        r#"{"user":{"id":"1"},"user":{"name":"x"}}"#,
        r#"{"user":{"id":"1"},"user":7}"#,
        r#"{"member":{"user":{"id":"1"},"user":[]}}"#,
        r#"{"member":{"user":{"id":"1"}},"member":{}}"#,
        r#"{"data":{"name":"x","custom_id":"y","component_type":2},"data":{}}"#,
        r#"{"guild_id":"1","token":"x","token":5,"type":2,"type":"2"}"#,
        r#"{"gu\u0069ld_id":"1\u0030"}"#,
    ] {
        check_scan(&format!(r#"{{"op":0,"d":{data}}}"#));
        check_scan(&format!(r#"{{"op":0,"d":{data},"d":{{}}}}"#));
        check_scan(&format!(r#"{{"op":0,"d":{data},"d":0}}"#));
        check_scan(&format!(r#"{{"op":"0","d":{data},"op":0,"t":1,"t":"X","s":"1","s":null}}"#));
    }
}

#[test]
fn malformed_ids_are_ignored() {
    for id in [
        "0",
        "\"0\"",
        "-1",
        "-0",
        "1.0",
        "1e3",
        "\"+5\"",
        "\"-5\"",
        "\" 5\"",
        "\"\"",
        "\"5x\"",
        "true",
        "[5]",
        "18446744073709551616",
        "\"18446744073709551616\"",
        "18446744073709551615",
        "\"18446744073709551615\"",
        "\"007\"",
        "\"\\u0035\"",
        "1e400",
        "\"\u{665}\"",
    ] {
        check_scan(&format!(r#"{{"op":0,"d":{{"id":{id},"user":{{"id":{id}}}}}}}"#));
    }
}

#[test]
fn numbers_follow_json() {
    let mut numbers = vec![String::new()];
    for from in 0.. {
        let Some(number) = numbers.get(from).cloned() else { break };
        check_scan(&format!(r#"{{"op":{number}}}"#));
        check_scan(&format!(r#"{{"op":0,"s":{number},"d":{{"id":{number},"content":[{number}]}}}}"#));
        if number.len() < 5 {
            numbers.extend(["0", "7", "-", "+", ".", "e"].map(|next| format!("{number}{next}")));
        }
    }
}

#[test]
fn escapes_follow_json() {
    for escape in (0..=0x7f_u8).map(char::from) {
        for rest in ["", "0", "00e", "00E9", "00e9f", "00g9", "d800", "d83d\\ude00", "dude"] {
            for prefix in ["", "123456", "1234567"] {
                check_scan(&format!(r#"{{"op":0,"d":{{"content":"{prefix}\{escape}{rest}","\{escape}{rest}":0}}}}"#));
            }
        }
    }
}

#[test]
fn unused_values_may_be_unrepresentable() {
    let text = r#"{"op":0,"t":"X","s":1,"d":{"content":"\ud800","\udfff":1,"much":1e999,"guild_id":"7"}}"#;
    let envelope = Envelope::scan(text).expect("it is JSON");
    assert_eq!(envelope.ids.guild_id, NonZeroU64::new(7));
    let half = Envelope::scan(r#"{"op":0,"d":{"token":"\udead","id":"\ud800"}}"#).expect("it is JSON");
    assert_eq!((half.ids.id, half.ids.token.map(JsonString::text)), (None, Some(None)));
}

#[test]
fn errors_have_a_position_and_no_content() {
    for (text, expected) in [
        (r#"{"op":0,"t":"secret}"#, "invalid JSON: expected the rest of a string at byte 20; "),
        (r#"{"op":0,"t":secret}"#, "invalid JSON: expected a value at byte 12; "),
        (r#"{"op":0,"t":{"secret":1}}"#, "`t` is not a string at byte 12; "),
        (r#"{"op":256}"#, "`op` is not a number from 0 to 255 at byte 6; "),
        (r#"{"s": -1,"op":0}"#, "`s` is not a whole number at byte 6; "),
        (r#"{"secret":1}"#, "`op` is missing; "),
        (r#"["secret"]"#, "invalid JSON: expected an object at byte 0; "),
        (r#"{"op":0} secret"#, "invalid JSON: expected the end at byte 9; "),
    ] {
        let error = Envelope::scan(text).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let debug_text = format!("{:?}", Envelope::scan(r#"{"op":0,"d":{"token":"secret"}}"#));
    assert!(!debug_text.contains("secret"), "{debug_text}");
}

#[test]
#[ignore = "a measurement: run it alone, with --release --nocapture"]
fn measure_scan_time() {
    let member = r#"{"user":{"username":"somebody","id":"53908232506183680","global_name":"Some Body","avatar":"a_1269e74af4df7417b13759eae50c83dc","discriminator":"0"},"roles":["41771983423143936","41771983423143937"],"premium_since":null,"nick":null,"mute":false,"joined_at":"2015-04-26T06:26:56.936000+00:00","flags":0,"deaf":false}"#;
    let members = vec![member; 3_000].join(",");
    let guild =
        format!(r#"{{"op":0,"s":4,"t":"GUILD_CREATE","d":{{"members":[{members}],"id":"81384788765712384"}}}}"#);
    for text in [FRAMES[0], FRAMES[1], &guild] {
        let rounds = (200_000 / text.len()).max(1);
        let session = Arc::from("a-session");
        // The best of many rounds, to exclude other load on the machine.
        let (mut scan, mut whole) = (f64::MAX, f64::MAX);
        for _ in 0..400 {
            let texts = vec![text.to_owned(); rounds];
            let started = Instant::now();
            for text in &texts {
                black_box(Envelope::scan(black_box(text)).expect("it is a frame"));
            }
            scan = scan.min(started.elapsed().as_secs_f64() * 1e9 / rounds as f64);
            let mut events = Vec::with_capacity(rounds);
            let started = Instant::now();
            for text in texts {
                events.push(read(text, 0, &session, UnixMs::new(0)).expect("it is a frame"));
            }
            whole = whole.min(started.elapsed().as_secs_f64() * 1e9 / rounds as f64);
        }
        println!(
            "{} bytes: scan {scan:.0} ns ({:.2} a byte), read {whole:.0} ns",
            text.len(),
            scan / text.len() as f64
        );
    }
}
