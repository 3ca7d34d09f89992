//! Our reading of addresses, networks and names beside Go's and the C library's, on generated spellings.
//!
//! What we accept, everybody reads as the same value and prints as the same text. What others read and we do not accept is
//! refused with the canonical form of what they read. 100,000 spellings with `TAILNET_LONG_TESTS`, else 6,000.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod generate;
mod reader;

use std::collections::BTreeMap;

use generate::{Dice, spelling};
use reader::Reading;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_crds::types::{Cidr, DnsName, Format, FormatError, IpAddress, Principal, Spelling, TargetAddress};
use tailnet_policies::{Config, Layer, Request, Severity, Snapshot, evaluate};

/// Texts that once were read otherwise than they should be, and the old tricks.
const KNOWN: &[&str] = &[
    "10.0.0.1",
    "010.0.0.1",
    "0x0a.0.0.1",
    "10.1",
    "167772161",
    "0xa000001",
    "012.0.0.1",
    "0000000000000000000000010.0.0.1",
    "::ffff:10.0.0.1",
    "::10.0.0.1",
    "::ffff:a00:1",
    "fe80::1%eth0",
    "FE80::1",
    "::1%\r\n",
    "125.0X9.68.057",
    "10.010",
    "43.147.77.127/00000000000000000027",
    "0:0:0:0:0:ffff:61.184.46.77/024",
    "2001:db8:0:0:0:0:0:1",
    "2001:db8::0:1",
    "10.0.0.1.",
    " 10.0.0.1",
    "10.0.0.1 x",
    "１０.0.0.1",
    "10。0。0。1",
    "0x",
    "0x.1",
    "1.0x",
    "08.0.0.1",
    "10.0.0.0/08",
    "10.0.0.0/8 ",
    "::ffff:10.0.0.0/104",
    "::ffff:10.0.0.0/95",
    "::/0",
    "0/0",
    "10/8",
    "10.0.0.1/8",
    "db.example.net.",
    "DB.example.net",
    "bücher.example",
    "BÜCHER.example",
    "xn--bcher-kva.example",
    "xn--a.example",
    "faß.example",
    "\u{212a}.example",
    "a。example",
    "",
    ".",
    "*",
];

fn count() -> usize {
    if std::env::var_os("TAILNET_LONG_TESTS").is_some() {
        100_000
    } else {
        6_000
    }
}

