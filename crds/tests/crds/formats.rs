//! Every format: many spellings by hand, and properties over arbitrary text.

use std::time::Duration;

use proptest::prelude::*;
use tailnet_crds::types::Spelling::*;
use tailnet_crds::types::*;

/// What a text should turn out to be.
enum Want {
    Ok,
    Write(Spelling, &'static str),
    No,
}
use Want::{No, Ok as Good, Write};

fn check<T: Format>(cases: &[(&str, Want)]) {
    for (text, want) in cases {
        let got = text.parse::<T>();
        match want {
            Good => {
                let value = got.unwrap_or_else(|error| panic!("{} {text:?}: {error}", T::NAME));
                assert_eq!(value.to_string(), *text, "{} is not printed as written", T::NAME);
            }
            Write(spelling, canonical) => {
                let error = got.expect_err(&format!("{} {text:?} was taken", T::NAME));
                assert_eq!(
                    (error.spelling(), error.canonical()),
                    (Some(*spelling), Some(*canonical)),
                    "{text:?}: {error}"
                );
                assert!(
                    error.to_string().contains(canonical),
                    "the message does not name the canonical form: {error}"
                );
            }
            No => {
                let error = got.expect_err(&format!("{} {text:?} was taken", T::NAME));
                assert!(
                    error.canonical().is_none(),
                    "{} {text:?} was read as {:?}",
                    T::NAME,
                    error.canonical()
                );
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn ip_addresses() {
    check::<IpAddress>(&[
        ("192.0.2.10", Good),
        ("0.0.0.0", Good),
        ("255.255.255.255", Good),
        ("2001:db8::1", Good),
        ("::", Good),
        ("fd7a:115c:a1e0::1", Good),
        (" 192.0.2.10", Write(WhiteSpace, "192.0.2.10")),
        ("192.0.2.10\n", Write(WhiteSpace, "192.0.2.10")),
        ("\u{a0}010.0.0.1", Write(WhiteSpace, "10.0.0.1")),
        ("192.0.2.010", Write(LeadingZeros, "192.0.2.10")),
        ("0000010.0.0.1", Write(LeadingZeros, "10.0.0.1")),
        ("0377.0.0.1", Write(HexOrOctal, "255.0.0.1")),
        ("0x0a.0.0.1", Write(HexOrOctal, "10.0.0.1")),
        ("0X0A.0.0.1", Write(HexOrOctal, "10.0.0.1")),
        ("0x7f000001", Write(HexOrOctal, "127.0.0.1")),
        ("127.1", Write(ShortIpv4, "127.0.0.1")),
        ("10.0.3", Write(ShortIpv4, "10.0.0.3")),
        ("2130706433", Write(ShortIpv4, "127.0.0.1")),
        ("0", Write(ShortIpv4, "0.0.0.0")),
        ("192.0.2.10.", Write(TrailingDot, "192.0.2.10")),
        ("::ffff:192.0.2.10", Write(MappedIpv4, "192.0.2.10")),
        ("::ffff:c000:20a", Write(MappedIpv4, "192.0.2.10")),
        ("::FFFF:192.0.2.10", Write(MappedIpv4, "192.0.2.10")),
        ("fe80::1%eth0", Write(ZoneId, "fe80::1")),
        ("2001:DB8::1", Write(UpperCase, "2001:db8::1")),
        ("2001:0db8::1", Write(Ipv6Form, "2001:db8::1")),
        ("2001:db8:0:0:0:0:0:1", Write(Ipv6Form, "2001:db8::1")),
        ("64:ff9b::192.0.2.1", Write(Ipv6Form, "64:ff9b::c000:201")),
        ("", No),
        (" ", No),
        ("10.0.0.300", No),
        ("10.0.0", Write(ShortIpv4, "10.0.0.0")),
        ("10.0.0.0.1", No),
        ("10..0.1", No),
        ("256.0.0.1", No),
        ("0x", No),
        ("0x100000000", No),
        ("4294967296", No),
        ("99999999999999999999", No),
        ("10.0.0.1/32", No),
        ("10.0.0.1:80", No),
        ("[::1]", No),
        ("::1%", No),
        ("fe80::1%eth0%eth1x:", Write(ZoneId, "fe80::1")),
        (":::", No),
        ("1:2:3:4:5:6:7:8:9", No),
        ("example.net", No),
        ("１０.0.0.1", No),
        ("10.0.0.-1", No),
        ("+10.0.0.1", No),
    ]);
}

#[test]
fn address_scopes() {
    use AddressScope::*;
    for (text, scope) in [
        ("0.0.0.0", Unspecified),
        ("0.1.2.3", Unspecified),
        ("::", Unspecified),
        ("127.0.0.53", Loopback),
        ("::1", Loopback),
        ("169.254.169.254", LinkLocal),
        ("fe80::1", LinkLocal),
        ("224.0.0.1", Multicast),
        ("ff02::1", Multicast),
        ("255.255.255.255", Broadcast),
        ("192.0.2.10", Unicast),
        ("100.64.0.1", Unicast),
        ("2001:db8::1", Unicast),
    ] {
        assert_eq!(text.parse::<IpAddress>().expect(text).scope(), scope, "{text}");
    }
}

#[test]
fn cidrs() {
    check::<Cidr>(&[
        ("192.0.2.0/24", Good),
        ("0.0.0.0/0", Good),
        ("192.0.2.10/32", Good),
        ("2001:db8::/32", Good),
        ("::/0", Good),
        ("192.0.2.10/24", Write(HostBits, "192.0.2.0/24")),
        ("2001:db8::1/64", Write(HostBits, "2001:db8::/64")),
        ("192.0.2.0/024", Write(LeadingZeros, "192.0.2.0/24")),
        ("192.000.2.0/24", Write(LeadingZeros, "192.0.2.0/24")),
        ("192.0.2/24", Write(ShortIpv4, "192.0.0.0/24")),
        ("10/8", Write(ShortIpv4, "0.0.0.0/8")),
        ("0xc0.0.2.0/24", Write(HexOrOctal, "192.0.2.0/24")),
        ("::ffff:192.0.2.0/120", Write(MappedIpv4, "192.0.2.0/24")),
        ("::ffff:192.0.2.0/90", No),
        ("fe80::%eth0/64", Write(ZoneId, "fe80::/64")),
        ("2001:DB8::/32", Write(UpperCase, "2001:db8::/32")),
        (" 192.0.2.0/24 ", Write(WhiteSpace, "192.0.2.0/24")),
        ("192.0.2.0 /24", Write(WhiteSpace, "192.0.2.0/24")),
        ("", No),
        ("192.0.2.0", No),
        ("192.0.2.0/", No),
        ("192.0.2.0/33", No),
        ("192.0.2.0/-1", No),
        ("192.0.2.0/+8", No),
        ("192.0.2.0/255.255.255.0", No),
        ("192.0.2.0/24/24", No),
        ("2001:db8::/129", No),
        ("192.0.2.0-192.0.2.9", No),
        ("any", No),
    ]);
    let error = "192.0.2.10".parse::<Cidr>().expect_err("no prefix length");
    assert!(error.to_string().contains("192.0.2.10/32"), "{error}");
    let cidr = |text: &str| text.parse::<Cidr>().expect("a CIDR");
    assert!(cidr("10.0.0.0/8").contains(cidr("10.1.0.0/16")) && !cidr("10.1.0.0/16").contains(cidr("10.0.0.0/8")));
    assert!(cidr("10.1.0.0/16").overlaps(cidr("10.0.0.0/8")) && !cidr("10.0.0.0/8").overlaps(cidr("11.0.0.0/8")));
    assert!(!cidr("0.0.0.0/0").overlaps(cidr("::/0")));
    assert!(cidr("10.0.0.0/8").contains_addr("10.1.2.3".parse().expect("an address")));
}

#[test]
fn dns_names() {
    let label63 = "a".repeat(63);
    let label64 = "a".repeat(64);
    let name253 = format!("{label63}.{label63}.{label63}.{}", "b".repeat(61));
    let name254 = format!("{label63}.{label63}.{label63}.{}", "b".repeat(62));
    check::<DnsName>(&[
        ("api.site.example.net", Good),
        ("localhost", Good),
        ("0.example.net", Good),
        ("3com.example", Good),
        ("a--b.example", Good),
        ("xn--bcher-kva.example", Good),
        (&name253, Good),
        (&label63, Good),
        ("API.example.net", Write(UpperCase, "api.example.net")),
        ("api.example.net.", Write(TrailingDot, "api.example.net")),
        (" api.example.net", Write(WhiteSpace, "api.example.net")),
        ("bücher.example", Write(ULabel, "xn--bcher-kva.example")),
        ("Bücher.example.", Write(ULabel, "xn--bcher-kva.example")),
        ("api。example", Write(ULabel, "api.example")),
        ("XN--BCHER-KVA.example", Write(UpperCase, "xn--bcher-kva.example")),
        ("xn--a.example", No),
        ("xn--.example", No),
        ("", No),
        (".", No),
        ("..", No),
        ("a..b", No),
        (".a", No),
        ("a.b..", No),
        ("-a.example", No),
        ("a-.example", No),
        ("a_b.example", No),
        ("*.example.net", No),
        ("a b.example", No),
        ("a\u{0}.example", No),
        ("a%2eb.ü", No),
        ("example.123", No),
        ("example.0x1f", No),
        ("10.0.0.1", No),
        ("１０.０.０.１", No),
        (&label64, No),
        (&name254, No),
        ("http://example.net", No),
        ("example.net:443", No),
    ]);
    let name = |text: &str| text.parse::<DnsName>().expect("a name");
    assert!(name("a.example").is_within(&name("example")) && name("example").is_within(&name("example")));
    assert!(!name("anexample").is_within(&name("example")) && !name("example").is_within(&name("a.example")));
}

#[test]
fn dns_labels() {
    let label64 = "a".repeat(64);
    check::<DnsLabel>(&[
        ("portal", Good),
        ("3com", Good),
        ("123", Good),
        ("a-b", Good),
        ("Portal", Write(UpperCase, "portal")),
        ("portal.", Write(TrailingDot, "portal")),
        ("bücher", Write(ULabel, "xn--bcher-kva")),
        ("a.b", No),
        ("", No),
        ("-a", No),
        ("a_b", No),
        (&label64, No),
    ]);
    check::<Dns1035Label>(&[
        ("remote-db", Good),
        ("a", Good),
        ("3com", No),
        ("-a", No),
        ("a.b", No),
        ("A", Write(UpperCase, "a")),
    ]);
}

#[test]
fn target_addresses() {
    check::<TargetAddress>(&[
        ("192.0.2.10", Good),
        ("2001:db8::1", Good),
        ("db.example.net", Good),
        ("nas", Good),
        ("010.0.0.3", Write(LeadingZeros, "10.0.0.3")),
        ("127.1", Write(ShortIpv4, "127.0.0.1")),
        ("::ffff:10.0.0.3", Write(MappedIpv4, "10.0.0.3")),
        ("DB.example.net", Write(UpperCase, "db.example.net")),
        ("db.example.net.", Write(TrailingDot, "db.example.net")),
        ("10.0.0.300", No),
        ("10.0.0.0/8", No),
        ("db.example.0x7f", No),
        ("db.example.net:5432", No),
        ("", No),
    ]);
    let error = "10.0.0.300".parse::<TargetAddress>().expect_err("too large");
    assert_eq!(error.to_string(), "is not an IPv4 or IPv6 address or a DNS name");
}

#[test]
fn tags() {
    let long = format!("tag:{}", "a".repeat(125));
    check::<Tag>(&[
        ("tag:egress", Good),
        ("tag:a", Good),
        ("tag:a-1-", Good),
        ("Tag:egress", Write(UpperCase, "tag:egress")),
        ("tag:Egress", Write(UpperCase, "tag:egress")),
        ("tag:egress ", Write(WhiteSpace, "tag:egress")),
        ("tag: egress", No),
        ("tag:", No),
        ("tag:1x", No),
        ("tag:-x", No),
        ("tag:a.b", No),
        ("tag:ä", No),
        ("egress", No),
        ("tag:tag:a", No),
        ("", No),
        (&long, No),
    ]);
}

#[test]
fn principals() {
    check::<Principal>(&[
        ("*", Good),
        ("alice@", Good),
        ("Alice@Example.com", Good),
        ("group:Team-A", Good),
        ("tag:router", Good),
        ("autogroup:member", Good),
        ("autogroup:danger-all", Good),
        ("web1", Good),
        ("My_Host.1a", Good),
        ("192.0.2.1", Good),
        ("192.0.2.0/24", Good),
        ("2001:db8::1", Good),
        ("2001:db8::/32", Good),
        ("Group:Team-A", Write(UpperCase, "group:Team-A")),
        ("TAG:router", Write(UpperCase, "tag:router")),
        ("autogroup:Member", Write(UpperCase, "autogroup:member")),
        (" alice@", Write(WhiteSpace, "alice@")),
        ("192.0.2.1/24", Write(HostBits, "192.0.2.0/24")),
        ("010.0.0.1", Write(LeadingZeros, "10.0.0.1")),
        ("127.1", Write(ShortIpv4, "127.0.0.1")),
        ("", No),
        ("alice smith@", No),
        ("@example.com", No),
        ("a@b@c", No),
        ("group:", No),
        ("group:a b", No),
        ("autogroup:", No),
        ("svc:web", No),
        ("ipset:lan", No),
        ("tag:1x", No),
        ("192.0.2.1-192.0.2.9x", Good),
        ("-host", No),
        ("nonsense:x", No),
        ("**", No),
    ]);
}

#[test]
fn server_urls() {
    check::<ServerUrl>(&[
        ("https://control.example.net", Good),
        ("https://control.example.net:8443", Good),
        ("http://127.0.0.1:8080", Good),
        ("http://[::1]:8080", Good),
        ("http://headscale.headscale.svc", Good),
        (
            "https://control.example.net ",
            Write(WhiteSpace, "https://control.example.net"),
        ),
        (
            "HTTPS://control.example.net",
            Write(UpperCase, "https://control.example.net"),
        ),
        (
            "https://Control.example.net/",
            Write(UpperCase, "https://control.example.net"),
        ),
        (
            "https://control.example.net.",
            Write(TrailingDot, "https://control.example.net"),
        ),
        (
            "https://control.example.net.:8443",
            Write(TrailingDot, "https://control.example.net:8443"),
        ),
        ("https://bücher.example", Write(ULabel, "https://xn--bcher-kva.example")),
        ("http://0x7f.1", Write(HexOrOctal, "http://127.0.0.1")),
        ("http://010.0.0.1", Write(LeadingZeros, "http://8.0.0.1")),
        ("", No),
        ("control.example.net", No),
        ("//control.example.net", No),
        ("ftp://control.example.net", No),
        ("https://", No),
        ("https:control.example.net", No),
        ("https:///control.example.net", No),
        ("https:\\\\control.example.net", No),
        ("https://user:secret@control.example.net", No),
        ("https://@control.example.net", No),
        ("https://control.example.net/login", No),
        ("https://control.example.net//", No),
        ("https://control.example.net?x", No),
        ("https://control.example.net/#x", No),
        ("https://con trol.example.net", No),
        ("https://con\ttrol.example.net", No),
        ("https://control.example.net:99999", No),
        ("https://a_b.example.net", No),
        ("http://[::ffff:127.0.0.1]", No),
    ]);
    let url = |text: &str| text.parse::<ServerUrl>().expect(text);
    assert_eq!(
        url("https://control.example.net/").to_string(),
        "https://control.example.net"
    );
    assert_eq!(
        url("https://control.example.net:443/"),
        url("https://control.example.net")
    );
    for (text, transport) in [
        ("https://control.example.net", Transport::Tls),
        ("http://localhost:8080", Transport::PlainNearby),
        ("http://127.0.0.1", Transport::PlainNearby),
        ("http://10.1.2.3", Transport::PlainNearby),
        ("http://[fd00::1]", Transport::PlainNearby),
        ("http://headscale", Transport::PlainNearby),
        ("http://headscale.ns.svc.cluster.local", Transport::PlainNearby),
        ("http://control.example.net", Transport::PlainPublic),
        ("http://192.0.2.1", Transport::PlainPublic),
        ("http://100.64.0.1", Transport::PlainPublic),
    ] {
        assert_eq!(url(text).transport(), transport, "{text}");
    }
}

#[test]
fn images() {
    let digest = format!("coredns@sha256:{}", "0".repeat(64));
    check::<ImageRef>(&[
        ("ghcr.io/tailscale/tailscale:v1.102.4", Good),
        ("docker.io/coredns/coredns:1.14.7", Good),
        ("localhost:5000/x:1", Good),
        ("coredns", Good),
        (&digest, Good),
        (
            "docker.io/CoreDNS/coredns:1.14.7",
            Write(UpperCase, "docker.io/coredns/coredns:1.14.7"),
        ),
        (" coredns:1", Write(WhiteSpace, "coredns:1")),
        ("", No),
        ("coredns:", No),
        ("coredns@sha256:12", No),
        ("a//b:1", No),
        ("a b:1", No),
        ("https://docker.io/coredns:1", No),
    ]);
    for (text, pinned) in [
        ("x:v1.102.4", true),
        ("x:1.8.0.3-r2", true),
        ("x:16.4", true),
        ("x:1.14.7-alpine3.20", true),
        (digest.as_str(), true),
        ("x", false),
        ("x:latest", false),
        ("x:1", false),
        ("x:v1", false),
        ("x:1-alpine", false),
        ("localhost:5000/x", false),
    ] {
        assert_eq!(text.parse::<ImageRef>().expect(text).is_pinned(), pinned, "{text}");
    }
    assert_eq!(
        "x:v1.14.7-rc.1".parse::<ImageRef>().expect("an image").version(),
        Some(vec![1, 14, 7])
    );
}

#[test]
fn durations() {
    check::<GoDuration>(&[
        ("600s", Good),
        ("0s", Good),
        ("1h30m", Good),
        ("1h1m1s1ms", Good),
        ("99999h", Good),
        (" 60s", Write(WhiteSpace, "60s")),
        ("", No),
        ("60", No),
        ("1.5h", No),
        ("-1s", No),
        ("100000s", No),
        ("1d", No),
        ("1us", No),
        ("1S", No),
        ("1s 1s", No),
        ("1h1m1s1ms1ms", No),
    ]);
    for (text, millis) in [
        ("600s", 600_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1m1ms", 60_001),
    ] {
        assert_eq!(
            text.parse::<GoDuration>().expect(text).get(),
            Duration::from_millis(millis),
            "{text}"
        );
    }
}

#[test]
fn name_templates() {
    check::<NameTemplate>(&[
        ("{name}.{namespace}.lab.example.net", Good),
        ("{name}.lab.example.net", Good),
        ("{name}-{namespace}.{tailnet}", Good),
        ("{name}", No),
        ("{name}-{namespace}", No),
        ("{name}.Lab.example.net", Write(UpperCase, "{name}.lab.example.net")),
        ("{name}.lab.example.net.", Write(TrailingDot, "{name}.lab.example.net")),
        ("lab.example.net", No),
        ("{Name}.lab.example.net", No),
        ("{name}.{cluster}.example", No),
        ("{name.example", No),
        ("name}.{name}", No),
        ("{name}..example", No),
        ("{name}.bücher.example", No),
        ("{name}.10", No),
        ("", No),
    ]);
    let template = |text: &str| text.parse::<NameTemplate>().expect(text);
    let name = template("{name}.{namespace}.lab.example.net")
        .render("portal", "team-a", "demo")
        .expect("a name");
    assert_eq!(name.as_str(), "portal.team-a.lab.example.net");
    assert!(template("{name}.example").render(&"a".repeat(64), "b", "c").is_err());
    assert!(template("{name}.{namespace}.x").has_namespace() && !template("{name}.x").has_namespace());
}

#[test]
fn text_keeps_what_was_written() {
    let text: Text<Cidr> = serde_json::from_str("\"nonsense\"").expect("any string");
    assert!(text.parse().is_err());
    assert_eq!(serde_json::to_string(&text).expect("JSON"), "\"nonsense\"");
}

/// The property that all formats have: no panic; what is printed parses to the same value and prints the same; the
/// spelling that an error names parses.
fn holds<T: Format>(text: &str) -> Result<(), TestCaseError> {
    let canonical = match text.parse::<T>() {
        Ok(value) => value.to_string(),
        Err(error) => match error.canonical() {
            Some(canonical) => {
                prop_assert_ne!(canonical, text, "{} names the text itself", T::NAME);
                canonical.to_owned()
            }
            None => return Ok(()),
        },
    };
    let again = canonical.parse::<T>();
    prop_assert!(
        again.is_ok(),
        "{} {:?} -> {:?} -> {:?}",
        T::NAME,
        text,
        canonical,
        again
    );
    if let Ok(value) = again {
        prop_assert_eq!(value.to_string(), canonical, "{} of {:?} is no fixpoint", T::NAME, text);
    }
    Ok(())
}

fn all_hold(text: &str) -> Result<(), TestCaseError> {
    holds::<IpAddress>(text)?;
    holds::<Cidr>(text)?;
    holds::<DnsName>(text)?;
    holds::<DnsLabel>(text)?;
    holds::<Dns1035Label>(text)?;
    holds::<TargetAddress>(text)?;
    holds::<Tag>(text)?;
    holds::<Principal>(text)?;
    holds::<ServerUrl>(text)?;
    holds::<ImageRef>(text)?;
    holds::<GoDuration>(text)?;
    holds::<NameTemplate>(text)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_text(text in any::<String>()) {
        all_hold(&text)?;
    }

    #[test]
    fn nearly_addresses(text in r"[ ]?(0x|0|::ffff:)?[0-9a-fA-F:.%]{0,24}(/[0-9]{1,3})?[. ]?") {
        all_hold(&text)?;
    }

    #[test]
    fn nearly_names(text in r"[ ]?([a-zA-Z0-9_*-]|ü|ß|。|xn--|\{name\}|\{){0,12}(\.[a-zA-Z0-9-]{0,8}){0,4}[. ]?") {
        all_hold(&text)?;
    }

    #[test]
    fn nearly_urls(text in r"(https?|HTTP)(://|:)[a-zA-Z0-9.@:\[\]/?#%ü-]{0,24}/?") {
        all_hold(&text)?;
    }

    #[test]
    fn nearly_principals(text in r"(tag|TAG|group|Autogroup|svc)?:?[a-zA-Z0-9@._-]{0,12}(@[a-z.]{0,8})?(/[0-9]{1,2})?") {
        all_hold(&text)?;
    }

    #[test]
    fn every_address_is_canonical(addr in any::<std::net::IpAddr>()) {
        let address = IpAddress::from(addr);
        prop_assert_eq!(address.to_string().parse::<IpAddress>(), Ok(address));
    }
}
