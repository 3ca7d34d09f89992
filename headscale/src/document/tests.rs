use proptest::prelude::*;

use super::*;

const FULL: &str = r##"// people's part
{
  "groups": { "group:ops": ["ann@", "bob@example.com"], },
  "hosts": { "db": "192.0.2.10/32" },
  "TagOwners": { "tag:router": ["group:ops"], "tag:egress-db": [] },
  "autoApprovers": { "routes": { "192.0.2.0/24": ["tag:router"] }, "exitNode": ["tag:router"] },
  /* old */
  "acls": [{ "#note": "x", "action": "accept", "proto": "tcp", "src": ["*"], "dst": ["db:5432"] }],
  "grants": [
    { "src": ["tag:egress-db"], "dst": ["192.0.2.10/32"], "ip": ["tcp:5432"], "via": ["tag:router"] },
    { "src": ["group:ops"], "dst": ["tag:router"], "app": { "tailscale.com/cap/webui": [{ "n": 1 }] } },
  ],
  "ssh": [{ "action": "check", "src": ["group:ops"], "dst": ["tag:router"], "users": ["root"], "checkPeriod": "12h", "acceptEnv": ["LANG"] }],
  "tests": [{ "src": "tag:egress-db", "proto": "tcp", "accept": ["db:5432"], "deny": ["db:22"] }],
  "sshTests": [{ "src": "ann@", "dst": ["tag:router"], "accept": ["root"], "deny": ["x"], "check": ["y"] }],
  "nodeAttrs": [{ "target": ["tag:router"], "attr": ["randomize-client-port"] }],
  "randomizeClientPort": true,
}
"##;

#[test]
fn everything_is_read() {
    let document = Document::parse(FULL).unwrap();
    assert_eq!(document.problems(), []);
    insta::assert_debug_snapshot!(document.policy());
}

#[test]
fn posture() {
    let posture = |text: &str| Document::parse(text).unwrap().policy().posture();
    for text in ["", "null", "{}", r#"{"acls":null}"#, r#"{"Grants":null,"hosts":{}}"#] {
        assert_eq!(posture(text), Posture::AllowAll, "{text}");
    }
    for text in [r#"{"acls":[]}"#, r#"{"grants":[]}"#, r#"{"acls":7}"#] {
        assert_eq!(posture(text), Posture::Deny, "{text}");
    }
}

#[test]
fn problems_have_places() {
    let text = r#"{
  "acls": [],
  "ACLs": [],
  "postures": {},
  "tagOwners": { "tag:a": ["x@"], "tag:ü": "y@", "tag:a": [] },
  "grants": [{ "src": ["*", 7], "ipp": ["*"] }, "x"],
  "randomizeClientPort": 1
}"#;
    let document = Document::parse(text).unwrap();
    let told: Vec<String> = document.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "line 3, column 3: ACLs: the key is there twice (case does not matter)",
            "line 4, column 3: postures: Headscale does not know this key; it knows groups, hosts, tagOwners, acls, grants, \
             nodeAttrs, autoApprovers, ssh, tests, sshTests, randomizeClientPort",
            "line 5, column 44: tagOwners[\"tag:ü\"]: must be a list of strings, is a string",
            "line 5, column 50: tagOwners[\"tag:a\"]: the key is there twice (case does not matter)",
            "line 6, column 29: grants[0].src[1]: must be a string, is a number",
            "line 6, column 33: grants[0].ipp: Headscale does not know this key; it knows src, dst, ip, app, via",
            "line 6, column 49: grants[1]: must be an object, is a string",
            "line 7, column 26: randomizeClientPort: must be true or false, is a number",
        ]
    );
    assert_eq!(document.policy().tag_owners["tag:a"], ["x@"], "the first of two counts");
}

#[test]
fn not_hujson() {
    for (text, told) in [
        ("{\n  \"acls\": [\n}", "line 3, column 1: "),
        ("{a: 1}", "line 1, column 2: "),
        ("{\"a\": 'x'}", "line 1, column 7: "),
        ("{\"a\": 1 \"b\": 2}", "line 1, column "),
        ("{} {}", "line 1, column 4: "),
        ("{\"a\": 0x10}", "line 1, column "),
        ("/* open", "line 1, column 1: "),
    ] {
        let error = Document::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(told), "{text:?}: {error}");
    }
}

#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    assert!(Document::parse(&"[".repeat(100_000)).is_err());
}

proptest! {
    #[test]
    fn reading_never_panics(text in "[\\[\\]{}\",:/*a-z0-9 \\n\\\\ü]{0,80}") {
        let _ = Document::parse(&text);
    }
}