/// What each spelling did wrong, the first few of each kind.
#[derive(Default)]
struct Faults(BTreeMap<&'static str, Vec<String>>);

impl Faults {
    fn unless(&mut self, holds: bool, what: &'static str, text: &str, more: impl FnOnce() -> String) {
        if !holds {
            self.0.entry(what).or_default().push(format!("{text:?}: {}", more()));
        }
    }
}

/// Whether there are parsers that read leading zeros of this text as decimal: those that know four plain parts only.
fn decimal_for_some(text: &str) -> bool {
    let parts: Vec<&str> = text.trim().split('.').filter(|part| !part.is_empty()).collect();
    parts.len() == 4 && !text.contains(['x', 'X']) && parts.iter().any(|part| part.len() > 1 && part.starts_with('0'))
}

/// The text without what our types name as unusual around it.
fn bare(text: &str) -> &str {
    text.trim()
}

fn address(text: &str, go: &Reading, faults: &mut Faults) {
    match text.parse::<IpAddress>() {
        Ok(ours) => {
            let same = go.addr == text && go.plain == text && ours.to_string() == text;
            faults.unless(same, "an accepted address is another one for Go", text, || {
                format!("{go:?}")
            });
            let c = if text.contains(':') { &go.pton } else { &go.aton };
            faults.unless(
                c == text,
                "an accepted address is another one for the C library",
                text,
                || format!("{go:?}"),
            );
        }
        Err(FormatError::NotCanonical { canonical, .. }) => {
            stable::<IpAddress>(text, &canonical, faults);
            if !go.plain.is_empty() {
                faults.unless(
                    go.plain == canonical,
                    "the address that we name is not Go's",
                    text,
                    || format!("{canonical} {go:?}"),
                );
            } else if !go.aton.is_empty() && !decimal_for_some(text) {
                faults.unless(
                    go.aton == canonical,
                    "the address that we name is not the C library's",
                    text,
                    || format!("{canonical} {go:?}"),
                );
            }
        }
        Err(FormatError::Unreadable(problem)) => {
            // inet_aton alone ignores what comes after white space.
            let garbage = text.split_whitespace().count() > 1;
            // Go alone takes white space for a zone's name.
            let space = text.split_once('%').is_some_and(|(_, zone)| zone.trim().is_empty());
            let read = !go.plain.is_empty() && !space || !go.pton.is_empty() || !go.aton.is_empty() && !garbage;
            faults.unless(
                !read,
                "an address that others read is refused without its canonical form",
                text,
                || format!("{problem}; {go:?}"),
            );
        }
    }
}

fn network(text: &str, go: &Reading, faults: &mut Faults) {
    match text.parse::<Cidr>() {
        Ok(ours) => {
            let same = [&go.prefix, &go.plain_prefix, &go.cidr]
                .iter()
                .all(|read| *read == text)
                && ours.to_string() == text;
            faults.unless(same, "an accepted network is another one for Go", text, || {
                format!("{go:?}")
            });
        }
        Err(FormatError::NotCanonical { canonical, .. }) => {
            stable::<Cidr>(text, &canonical, faults);
            let read = if go.plain_prefix.is_empty() {
                &go.cidr
            } else {
                &go.plain_prefix
            };
            faults.unless(
                read.is_empty() || *read == canonical,
                "the network that we name is not Go's",
                text,
                || format!("{canonical} {go:?}"),
            );
        }
        Err(FormatError::Unreadable(problem)) => {
            // A network of IPv6 that holds the whole of IPv4 inside it has no other spelling: it is refused as it is.
            let read = !go.prefix.is_empty() || !go.cidr.is_empty();
            faults.unless(
                !read || around_v4(text),
                "a network that Go reads is refused without its canonical form",
                text,
                || format!("{problem}; {go:?}"),
            );
        }
    }
}

/// Whether a network has an IPv4 address inside and reaches out of it.
fn around_v4(text: &str) -> bool {
    let (address, length) = text.split_once('/').unwrap_or((text, "128"));
    let mapped = address
        .parse::<std::net::Ipv6Addr>()
        .is_ok_and(|address| address.to_ipv4_mapped().is_some());
    mapped && length.parse::<u8>().is_ok_and(|length| length < 96)
}

fn name(text: &str, go: &Reading, faults: &mut Faults) {
    // IDNA keeps a trailing dot; white space and the dot are what our types take off first.
    match text.parse::<DnsName>() {
        Ok(ours) => {
            let same = go.ascii == text && ours.to_string() == text;
            faults.unless(same, "an accepted name is another one for Go", text, || {
                format!("{go:?}")
            });
            let address = !go.addr.is_empty() || !go.aton.is_empty();
            faults.unless(!address, "an accepted name is an address for others", text, || {
                format!("{go:?}")
            });
        }
        Err(FormatError::NotCanonical { canonical, .. }) => {
            stable::<DnsName>(text, &canonical, faults);
            let read = go.ascii.strip_suffix('.').unwrap_or(&go.ascii);
            faults.unless(
                read.is_empty() || read == canonical || bare(text) != text,
                "the name that we name is not Go's",
                text,
                || format!("{canonical} {go:?}"),
            );
        }
        Err(FormatError::Unreadable(problem)) => {
            // IDNA lets dashes at the ends and empty labels pass, hosts may not have them.
            let labels = || text.split('.');
            let host = labels().all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'));
            let plain = host && go.ascii == text && go.addr.is_empty() && go.aton.is_empty();
            let number = problem.contains("ends in a number");
            faults.unless(
                !plain || number,
                "a name that Go takes as it is is refused",
                text,
                || problem.clone(),
            );
        }
    }
}

/// A target's address is an address for everybody or for nobody.
fn target(text: &str, go: &Reading, faults: &mut Faults) {
    if let Ok(TargetAddress::Name(_)) = text.parse() {
        let address = !go.addr.is_empty() || !go.aton.is_empty() || !go.pton.is_empty();
        faults.unless(!address, "a target's name is an address for others", text, || {
            format!("{go:?}")
        });
    }
    // So is a source of grants: a host's name that somebody reads as an address would be another source.
    if let Ok(Principal::Host(_)) = text.parse() {
        let address = !go.addr.is_empty() || !go.aton.is_empty() || !go.prefix.is_empty();
        faults.unless(!address, "a source's host is an address for others", text, || {
            format!("{go:?}")
        });
    }
}

/// What we tell people to write is accepted and stays as it is.
fn stable<T: Format>(text: &str, canonical: &str, faults: &mut Faults) {
    let again = canonical.parse::<T>().map(|value| value.to_string());
    faults.unless(
        again.as_deref() == Ok(canonical),
        "what we tell people to write is refused",
        text,
        || format!("{canonical:?}: {again:?}"),
    );
}

/// The rules say of the text what its type says: nothing, or a denial; and TN010 names the canonical form.
fn rules<T: Format>(text: &str, kind: Kind, object: Value, path: &str, snapshot: &Snapshot, faults: &mut Faults) {
    let outcome = evaluate(&Request::for_object(kind, object, Layer::Webhook), snapshot);
    let denials: Vec<_> = outcome
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Deny && finding.field == path)
        .collect();
    let spelled = denials.iter().find(|finding| finding.rule == "TN010");
    match text.parse::<T>() {
        Ok(_) => faults.unless(spelled.is_none(), "a canonical text is refused by TN010", text, || {
            format!("{denials:?}")
        }),
        Err(FormatError::NotCanonical {
            spelling: Spelling::HostBits,
            ..
        }) => {
            faults.unless(!denials.is_empty(), "host bits are let in", text, || path.to_owned());
        }
        Err(FormatError::NotCanonical { canonical, .. }) => {
            let names_it = |detail: &str| detail.contains(canonical.chars().take(90).collect::<String>().as_str());
            let told = spelled.is_some_and(|finding| names_it(&finding.detail));
            faults.unless(told, "TN010 does not name the canonical form", text, || {
                format!("{canonical}: {denials:?}")
            });
        }
        Err(FormatError::Unreadable(_)) => {
            faults.unless(!denials.is_empty(), "what nobody can read is let in", text, || {
                path.to_owned()
            });
        }
    }
}

