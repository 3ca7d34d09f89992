//! The claims record in parts that fit a ConfigMap each, however many claims there are.
//!
//! Every part is complete in itself, and a claim never moves to another part while it lives. So the parts can be written
//! one by one, in any order, and a crash between two writes loses no incumbent.

use std::collections::BTreeMap;

use crate::claims::{Claims, ClaimsError};

/// Most bytes of a part's text: the API server takes 1 MiB per object, and metadata needs room too.
pub const PART_BYTES: usize = 768 * 1024;

/// The whole record. Where two parts know a key, the younger claim counts: the older one has not been removed yet.
pub fn merged<'a>(parts: impl IntoIterator<Item = &'a Claims>) -> Claims {
    let mut whole = Claims::empty();
    for (key, claim) in parts.into_iter().flat_map(|part| &part.claims) {
        match whole.claims.get(key) {
            Some(known) if known.since >= claim.since => {}
            _ => {
                whole.claims.insert(key.clone(), claim.clone());
            }
        }
    }
    whole
}

/// `claims` in parts by index: what `stored` has stays where it is, what is new goes to the first part with room. Every
/// part says in which installation it is written.
/// Part 0 always is there, others only when they hold something.
///
/// # Errors
/// The serializer's.
pub fn divided(claims: &Claims, stored: &BTreeMap<usize, Claims>) -> Result<BTreeMap<usize, Claims>, ClaimsError> {
    let empty = || Claims {
        installation: claims.installation.clone(),
        ..Claims::empty()
    };
    let mut parts = BTreeMap::from([(0, empty())]);
    let mut fresh = Vec::new();
    for (key, claim) in &claims.claims {
        let place = stored
            .iter()
            .find_map(|(index, part)| (part.claims.get(key) == Some(claim)).then_some(*index));
        match place {
            Some(index) => {
                let part = parts.entry(index).or_insert_with(empty);
                part.claims.insert(key.clone(), claim.clone());
            }
            None => fresh.push((key, claim)),
        }
    }
    let mut index = 0;
    let mut size: Option<usize> = None;
    for (key, claim) in fresh {
        // One more for the comma.
        let more = serde_json::to_string(key)?.len() + 1 + serde_json::to_string(claim)?.len() + 1;
        loop {
            let part = parts.entry(index).or_insert_with(empty);
            let filled = match size {
                Some(filled) => filled,
                None => part.to_json()?.len(),
            };
            if part.claims.is_empty() || filled + more <= PART_BYTES {
                part.claims.insert(key.clone(), claim.clone());
                size = Some(filled + more);
                break;
            }
            index += 1;
            size = None;
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::Claim;

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-02-01T00:00:00Z";

    fn claim(name: &str, since: &str) -> Claim {
        Claim {
            kind: "TailnetIngress".into(),
            namespace: Some("team-with-a-name-of-usual-length".into()),
            name: name.into(),
            uid: Some("01234567-89ab-cdef-0123-456789abcdef".into()),
            since: since.into(),
            reserved_until: None,
        }
    }

    fn claims(keys: impl IntoIterator<Item = usize>) -> Claims {
        let mut claims = Claims::empty();
        for key in keys {
            let name = format!("portal-{key:06}");
            let key = format!("name:{name}.team-with-a-name-of-usual-length.svc.tailnet.example.net");
            claims.claims.insert(key, claim(&name, OLD));
        }
        claims
    }

    #[test]
    fn every_part_fits_and_together_they_are_the_record() {
        let all = claims(0..20_000);
        assert!(
            all.to_json().unwrap().len() > 4 * PART_BYTES,
            "more than one ConfigMap takes"
        );
        let mut written = all.clone();
        written.installation = Some("01234567-89ab-cdef-0123-456789abcdef".into());
        let parts = divided(&written, &BTreeMap::new()).unwrap();
        for (index, part) in &parts {
            assert!(part.to_json().unwrap().len() <= PART_BYTES, "part {index}");
            assert_eq!(part.installation, written.installation, "part {index}");
        }
        assert_eq!(merged(parts.values()), all);
        assert_eq!(
            divided(&written, &parts).unwrap(),
            parts,
            "nothing moves when nothing changes"
        );
    }

    #[test]
    fn a_claim_stays_in_its_part_and_new_ones_fill_the_gaps() {
        let parts = divided(&claims(0..10_000), &BTreeMap::new()).unwrap();
        assert!(parts.len() >= 3);
        let later = divided(&claims(2_000..10_010), &parts).unwrap();
        assert_eq!(merged(later.values()), claims(2_000..10_010));
        for (index, part) in parts.iter().skip(1) {
            for key in part.claims.keys() {
                assert!(later[index].claims.contains_key(key), "{key} left part {index}");
            }
        }
        assert_eq!(later.len(), parts.len(), "the gap in part 0 took the new ones");
        let few = divided(&claims(0..10), &parts).unwrap();
        assert_eq!(few.keys().copied().collect::<Vec<_>>(), [0], "empty parts are left out");
    }

    #[test]
    fn without_claims_there_is_one_empty_part() {
        let parts = divided(&Claims::empty(), &BTreeMap::new()).unwrap();
        assert_eq!(parts, BTreeMap::from([(0, Claims::empty())]));
    }

    #[test]
    fn of_two_holders_in_two_parts_the_younger_claim_counts() {
        let part = |name: &str, since: &str| {
            let mut part = Claims::empty();
            part.claims.insert("name:a.example".into(), claim(name, since));
            part
        };
        for parts in [
            [part("before", OLD), part("after", NEW)],
            [part("after", NEW), part("before", OLD)],
        ] {
            assert_eq!(merged(&parts).claims["name:a.example"].name, "after");
        }
    }
}