#[test]
fn go_and_the_c_library_read_what_we_read() {
    let mut dice = Dice::new(0x7a11_2e70);
    let mut texts: Vec<String> = KNOWN.iter().map(|text| (*text).to_owned()).collect();
    let mut seen: std::collections::HashSet<String> = texts.iter().cloned().collect();
    while texts.len() < count() {
        let text = spelling(&mut dice);
        if seen.insert(text.clone()) {
            texts.push(text);
        }
    }
    let readings = reader::read(&texts);

    let mut faults = Faults::default();
    let mut snapshot = Snapshot::closed(Config::default());
    snapshot.upsert(
        Kind::Tailnet,
        json!({ "metadata": { "name": "corp" }, "spec": { "server": "https://control.example.net", "apiSecretRef": { "name": "x" } } }),
    );
    let (mut accepted, mut respelled) = (BTreeMap::new(), BTreeMap::new());
    for (at, (text, go)) in texts.iter().zip(&readings).enumerate() {
        address(text, go, &mut faults);
        network(text, go, &mut faults);
        name(text, go, &mut faults);
        target(text, go, &mut faults);
        let verdicts = [
            ("address", text.parse::<IpAddress>().map(drop)),
            ("network", text.parse::<Cidr>().map(drop)),
            ("name", text.parse::<DnsName>().map(drop)),
        ];
        for (what, verdict) in verdicts {
            match verdict {
                Ok(()) => *accepted.entry(what).or_insert(0) += 1,
                Err(FormatError::NotCanonical { .. }) => *respelled.entry(what).or_insert(0) += 1,
                Err(FormatError::Unreadable(_)) => {}
            }
        }
        // The rules cost more than the types.
        if at % 10 == 0 || at < KNOWN.len() {
            let egress = |address: &str, alias: Option<&str>| {
                json!({ "metadata": { "name": "a", "namespace": "tailnet-system" }, "spec": {
                    "tailnetRef": { "name": "corp" }, "consumerNamespaces": ["team-a"],
                    "targets": [{ "name": "t", "address": address, "port": 1, "aliases": alias.into_iter().collect::<Vec<_>>() }],
                } })
            };
            let site = json!({ "metadata": { "name": "s" }, "spec": { "tailnetRef": { "name": "corp" }, "prefixes": [text] } });
            let (egresses, sites) = (Kind::TailnetEgress, Kind::TailnetSite);
            rules::<TargetAddress>(
                text,
                egresses,
                egress(text, None),
                "spec.targets[0].address",
                &snapshot,
                &mut faults,
            );
            let alias = egress("192.0.2.1", Some(text));
            rules::<DnsName>(
                text,
                egresses,
                alias,
                "spec.targets[0].aliases[0]",
                &snapshot,
                &mut faults,
            );
            rules::<Cidr>(text, sites, site, "spec.prefixes[0]", &snapshot, &mut faults);
        }
    }
    println!(
        "{} spellings; accepted {accepted:?}, canonical form named {respelled:?}",
        texts.len()
    );
    let shown: Vec<String> = faults
        .0
        .iter()
        .map(|(what, all)| {
            let first: Vec<&str> = all.iter().take(12).map(String::as_str).collect();
            format!("{what}: {} times\n  {}", all.len(), first.join("\n  "))
        })
        .collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
    // The generator is worth something only while it makes enough of each.
    for (what, most) in [("address", 40), ("network", 100), ("name", 30)] {
        assert!(accepted[what] > texts.len() / most, "{what}: {accepted:?}");
        assert!(respelled[what] > texts.len() / most, "{what}: {respelled:?}");
    }
}
